"""Pieces of the training entrypoint for a script of one's own: `worker_image.strategy()` and `worker_image.resume(...)`."""

from __future__ import annotations

import os
import sys
from typing import Any, List, Optional

from worker_image import checkpoint_files, protocol, report, strategies
from worker_image.checkpoint import Checkpoints, Place
from worker_image.strategies import Group

_made: List[Group] = []  # by strategy(): resume needs to know who else is there


def strategy(name: str = "auto", communication: str = "auto") -> Any:
    """The tf.distribute.Strategy that fits: TPU, several workers (TF_CONFIG), several GPUs, or TensorFlow's default; call it first of all.

    With several workers this waits until all of them are there. name, communication: as the entrypoint's options. Raises
    WrongInputError where what is asked for is not there.
    """
    import tensorflow as tf

    choice = strategies.choose(name, os.environ, len(tf.config.list_physical_devices("GPU")))
    choice, group = strategies.create(choice, os.environ, communication)
    if group.chief:
        print(*strategies.described(choice, group), sep="\n", flush=True)
    _made.append(group)
    return group.strategy


def resume(directory: Optional[str] = None, every: int = 0, keep: int = 3, **objects: Any) -> Resumed:
    """Load the newest checkpoint of these objects (model=model, optimizer=optimizer), which must have all of their variables.

    directory: shared by all workers; by default TFRUN_CHECKPOINT_DIR, else nothing is saved. every: steps between two checkpoints; 0 for
    when tfrun asks for one. Every worker calls it, after `strategy()`. Raises TrainError for checkpoints that don't fit.
    """
    import tensorflow as tf

    group = _made[-1] if _made else Group(tf.distribute.get_strategy())
    directory = directory or os.environ.get("TFRUN_CHECKPOINT_DIR")
    if not directory:
        return Resumed(None, 0, every)
    checkpoint_files.prepare_directory(directory)
    checkpoints = Checkpoints.of(directory, group, objects, keep=keep)
    restored = checkpoints.restore()
    return Resumed(checkpoints, restored.place.step if restored else 0, every)


class Resumed:
    """A training that goes on where its checkpoints end: after `step` steps."""

    def __init__(self, checkpoints: Optional[Checkpoints], step: int, every: int) -> None:
        self.step = step
        self._checkpoints = checkpoints
        self._every = every

    def stepped(self, step: int, total: Optional[int] = None, **metrics: float) -> None:
        """Call after every step (or call of several steps), on every worker: reports it, saves where that is due, and leaves if asked."""
        before, self.step = self.step, step
        report.progress(step, total, **metrics)
        asked = report.save_due()
        last = step == total
        if self._checkpoints:
            if asked or last or (self._every and step // self._every > before // self._every):
                with report.activity("checkpoint"):
                    self._checkpoints.save(Place(step, 0, 0), {}, {}, wait=asked)
            if last:
                self._checkpoints.close()
            if asked:
                report.saved(step)
                sys.exit(protocol.LEFT_AFTER_SAVE)
