"""Checkpoints of the model and its optimizer: saved beside the training, and resumed by all workers together."""

from __future__ import annotations

import contextlib
import math
import threading
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from worker_image import checkpoint_files as files
from worker_image.snapshot import Snapshot, Snapshots
from worker_image.strategies import Group
from worker_image.train_errors import TrainError, WrongInputError

_WEIGHTS = "weights"
_NOTHING, _UNKNOWN, _SPOILT = -1, -2, -3  # instead of a step to resume from: there is none; one can't tell; all are damaged
_FINE, _BAD_FILES, _BAD_INPUT = range(3)  # how reading a checkpoint went, as workers tell each other


@dataclass(frozen=True)
class Place:
    """How far a training is: optimizer updates, the epoch (from 0), and its examples so far, of all workers together."""

    step: int
    epoch: int
    examples: int


@dataclass(frozen=True)
class Restored:
    """What was resumed: the place, and the layout that `save` was given."""

    place: Place
    layout: Dict[str, Any]


class Checkpoints:
    """The checkpoints of one training, in a directory that all workers share. Every worker calls every method, at the same steps.

    The first worker writes, in a thread of its own, while the training goes on; collectives are only in the calls.

    directory: prepared by checkpoint_files.prepare_directory.
    meaning: what a checkpoint is useless without (seed, …); one of another meaning is refused.
    keep: how many of the newest to keep: the newest may turn out to be damaged.
    best: a metric of `save`, whose best checkpoint is kept too; lower is better if its name has "loss" or "error" in it.
    """

    def __init__(self, directory: str, group: Group, model: Any, meaning: Dict[str, int], keep: int = 3, best: str = "") -> None:
        objects = {"model": model, "optimizer": getattr(model, "optimizer", None), "random": _random_state(model)}
        self._set_up(directory, group, {name: thing for name, thing in objects.items() if thing is not None}, meaning, keep, best)

    @classmethod
    def of(
        cls,
        directory: str,
        group: Group,
        objects: Mapping[str, Any],
        meaning: Optional[Dict[str, int]] = None,
        keep: int = 3,
        best: str = "",
    ) -> Checkpoints:
        """The same for any trackable objects, by the names that tf.train.Checkpoint(**objects) gives them."""
        self = cls.__new__(cls)
        self._set_up(directory, group, objects, meaning or {}, keep, best)
        return self

    def _set_up(self, directory: str, group: Group, objects: Mapping[str, Any], meaning: Dict[str, int], keep: int, best: str) -> None:
        import tensorflow as tf

        self._directory = directory
        self._group = group
        self._model = objects.get("model")
        self._meaning = meaning
        self._keep = keep
        self._best = best
        self._content = tf.train.Checkpoint(**objects)
        trained = [thing for thing in objects.values() if hasattr(thing, "trainable_variables")]
        self._snapshots = Snapshots(self._content, group.strategy, lambda: [one for thing in trained for one in thing.trainable_variables])
        self._writer = _Writer()
        self._step: Optional[int] = None  # of the newest checkpoint that is there, or on its way
        self._told = True  # whether the workers have heard how the last save went

    def restore(self) -> Optional[Restored]:
        """Load the newest checkpoint that is complete and undamaged on every worker; None without one.

        Raises TrainError where the workers see different ones, or all are damaged; WrongInputError for another training's.
        """
        self.close()
        before, problem = math.inf, ""
        while True:
            step = self._agreed_below(before, problem)
            if step == _NOTHING:
                return None
            outcome, problem, restored = self._load(step)
            outcomes = self._group.gather(outcome)
            if max(outcomes) == _FINE:
                self._step = step
                return restored
            if max(outcomes) == _BAD_INPUT:
                raise WrongInputError(problem or f"another worker can't use the checkpoints in {self._directory}; see its output")
            if problem:
                _tell_damage(step, problem)
            before = step

    def save(self, place: Place, layout: Dict[str, Any], metrics: Dict[str, float], wait: bool = False) -> None:
        """Save what the variables hold now, unless that step's checkpoint exists; `wait` until it is complete.

        Raises TrainError, on every worker, if the save before this one failed, and with `wait` if this one did.
        """
        if place.step != self._step:
            self.close()
            self._begin(place, layout, metrics)
            self._step, self._told = place.step, False
        if wait:
            self.close()

    def close(self) -> None:
        """Wait for what is being written. Raises TrainError, on every worker, if it failed. Saving again is allowed."""
        if self._told:
            return
        problem = self._writer.finish()
        step, self._told = self._step, True
        if max(self._group.gather(int(bool(problem)))):
            self._step = None
            raise TrainError(problem or f"the checkpoint of step {step} was not made; the first worker's output says why")

    def _begin(self, place: Place, layout: Dict[str, Any], metrics: Dict[str, float]) -> None:
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}  # JSON has no NaN
        about = {**asdict(place), "meaning": self._meaning, "layout": layout, "metrics": finite, "shapes": _shapes(self._model)}
        snapshot = self._snapshots.take()  # on every worker: what differs by replica is reduced on the way
        if self._group.chief:
            self._writer.start(lambda: self._write(about, snapshot))

    def _write(self, about: Dict[str, Any], snapshot: Snapshot) -> str:
        """Make the checkpoint. Returns what went wrong: the other workers must hear of it before this one gives up."""
        step, folder = about["step"], files.folder_of(self._directory, about["step"])
        try:
            if not snapshot.finite():  # the loss shows it one step later, and this checkpoint would be useless
                return f"the weights are no longer finite after step {step}; lower the learning rate, or look for bad values in the data"
            files.begin(folder)
            snapshot.write(files.join(folder, _WEIGHTS))
            snapshot.release()
            files.complete(folder, about)
            files.prune(self._directory, step, self._keep, self._best)
        except Exception as e:
            with contextlib.suppress(Exception):  # half a checkpoint is no use, and takes the room of a whole one
                if step not in files.complete_steps(self._directory):
                    files.remove(folder)
            return (
                f"the checkpoint of step {step} could not be written to {self._directory}: {files.reason(e)}; "
                "see to that, and start again to resume from the one before"
            )
        finally:
            snapshot.release()
        return ""

    def _agreed_below(self, before: float, problem: str) -> int:
        """The newest checkpoint that every worker has, of those before a step; _NOTHING without any."""
        mine, why = self._newest(before)
        why = why or problem or "another worker says why"
        steps = self._group.gather(mine)
        if _UNKNOWN in steps:
            raise TrainError(f"the checkpoints in {self._directory} can't be looked for ({why})")
        if min(steps) < 0 <= max(steps):
            raise TrainError(
                f"one worker sees checkpoint {max(steps)} in {self._directory} and another sees none; "
                "--checkpoint-dir must be storage that all workers share"
            )
        if _SPOILT in steps or (min(steps) == _NOTHING and before < math.inf):  # to start anew would remove what may be of use
            raise TrainError(f"no checkpoint in {self._directory} can be read ({why}); remove them to train from the start")
        return min(steps)

    def _newest(self, before: float) -> Tuple[int, str]:
        """(the step of the newest that seems undamaged, or what there is instead; what is wrong with the others)."""
        problem = ""
        try:
            for step in files.complete_steps(self._directory):
                if step >= before:
                    continue
                problem = files.damage(files.folder_of(self._directory, step))
                if not problem:
                    return step, ""
                _tell_damage(step, problem)
        except OSError as e:
            return _UNKNOWN, files.reason(e)
        return (_SPOILT if problem else _NOTHING), problem

    def _load(self, step: int) -> Tuple[int, str, Optional[Restored]]:
        """(how it went, what is wrong, what it is)."""
        import tensorflow as tf

        folder = files.folder_of(self._directory, step)
        try:
            marker = files.read_marker(folder)
            restored = Restored(Place(marker["step"], marker["epoch"], marker["examples"]), marker["layout"])
            difference = self._difference(marker)
            if difference:
                return _BAD_INPUT, difference, None
            self._content.read(files.join(folder, _WEIGHTS)).assert_existing_objects_matched()
        except (AssertionError, ValueError, tf.errors.InvalidArgumentError) as e:
            return _BAD_INPUT, self._another_model(files.reason(e)), None
        except (OSError, KeyError, TypeError, tf.errors.OpError) as e:  # TensorFlow compares each tensor with its checksum
            return _BAD_FILES, files.reason(e), None
        return _FINE, "", restored

    def _difference(self, marker: Mapping[str, Any]) -> str:
        """Why a checkpoint can't be used here, before anything is loaded; empty if it can, as far as its marker tells."""
        if marker["meaning"] != self._meaning:
            return (
                f"the checkpoints in {self._directory} were made with {_text(marker['meaning'])}, and this run has "
                f"{_text(self._meaning)}, so that its steps are others; use the former options or another --checkpoint-dir"
            )
        theirs, ours = marker["shapes"], _shapes(self._model)
        if not (theirs and ours) or theirs == ours:  # what is made at the first step has none yet
            return ""
        if len(theirs) != len(ours):
            return self._another_model(f"it has {len(theirs)} weights, this one {len(ours)}")
        place = next(i for i, shape in enumerate(theirs) if shape != ours[i])
        return self._another_model(f"its weight {place + 1} has the shape {theirs[place]}, here {ours[place]}")

    def _another_model(self, why: str) -> str:
        return f"the checkpoints in {self._directory} are another model's ({why}); use another directory"


class _Writer:
    """Writes one thing at a time in a thread, for which an interpreter that ends waits."""

    def __init__(self) -> None:
        self._thread: Optional[threading.Thread] = None
        self._problem = ""

    def start(self, work: Callable[[], str]) -> None:
        def run() -> None:
            self._problem = work()

        self._problem = "the writing of the checkpoint broke off; its output says why"  # unless it returns
        self._thread = threading.Thread(target=run, name="checkpoint")
        self._thread.start()

    def finish(self) -> str:
        """Wait for the end. Returns what went wrong."""
        if self._thread is None:
            return ""
        self._thread.join()
        self._thread = None
        return self._problem


def _random_state(model: Any) -> List[Any]:
    """What dropout and its like draw from, which TensorFlow does not find by itself: without it, a resumed run drops others."""
    weights = {id(variable) for variable in model.weights}
    keras_3 = [variable for variable in model.variables if id(variable) not in weights]
    holders: List[Any] = [getattr(layer, "_random_generator", None) for layer in getattr(model, "submodules", ())]
    keras_2: List[Any] = [getattr(holder, "_generator", None) for holder in holders]
    return keras_3 + [generator.state for generator in keras_2 if generator is not None]


def _tell_damage(step: int, problem: str) -> None:
    print(f"checkpoint {step} is damaged ({problem}), trying the one before", flush=True)


def _shapes(model: Any) -> List[List[Any]]:
    return [list(weight.shape) for weight in getattr(model, "weights", ())]


def _text(meaning: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in meaning.items())
