"""What runs inside a worker: the agent, the launcher of the user's program, and the shared training entrypoint.

Everything here but the training entrypoint is standard library only and runs on Python 3.9 and newer, because it goes into other
people's images. A script of one's own may use `strategy`, `resume` and `report`:

    import worker_image

    strategy = worker_image.strategy()
    with strategy.scope():
        model, optimizer = ...
    training = worker_image.resume(model=model, optimizer=optimizer, every=100)
    for step in range(training.step, total):
        loss = train_step(...)
        training.stepped(step + 1, total, loss=loss)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worker_image import report
    from worker_image.script import resume, strategy

__all__ = ["report", "resume", "strategy"]


def __getattr__(name: str) -> Any:
    """Late: the agent and the launcher must not load what only a training needs."""
    import importlib

    if name == "report":
        return importlib.import_module("worker_image.report")
    if name in ("resume", "strategy"):
        return getattr(importlib.import_module("worker_image.script"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
