"""The training program that comes with tfrun: any model, any number of workers.

    python -m worker_image.train --task digits
    tfrun run -n 2 -m worker_image.train --task my_task.py --epochs 5

A task is a module with build_model(), which returns a compiled Keras model, and build_dataset(split), which returns a tf.data.Dataset
of single (x, y) examples for the splits "train" and "test".
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import Any, Dict, List, NoReturn, Optional

from worker_image import checkpoint_files, data, evaluation, loops, report, tasks
from worker_image import strategy as strategies
from worker_image.checkpoint import Checkpoints
from worker_image.strategy import Group
from worker_image.train_errors import TrainError


def main(arguments: Optional[List[str]] = None) -> NoReturn:
    """Train as the arguments say, and exit: 0 done, 1 the training failed, 2 what was given can't work."""
    options = _parser().parse_args(arguments)
    try:
        _run(options)
    except TrainError as e:
        print(f"train: {e}", file=sys.stderr, flush=True)
        sys.exit(e.exit_code)
    sys.exit(0)


def _run(options: argparse.Namespace) -> None:
    found = tasks.find(options.task)
    if options.checkpoint_dir:
        checkpoint_files.prepare_directory(options.checkpoint_dir)
    group = _group(options.strategy)
    task = tasks.load(found)  # after the strategy: a module that uses TensorFlow at its top would make that impossible
    examples = tasks.examples_of(task, "train")
    model, keras = _model(group, task, examples, options.seed)
    training = _training(options, group, model, examples)
    if options.loop == "fit":
        loops.fit(training, model, keras)
    else:
        loops.custom(training, model, options.steps_per_call)
    with report.activity("evaluation"):
        metrics = evaluation.evaluate(group, model, tasks.examples_of(task, "test"), options.batch_size)
    if group.chief:
        print(f"{_told(metrics)} after {training.step} steps ({_counted(group.workers, 'worker')})", flush=True)


def _group(requested: str) -> Group:
    import tensorflow as tf

    choice = strategies.choose(requested, os.environ, len(tf.config.list_physical_devices("GPU")))
    print(f"strategy: {choice.name}, because {choice.reason}", flush=True)
    return strategies.create(choice, os.environ)


def _model(group: Group, task: Any, examples: Any, seed: int) -> Any:
    """(the model, its Keras package): every variable made, and the same values at the start wherever the seed is the same."""
    import tensorflow as tf

    tf.keras.utils.set_random_seed(seed)
    with contextlib.suppress(AttributeError):  # Keras 2 only: dropout's state in variables, which checkpoints hold, as in Keras 3
        tf.keras.backend.experimental.enable_tf_random_generator()
    one = data.first(examples, "train")
    with group.strategy.scope():
        model, keras = tasks.model_of(task)
        if not model.built:
            model(one[0])
        if hasattr(model.optimizer, "build"):  # the legacy ones make their variables at the first step, and restore them then
            model.optimizer.build(model.trainable_variables)
    _make_metrics(group, model, one)
    return model, keras


def _make_metrics(group: Group, model: Any, one: Any) -> None:
    """Metrics make their variables at the first use, which inside a tf.function costs a second trace, and with several devices fails."""
    import tensorflow as tf

    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("ERROR")  # it would warn that a step outside of a tf.function is slow
    group.strategy.run(model.test_step, args=(one,))
    logger.setLevel(level)


def _training(options: argparse.Namespace, group: Group, model: Any, examples: Any) -> loops.Training:
    training_set = data.training_set(examples, options.batch_size * group.replicas, options.seed, options.cache)
    meaning = {"global batch": training_set.global_batch, "examples": training_set.count, "seed": options.seed}
    saving = {"checkpoint steps": options.checkpoint_steps, "having a checkpoint directory": int(bool(options.checkpoint_dir))}
    _agree(group, {**meaning, **saving, "epochs": options.epochs, "steps per call": options.steps_per_call})
    checkpoints = Checkpoints(options.checkpoint_dir, group, model, meaning) if options.checkpoint_dir else None
    training = loops.Training(group, training_set, options.epochs, checkpoints, options.checkpoint_steps)
    if checkpoints:
        training.step = checkpoints.restore()
    if group.chief:
        start = f"resuming after step {training.step}" if training.step else "starting"
        print(
            f"{start}: {options.epochs} epochs of {training_set.steps_per_epoch} steps, "
            f"{training_set.global_batch} examples each ({_counted(group.replicas, 'replica')} of {options.batch_size})",
            flush=True,
        )
    return training


def _agree(group: Group, numbers: Dict[str, int]) -> None:
    """Workers that differ here would make different numbers of steps, and the others would wait for them for ever."""
    for name, value in numbers.items():
        values = group.gather(value)
        if len(set(values)) > 1:
            raise TrainError(f"the workers differ in {name}: {values}; give each the same options and the same data")


def _told(metrics: Dict[str, float]) -> str:
    shown = {name: value for name, value in metrics.items() if name != "loss"} or metrics
    return "test " + ", ".join(f"{name} {value:.3f}" for name, value in shown.items())


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--task", required=True, help="digits, a path to a .py file, or a module's dotted name")
    wanted = os.environ.get("TFRUN_STRATEGY", "auto")
    add("--strategy", choices=strategies.NAMES, default=wanted, help="default: TFRUN_STRATEGY, else auto, by what is there")
    add("--loop", choices=("custom", "fit"), default="custom", help="our own loop (default) or Keras's fit")
    add("--epochs", type=_positive, default=10, help="default: 10")
    add("--batch-size", type=_positive, default=32, help="examples per replica and step; default: 32")
    add("--steps-per-call", type=_positive, default=10, help="steps between two reports, custom loop only; default: 10")
    add("--seed", type=_natural, default=0, help="of the initial weights and of the order of the examples; default: 0")
    add("--no-cache", dest="cache", action="store_false", help="read the examples anew in each epoch, not from memory")
    directory = os.environ.get("TFRUN_CHECKPOINT_DIR")
    add("--checkpoint-dir", default=directory, help="shared by all workers; default: TFRUN_CHECKPOINT_DIR, else no checkpoints")
    add("--checkpoint-steps", type=_natural, default=0, help="steps between two checkpoints, besides the ends of the epochs")
    return parser


def _positive(text: str) -> int:
    number = _natural(text)
    if not number:
        raise ValueError
    return number


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError
    return number


_positive.__name__, _natural.__name__ = "positive number", "number from 0 on"  # argparse says "invalid positive number value: '0'"


if __name__ == "__main__":
    main()
