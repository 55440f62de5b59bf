"""What happens between two calls of a loop: reports, evaluations, checkpoints, the end of an epoch, and leaving when asked."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any, Dict, List, NoReturn, Optional

from worker_image import protocol, report
from worker_image.checkpoint import Checkpoints
from worker_image.course import Course
from worker_image.data import TrainingSet
from worker_image.evaluation import Evaluation
from worker_image.profiling import Profile
from worker_image.scalars import Scalars
from worker_image.strategies import Group
from worker_image.train_errors import TrainError


@dataclass(frozen=True)
class Saving:
    """When to write a checkpoint besides the ends of epochs: every so many steps, every so many seconds; 0 for never."""

    checkpoints: Checkpoints
    steps: int
    seconds: float
    layout: Dict[str, Any]


@dataclass(frozen=True)
class Evaluating:
    """The evaluation, and after every how many epochs there is one; 0 for at the end only."""

    evaluation: Evaluation
    epochs: int


class Training:
    """One training under way. Every worker calls `done` at the same steps."""

    def __init__(
        self,
        group: Group,
        training_set: TrainingSet,
        course: Course,
        evaluating: Evaluating,
        saving: Optional[Saving] = None,
        scalars: Optional[Scalars] = None,
        profile: Optional[Profile] = None,
    ) -> None:
        self.group = group
        self.course = course
        self.step = course.begin.step
        self.metrics: Dict[str, float] = {}  # of the newest evaluation
        self._training_set = training_set
        self._evaluating = evaluating
        self._saving = saving
        self._scalars = scalars
        self._profile = profile
        self._evaluated = -1
        self._saved_at = self._told_at = time.monotonic()

    def batches(self) -> Any:
        """A distributed dataset of all batches from here on."""
        place = self.course.place(self.step)
        return self._training_set.batches(place.epoch, place.examples, self.course.epochs)

    def next_stop(self) -> int:
        """The next step at which something is due: no call of several steps may go past it."""
        stops = [self.course.epoch_end(self.step)]
        if self._saving and self._saving.steps:
            stops.append((self.step // self._saving.steps + 1) * self._saving.steps)
        if self._profile:
            stops += [stop for stop in self._profile.stops() if stop > self.step]
        return min(stops)

    def stops(self) -> List[int]:
        """Numbers of steps from here that must all be whole numbers of calls, for a loop whose calls are equally long."""
        every = self._saving.steps if self._saving else 0
        saves = [every, every - self.step % every] if every else []
        return saves + [stop - self.step for stop in (self._profile.stops() if self._profile else []) if stop > self.step]

    def begin(self) -> None:
        """Called before the first step."""
        self._told_at = time.monotonic()
        if self._profile:
            self._profile.boundary(self.step)

    def done(self, step: int, metrics: Dict[str, float]) -> None:
        """Called after every call: report, evaluate, and save where it is due or asked for."""
        before, self.step = self.step, step
        self._report(before, metrics)
        if self._profile:
            self._profile.boundary(step)
        if self.course.ends_epoch(step):
            self._end_epoch(metrics)
        if self._saving:
            self._save_where_due(before, self._saving)

    def evaluate(self) -> Dict[str, float]:
        """The metrics of the test set with the weights of now."""
        if self._evaluated != self.step:
            with report.activity("evaluation"):
                self.metrics = self._evaluating.evaluation.metrics()
            self._evaluated = self.step
            if self._scalars:
                self._scalars.write(self.step, {f"test {name}": value for name, value in self.metrics.items()})
            self._told_at = time.monotonic()
        return self.metrics

    def close(self) -> None:
        """Called at the end, also of a training that failed."""
        if self._profile:
            self._profile.close()
        if self._scalars:
            self._scalars.close()

    def not_finite(self, step: int, loss: float, here: Optional[bool] = None) -> NoReturn:
        """The loss of some replica is no number; here: of this worker's, where that is known. Every worker calls it."""
        whose = ""
        if here is not None and self.group.workers > 1:
            whose = " of " + ", ".join(f"worker {i}" for i, bad in enumerate(self.group.gather(int(here))) if bad)
        raise TrainError(f"the loss{whose} is {loss} at step {step}; lower the learning rate, or look for bad values in the data")

    def say(self, text: str) -> None:
        """Tell people, once for all workers."""
        if self.group.chief:
            print(text, flush=True)

    def _report(self, before: int, metrics: Dict[str, float]) -> None:
        now = time.monotonic()
        examples = self._examples(self.step) - self._examples(before)
        rate = examples / max(now - self._told_at, 1e-6)
        self._told_at = now
        told = {**metrics, "examples/s": rate}
        report.progress(self.step, self.course.total, **told)
        if self._scalars:
            self._scalars.write(self.step, told)

    def _examples(self, step: int) -> int:
        place = self.course.place(step)
        return place.epoch * self._training_set.source.count + place.examples

    def _end_epoch(self, metrics: Dict[str, float]) -> None:
        epoch = self.course.place(self.step).epoch
        told = " ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        if self._evaluating.epochs and epoch % self._evaluating.epochs == 0:
            told += " · test " + " ".join(f"{name} {value:.4f}" for name, value in self.evaluate().items())
        self.say(f"epoch {epoch}/{self.course.epochs}: {told}")

    def _save_where_due(self, before: int, saving: Saving) -> None:
        asked = report.save_due()
        due = self.course.ends_epoch(self.step) or (saving.steps and self.step // saving.steps > before // saving.steps)
        if asked or due or self._time_is_up(saving):
            metrics = self.metrics if self._evaluated == self.step else {}
            with report.activity("checkpoint"):
                saving.checkpoints.save(self.course.place(self.step), saving.layout, metrics, wait=asked)
            self._saved_at = time.monotonic()
        if asked:
            report.saved(self.step)
            sys.exit(protocol.LEFT_AFTER_SAVE)

    def _time_is_up(self, saving: Saving) -> bool:
        """By the first worker's clock, since all must save at the same step."""
        if not saving.seconds:
            return False
        return bool(self.group.gather(int(time.monotonic() - self._saved_at >= saving.seconds))[0])
