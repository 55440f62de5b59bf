"""Checkpoints of the model and its optimizer, written and resumed by all workers together."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Optional

from worker_image import checkpoint_files as files
from worker_image.strategy import Group
from worker_image.train_errors import TrainError, WrongInputError

KEEP = 3  # complete checkpoints: the newest may turn out to be damaged
_WEIGHTS = "weights"
_NOTHING = -1  # the step to resume from where there is no checkpoint
_PEER_LOST = ("UnavailableError", "AbortedError", "DeadlineExceededError", "CancelledError")  # launch tells of these


class Checkpoints:
    """The checkpoints of one training, in a directory that all workers share. Every worker calls every method.

    meaning: what the number of a step depends on (batch size, seed, …); a checkpoint of another meaning is refused.
    """

    def __init__(self, directory: str, group: Group, model: Any, meaning: Dict[str, int]) -> None:
        import tensorflow as tf

        self._directory = directory
        self._group = group
        self._model = model
        self._meaning = meaning
        self._content = tf.train.Checkpoint(model=model, optimizer=model.optimizer, random=_random_state(model))
        self._latest: Optional[int] = None

    def restore(self) -> int:
        """Load the newest checkpoint that is complete and undamaged on every worker. Returns its step, 0 without one."""
        steps = self._group.gather(self._newest())
        step = min(steps)
        if step == _NOTHING and max(steps) != _NOTHING:
            raise TrainError(
                f"one worker sees checkpoint {max(steps)} in {self._directory} and another sees none; "
                "--checkpoint-dir must be storage that all workers share"
            )
        if step == _NOTHING:
            return 0
        self._load(step)
        self._latest = step
        return step

    def save(self, step: int) -> None:
        """Write the checkpoint of `step` unless it exists. Raises TrainError, on every worker, if any of them can't."""
        if step == self._latest:
            return
        self._refuse_non_finite(step)
        problem = self._written(step)
        if sum(self._group.gather(int(bool(problem)))):
            raise TrainError(
                f"the checkpoint of step {step} could not be written to {self._directory}: {problem or 'another worker failed'}"
            )
        self._latest = step

    def _refuse_non_finite(self, step: int) -> None:
        """The loss shows a NaN one step after the weights have it, and a checkpoint made between the two would be useless."""
        import tensorflow as tf

        for weight in self._model.trainable_weights:
            value = tf.convert_to_tensor(weight)
            if value.dtype.is_floating and not bool(tf.reduce_all(tf.math.is_finite(value))):
                raise TrainError(
                    f"the weights are no longer finite after step {step}; lower the learning rate, or look for bad values in the data"
                )

    def _written(self, step: int) -> str:
        """Write this worker's part. Returns what went wrong: the other workers must hear of it before this one gives up."""
        # Saving takes all workers, since variables that differ by replica are reduced on the way; one result is enough. The others'
        # folders have fixed names, so that what a killed worker left behind is removed by its successor.
        chief = self._group.chief
        folder = files.folder_of(self._directory, step) if chief else os.path.join(self._directory, f".worker-{self._group.index}")
        problem = ""
        try:
            files.remove(folder)
            os.makedirs(folder)
            self._content.write(os.path.join(folder, _WEIGHTS))
            if chief:
                files.complete(folder, step, self._meaning)
                files.prune(self._directory, KEEP)
        except Exception as e:
            if type(e).__name__ in _PEER_LOST:
                raise
            problem = _why(e)
        if problem or not chief:
            files.remove(folder)
        return problem

    def _newest(self) -> int:
        for step in files.complete_steps(self._directory):
            problem = files.damage(files.folder_of(self._directory, step))
            if not problem:
                return step
            if self._group.chief:
                print(f"checkpoint {step} is damaged ({problem}), trying the one before", flush=True)
        return _NOTHING

    def _load(self, step: int) -> None:
        folder = files.folder_of(self._directory, step)
        meaning = files.read_marker(folder)["meaning"]
        if meaning != self._meaning:
            raise WrongInputError(
                f"the checkpoints in {self._directory} were made with {_text(meaning)}, and this run has {_text(self._meaning)}, "
                "so that its steps are others; use the former options or another --checkpoint-dir"
            )
        try:
            self._content.read(os.path.join(folder, _WEIGHTS)).assert_existing_objects_matched()
        except (AssertionError, ValueError) as e:
            raise WrongInputError(f"the checkpoints in {self._directory} are another model's ({_why(e)}); use another directory") from e


def _random_state(model: Any) -> List[Any]:
    """What dropout and its like draw from, which TensorFlow does not find by itself: without it, a resumed run drops others."""
    weights = {id(variable) for variable in model.weights}
    keras_3 = [variable for variable in model.variables if id(variable) not in weights]
    holders: List[Any] = [getattr(layer, "_random_generator", None) for layer in getattr(model, "submodules", ())]
    keras_2: List[Any] = [getattr(holder, "_generator", None) for holder in holders]
    return keras_3 + [generator.state for generator in keras_2 if generator is not None]


def _text(meaning: Dict[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in meaning.items())


def _why(e: Exception) -> str:
    """The cause alone: TensorFlow says "{{function_node …}} PATH; No space left on device [Op:SaveV2]"."""
    text = " ".join(str(getattr(e, "strerror", None) or e).split())
    return re.sub(r"\{\{.*?\}\}+ ?| \[Op:.*", "", text).split("; ")[-1][:200] or type(e).__name__
