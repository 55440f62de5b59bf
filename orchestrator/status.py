"""What a controller writes down of its job, for the command line and for the controller after it: one JSON document.

It is the annotation `tfrun.dev/status` of the controller's Job, so that it is written with one request, and goes when the job goes. What
the cluster knows itself (pods, nodes, images) is not in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from itertools import islice
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

VERSION = 1
RANGES = 1_000  # ranges of workers that are written at most: an object's annotations hold 256 KB
FAILURES = 50  # that are kept
METRICS = 20  # that are written
_NAME = 100  # characters of a metric's name; one with more is left out
_TEXT = 400  # characters of a failure's text


class _Plain(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")  # a newer controller may say more


class WorkerRange(_Plain):
    """Workers in a row that are in the same state. first, last: indices, inclusive. step: the smallest that one of them reported."""

    first: int
    last: int
    state: Literal["awaited", "lost", "joined", "preparing", "ready", "running", "done", "ending"]
    incarnation: int
    step: int | None = None


class FailureRecord(_Plain):
    """The cause of the end of one attempt."""

    attempt: int
    worker: int
    kind: str
    text: str
    place: str = ""
    step: int | None = None


class ResultRecord(_Plain):
    """How the job ended. ending: succeeded, failed, not_launched, deadline or stopped."""

    ending: str
    reason: str
    exit_code: int


class Status(_Plain):
    """The whole job. Times are UTC.

    phase: resuming (a new controller asks the workers where they are), gathering, running, ending or over. since: when the phase began.
    waiting: whom or what a gathering group waits for, as part of a sentence. restarts: how many of the `allowed` ones are spent, and when.
    metrics: the chief's last ones. furthest: the largest step of earlier attempts. fruitless: failures in a row that came no further.
    """

    version: int = VERSION
    written: datetime
    phase: Literal["resuming", "gathering", "running", "ending", "over"]
    since: datetime
    attempt: int
    step: int | None = None
    total: int | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    waiting: str = ""
    workers: tuple[WorkerRange, ...] = ()
    restarts: int = 0
    allowed: int = 0
    spent: tuple[datetime, ...] = ()
    furthest: int | None = None
    fruitless: int = 0
    failures: tuple[FailureRecord, ...] = ()
    result: ResultRecord | None = None

    def text(self) -> str:
        """As it is stored."""
        return self.model_dump_json(exclude_defaults=True)


def parse(text: str | None) -> Status | None:
    """A stored status; None where there is none yet, or none that this version understands."""
    try:
        return Status.model_validate_json(text) if text else None
    except ValidationError:
        return None


def few(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics as they are stored. JSON knows no NaN, and a document with one could not be read again."""
    fit = {name: float(f"{value:.6g}") for name, value in metrics.items() if math.isfinite(value) and len(name) <= _NAME}
    return dict(islice(fit.items(), METRICS))


def shortened(text: str) -> str:
    """A failure's text as it is stored."""
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 1]}…"
