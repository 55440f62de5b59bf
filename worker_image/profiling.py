"""A profile of some steps, for TensorBoard's profile tab."""

from __future__ import annotations

import os
import sys
from typing import Any, Callable, List

from worker_image.scalars import first_line


class Profile:
    """The steps `first` .. `last`, counted from 1, profiled into `directory` (which may also be a bucket's address), once in a process.

    Call `boundary` between calls of several steps, the first time before the first one, and have calls end at each of `stops()`; at the end
    `close`. A run that resumes between the two steps profiles what is left of them. here: whether this process is the one that is profiled;
    the others have the same stops, and nothing else: several workers of one machine would write the same file.
    """

    def __init__(self, directory: str, first: int, last: int, here: bool = True) -> None:
        self._directory = directory
        self._first = first
        self._last = last
        self._began = 0  # the first step that is in the profile; 0: none
        self._over = not here
        self._step = 0

    def stops(self) -> List[int]:
        """The numbers of steps done at which `boundary` has something to do."""
        return [self._first - 1, self._last]

    def boundary(self, step: int) -> None:
        """`step` steps are done, and the next call has not begun."""
        self._step = step
        if self._began and step >= self._last:
            self._stop()
        elif not self._began and not self._over and self._first - 1 <= step < self._last:
            self._start(step)

    def close(self) -> None:
        """The training ends, perhaps before the last step that was to be profiled; a profile of no step is not kept."""
        if self._began and self._step >= self._began:
            self._stop()
        elif self._began:
            self._began = 0
            self._worked(lambda: _profiler().stop(save=False), "can't be ended")

    def _start(self, step: int) -> None:
        if self._worked(lambda: _profiler().start(self._directory), "did not start"):
            self._began = step + 1
        else:
            self._over = True

    def _stop(self) -> None:
        began, self._began, self._over = self._began, 0, True
        if self._worked(_profiler().stop, "can't be written"):
            where = os.path.join(self._directory, "plugins", "profile")
            print(f"profile of the steps {began} to {self._step}: {where} (tensorboard --logdir {self._directory})", flush=True)

    def _worked(self, work: Callable[[], Any], what: str) -> bool:
        """A profile is never worth a training: what goes wrong is told, and that is all."""
        import tensorflow as tf

        try:
            work()
        except (OSError, RuntimeError, tf.errors.OpError) as e:
            print(f"train: the profile {what} ({first_line(e)}); the training goes on without it", file=sys.stderr, flush=True)
            return False
        return True


def _profiler() -> Any:
    """Late: whoever reads the options needs no TensorFlow."""
    import tensorflow as tf

    return tf.profiler.experimental
