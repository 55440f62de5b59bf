"""What a training program may tell tfrun. Every call is harmless, and costs nothing, outside tfrun.

from worker_image import report

for step in range(total):
    ...
    report.progress(step + 1, total, loss=loss)
"""

from __future__ import annotations

import contextlib
from typing import ContextManager, Optional

from worker_image.link import Link


def progress(step: int, total: Optional[int] = None, **metrics: float) -> None:
    """Tell that `step` steps are done (of `total`, counted over all attempts), with metrics such as loss.

    A program that reports steps is restarted when it stops making them (the job file's deadlines.progress), and its failures
    count as new ones when it came further than before.
    """
    link = Link.here()
    if link:
        link.progress(int(step), total, {name: float(value) for name, value in metrics.items()})


def activity(name: str) -> ContextManager[None]:
    """While this context lasts ("evaluation", "checkpoint"), no step is expected."""
    link = Link.here()
    return link.activity(name) if link else contextlib.nullcontext()


def save_due() -> bool:
    """Call after every step (or call of several steps), the same number of times on every worker.

    False nearly always. True asks every worker for a checkpoint here and now, at the same step: write it, call `saved`, and leave with
    `sys.exit(42)`. May wait up to 10 s for the other workers.
    """
    link = Link.here()
    return link.boundary() if link else False


def saved(step: int) -> None:
    """This worker's part of the checkpoint of `step` is complete."""
    link = Link.here()
    if link:
        link.saved(step)
