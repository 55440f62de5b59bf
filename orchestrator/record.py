"""A group's state as the status document, and what the next controller takes from it. Pure.

The state machine counts on a monotonic clock that starts anew in each process, the document on the calendar: `Clocks` ties the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import groupby

from orchestrator import deadlines
from orchestrator.group import Before, Ending, Failure, Phase, Result, State
from orchestrator.status import FAILURES, RANGES, FailureRecord, ResultRecord, Status, WorkerRange, few, shortened


@dataclass(frozen=True)
class Clocks:
    """The same moment on both clocks: a monotonic time in seconds, and the time of day."""

    monotonic: float
    calendar: datetime

    @classmethod
    def now(cls, monotonic: float) -> Clocks:
        """This moment."""
        return cls(monotonic, datetime.now(timezone.utc))

    def date(self, monotonic: float) -> datetime:
        """A monotonic time as a date, to the millisecond."""
        return self.calendar + timedelta(seconds=round(monotonic - self.monotonic, 3))

    def time(self, date: datetime) -> float:
        """A date as a monotonic time."""
        return self.monotonic + (date - self.calendar).total_seconds()


def describe(state: State, clocks: Clocks) -> Status:
    """The status of a group at the moment of `clocks`."""
    result = state.result
    totals = [worker.beat.total for worker in state.workers if worker.beat.total is not None]
    waits = state.phase in (Phase.GATHERING, Phase.RESUMING)
    fresh = state.phase is Phase.RESUMING and not state.begun  # nobody has anything of an attempt
    return Status(
        written=clocks.date(clocks.monotonic),
        phase=Phase.GATHERING.value if fresh else state.phase.value,
        since=clocks.date(state.since),
        attempt=state.attempt,
        step=state.step_reached(),
        total=max(totals, default=None),
        metrics=few(state.workers[0].beat.metrics),
        waiting=shortened(deadlines.missing(state)) if waits else "",
        workers=_ranges(state),
        restarts=len(state.spent),
        allowed=state.policy.restarts,
        spent=tuple(map(clocks.date, state.spent)),
        furthest=state.furthest,
        fruitless=state.fruitless,
        failures=tuple(_record(failure) for failure in (*state.history, *state.failures)[-FAILURES:]),
        result=ResultRecord(ending=result.ending.name.lower(), reason=shortened(result.reason), exit_code=result.exit_code)
        if result
        else None,
    )


def before(status: Status | None, incarnations: list[tuple[int, int]], started: datetime, clocks: Clocks) -> Before:
    """What a new controller begins with: what the cluster tells, and what the one before it wrote, if there was one."""
    if status is None:
        return Before(tuple(incarnations), clocks.time(started))
    begun = status.phase in (Phase.RUNNING.value, Phase.ENDING.value, Phase.RESUMING.value)
    return Before(
        tuple(incarnations),
        clocks.time(started),
        known=True,
        attempt=status.attempt,
        begun=begun,
        history=tuple(Failure(f.worker, f.attempt, f.kind, f.text, f.place, f.step) for f in status.failures if f.attempt < status.attempt),
        spent=tuple(map(clocks.time, status.spent)),
        furthest=status.furthest,
        fruitless=status.fruitless,
        result=_result(status.result),
    )


def _result(written: ResultRecord | None) -> Result | None:
    if written is None:
        return None
    otherwise = Ending.FAILED if written.exit_code else Ending.SUCCEEDED  # what a newer controller may have written
    ending = Ending.__members__.get(written.ending.upper(), otherwise)
    return Result(ending, written.reason, signal=written.exit_code - 128 if ending is Ending.STOPPED else 0)


def _record(failure: Failure) -> FailureRecord:
    return FailureRecord(
        attempt=failure.attempt,
        worker=failure.worker,
        kind=failure.kind,
        text=shortened(failure.text),
        place=failure.place,
        step=failure.step,
    )


def _ranges(state: State) -> tuple[WorkerRange, ...]:
    """Workers in a row that are in the same state, as one entry: a document of a few lines for any number of workers."""
    found = []
    for (status, incarnation), group in groupby(enumerate(state.workers), key=lambda each: (each[1].status, each[1].incarnation)):
        members = list(group)
        steps = [worker.beat.step for _, worker in members if worker.beat.step is not None]
        first, last = members[0][0], members[-1][0]
        found.append(WorkerRange(first=first, last=last, state=status.value, incarnation=incarnation, step=min(steps, default=None)))
    return tuple(found[:RANGES])
