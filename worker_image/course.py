"""Steps, epochs and examples of one training: which of them a number of steps done means. Pure."""

from __future__ import annotations

from typing import Protocol

from worker_image.checkpoint import Place


class Cut(Protocol):
    """How epochs are cut into steps; data.TrainingSet is one."""

    def steps(self, start: int) -> int:
        """How many steps the rest of an epoch has, of which `start` examples are consumed."""

    def consumed(self, start: int, steps: int) -> int:
        """How many examples of an epoch are consumed `steps` steps after `start` of them were."""


class Course:
    """From a place to the end of all epochs."""

    def __init__(self, cut: Cut, epochs: int, begin: Place) -> None:
        self._cut = cut
        if begin.examples and not cut.steps(begin.examples):  # what is left of the epoch is less than a step, and left out
            begin = Place(begin.step, begin.epoch + 1, 0)
        self.begin = begin
        self.epochs = epochs
        self.per_epoch = cut.steps(0)
        self._first_end = begin.step + cut.steps(begin.examples)
        whole = max(epochs - begin.epoch - 1, 0) * self.per_epoch
        self.total = self._first_end + whole if begin.epoch < epochs else begin.step

    def place(self, step: int) -> Place:
        """Where the training is after `step` steps, at least as many as it began with."""
        if step < self._first_end:
            return Place(step, self.begin.epoch, self._cut.consumed(self.begin.examples, step - self.begin.step))
        epochs, steps = divmod(step - self._first_end, self.per_epoch)
        return Place(step, self.begin.epoch + 1 + epochs, self._cut.consumed(0, steps))

    def epoch_end(self, step: int) -> int:
        """The first step after `step` with which an epoch ends."""
        if step < self._first_end:
            return self._first_end
        return step + self.per_epoch - (step - self._first_end) % self.per_epoch

    def ends_epoch(self, step: int) -> bool:
        """Whether an epoch ends with this step."""
        return step >= self._first_end and (step - self._first_end) % self.per_epoch == 0

    def starts_epoch(self, step: int) -> bool:
        """Whether an epoch's first step comes after this one."""
        return self.ends_epoch(step) or (step == self.begin.step and not self.begin.examples)
