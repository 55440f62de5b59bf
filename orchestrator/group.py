"""What is known of a group of workers: plain, frozen data for the state machine in state.py."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from worker_image.protocol import Beat

if TYPE_CHECKING:
    from orchestrator.spec import JobSpec


class Phase(Enum):
    """Where the whole group is."""

    RESUMING = "resuming"  # this controller follows another one, and learns from the agents what they are doing
    GATHERING = "gathering"
    RUNNING = "running"
    ENDING = "ending"  # an attempt is being ended on every worker
    OVER = "over"


class Status(Enum):
    """Where one worker is."""

    AWAITED = "awaited"  # its agent was launched and has not joined
    LOST = "lost"  # its agent is gone or given up, and the backend has not yet confirmed that nothing of it is left
    JOINED = "joined"  # connected, no child wanted from it at the moment
    PREPARING = "preparing"  # told to get a child ready
    READY = "ready"  # a child is imported and waits for the start
    RUNNING = "running"
    DONE = "done"  # its program ended with 0 in this attempt
    ENDING = "ending"  # its child is being ended


CONNECTED = frozenset(Status) - {Status.AWAITED, Status.LOST}
HAS_LIVE_PROGRAM = frozenset({Status.RUNNING, Status.ENDING, Status.LOST})


class Ending(Enum):
    """How a job can end, with tfrun's exit code."""

    SUCCEEDED = 0
    FAILED = 1
    NOT_LAUNCHED = 3
    DEADLINE = 4
    STOPPED = -1  # 128 + the signal


@dataclass(frozen=True)
class Policy:
    """What the job allows; times in seconds.

    restarts, within: at most so many program failures in so long. progress: no step for this long, and five times the longest pause
    so far, while every worker is idle, is a stall. grace: from asking the programs to end until they are killed.
    """

    workers: int
    restarts: int = 10
    within: float = 3600.0
    start: float = 600.0
    run: float = 86400.0
    progress: float = 10.0
    silence: float = 6.0
    frozen: float = 60.0
    grace: float = 10.0

    @classmethod
    def of(cls, job: JobSpec) -> Policy:
        """What a job says; the rest is as above."""
        restarts, deadlines = job.restarts, job.deadlines
        return cls(
            workers=job.workers,
            restarts=restarts.max,
            within=restarts.within,
            start=deadlines.start,
            run=deadlines.run,
            progress=deadlines.progress,
        )


@dataclass(frozen=True)
class Failure:
    """A finding against an attempt; kinds as in protocol.Outcome, and "lost", "silent", "frozen", "stalled"."""

    worker: int
    attempt: int
    kind: str
    text: str
    place: str = ""
    step: int | None = None

    def __str__(self) -> str:
        at = f" ({self.place.rpartition(' at ')[2]})" if " at " in self.place else ""
        return f"worker {self.worker} {self.text}{at}"


@dataclass(frozen=True)
class Worker:
    """One worker. heard: when its agent last spoke; moved: when its program last made a step or was at something else.

    launched: its newest incarnation; when that is not the current one, it is the successor of one that is leaving or lost, and waits for
    its end. waits: why the agent does not run yet. stale: the attempt of its child, where that is none of this controller's.
    """

    status: Status = Status.AWAITED
    incarnation: int = 0
    launched: int = 0
    joined_before: bool = False
    stillborn: int = 0
    leaving: str = ""
    waits: str = ""
    stale: int | None = None
    address: str = ""
    heard: float = 0.0
    beat: Beat = field(default_factory=Beat)
    moved: float = 0.0
    idle_since: float = 0.0
    stopped_since: float | None = None
    first: tuple[float, int, float] | None = None  # (at, step, busy) of the first step that was reported in this attempt


@dataclass(frozen=True)
class Saving:
    """A coordinated save under way (worker_image/protocol.py tells how)."""

    leader: int
    noted: frozenset[int] = frozenset()
    saved: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Result:
    """How the job ended, and why in one sentence."""

    ending: Ending
    reason: str
    signal: int = 0

    @property
    def exit_code(self) -> int:
        """The exit code of tfrun itself."""
        return 128 + self.signal if self.ending is Ending.STOPPED else self.ending.value


@dataclass(frozen=True)
class Before:
    """What is left of the controllers before this one. Times are on this one's clock.

    incarnations: the current and the newest one of each worker. started: when the job did. known: whether an earlier controller told
    anything; then attempt, begun and the rest are what it told. result: the job is over, and only its workers are left to be let go.
    """

    incarnations: tuple[tuple[int, int], ...]
    started: float
    known: bool = False
    attempt: int = 0
    begun: bool = False
    history: tuple[Failure, ...] = ()
    spent: tuple[float, ...] = ()
    furthest: int | None = None
    fruitless: int = 0
    result: Result | None = None


@dataclass(frozen=True)
class State:
    """The whole group.

    since: when the phase began. failures: the findings against this attempt in order of arrival. history: the cause of each attempt that
    failed. spent: when a restart was taken from the budget. furthest: the largest step of earlier attempts. fruitless: failures in a row
    that came no further. not_before: back-off until then. end_at: programs that have not ended by themselves are ended then.
    """

    policy: Policy
    workers: tuple[Worker, ...]
    started: float
    since: float
    phase: Phase = Phase.GATHERING
    attempt: int = 0
    begun: bool = False
    failures: tuple[Failure, ...] = ()
    history: tuple[Failure, ...] = ()
    spent: tuple[float, ...] = ()
    furthest: int | None = None
    fruitless: int = 0
    not_before: float = 0.0
    end_at: float | None = None
    saving: Saving | None = None
    stopping: int = 0
    told_missing: float = 0.0
    told_straggler: bool = False
    result: Result | None = None

    def change(self, index: int, **fields: Any) -> State:
        """The same group with one worker changed."""
        workers = list(self.workers)
        workers[index] = replace(workers[index], **fields)
        return replace(self, workers=tuple(workers))

    def having(self, *statuses: Status) -> list[int]:
        """The indices of the workers with one of these statuses."""
        return [i for i, worker in enumerate(self.workers) if worker.status in statuses]

    def step_reached(self) -> int | None:
        """The largest step that any worker reported in this attempt."""
        steps = [w.beat.step for w in self.workers] + [f.step for f in self.failures]
        return max((s for s in steps if s is not None), default=None)


def indices(workers: list[int]) -> str:
    """Such as "worker 3", "workers 0 and 2", "workers 0, 1, 2 and 17 others": short enough for a line."""
    if len(workers) == 1:
        return f"worker {workers[0]}"
    shown = workers if len(workers) <= 8 else workers[:7]
    last = str(shown[-1]) if len(shown) == len(workers) else f"{len(workers) - len(shown)} others"
    rest = shown[:-1] if len(shown) == len(workers) else shown
    return f"workers {', '.join(map(str, rest))} and {last}"
