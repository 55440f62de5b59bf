"""The task's model, made within the strategy, with every variable that its training will need, and tried with one example."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from types import ModuleType
from typing import Any, Optional, Tuple

from worker_image import steps, tasks
from worker_image.strategies import Group
from worker_image.train_errors import TrainError, WrongInputError


def prepare(options: argparse.Namespace) -> None:
    """What must be set before the first variable: seeds, precision, switches."""
    import tensorflow as tf

    tf.keras.utils.set_random_seed(options.seed)
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    with contextlib.suppress(AttributeError):  # Keras 2 only: dropout's state in variables, which checkpoints hold, as in Keras 3
        tf.keras.backend.experimental.enable_tf_random_generator()
    if options.precision != "float32":
        for keras in {id(each): each for each in (tf.keras, sys.modules.get("tf_keras")) if each}.values():
            keras.mixed_precision.set_global_policy(options.precision)


def build(group: Group, task: ModuleType, one: Any, options: argparse.Namespace) -> Tuple[Any, Any]:
    """(the model, its Keras package). one: an example, as a batch of one. Raises WrongInputError for what can't be trained."""
    with group.strategy.scope():
        model, keras = tasks.model_of(task)
        try:
            if not model.built:
                model(one[0])
        except Exception as e:
            raise _does_not_fit(model, one, e) from e
        _refuse_variables_from_outside(group, model)
        if hasattr(model.optimizer, "build"):  # the legacy ones make their variables at the first step, and restore them then
            model.optimizer.build(model.trainable_variables)
    steps.install(group, model, options.accumulate, options.clip_norm, options.jit_compile)
    _try(group, model, one)
    return model, keras


def sentence_for(error: Exception) -> Optional[TrainError]:
    """One sentence for what TensorFlow says in many of a bad label, or of the first number that is none; None for anything else."""
    text = str(error)
    label = re.search(r"Received a label value of (.*?)\.", text)
    if label:
        return TrainError(f"build_dataset gives the label {label[1]}; let it give labels that the model's last layer has an output for")
    number = re.search(r"Detected (Infinity or NaN|\w+) in output \d+ of .*?\"([^\"]+)\"", text)
    if number:
        return TrainError(f"the first {number[1]} came out of the operation {number[2]}; look at what it is given")
    return None


def _try(group: Group, model: Any, one: Any) -> None:
    """Metrics make their variables at the first use, which inside a tf.function costs a second trace, and with several devices fails."""
    import tensorflow as tf

    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("ERROR")  # it would warn that a step outside of a tf.function is slow
    try:
        group.strategy.run(model.test_step, args=(one,))
    except (ValueError, TypeError, tf.errors.InvalidArgumentError) as e:
        raise sentence_for(e) or _does_not_fit(model, one, e) from e
    finally:
        logger.setLevel(level)
    model.reset_metrics()


def _does_not_fit(model: Any, one: Any, error: Exception) -> WrongInputError:
    import tensorflow as tf

    x, y = (_shapes(tf.nest.map_structure(lambda each: each.shape[1:], part)) for part in one[:2])
    takes, gives = (_shapes(_without_batch(getattr(model, name, None))) for name in ("input_shape", "output_shape"))
    why = " ".join(str(getattr(error, "message", error)).split())
    return WrongInputError(
        f"the examples of build_dataset have x of shape {x} and y of shape {y}, and the model takes {takes} and gives {gives}; make them "
        f"fit ({why[:200]})"
    )


def _without_batch(shape: Any) -> Any:
    if isinstance(shape, tuple) and shape and shape[0] is None:
        return shape[1:]
    return shape


def _shapes(found: Any) -> str:
    return "any" if found is None else str(found).replace("TensorShape(", "").replace("])", "]")


def _refuse_variables_from_outside(group: Group, model: Any) -> None:
    for variable in model.variables:
        made = getattr(variable, "value", variable)
        made = variable if callable(made) else made  # a tf.Variable's own `value` is a method
        if not group.strategy.extended.variable_created_in_scope(made):
            name = getattr(variable, "path", variable.name)
            raise WrongInputError(
                f"build_model() returned a model whose variable {name} was made before, and so for this worker alone; make the "
                "whole model inside build_model()"
            )
