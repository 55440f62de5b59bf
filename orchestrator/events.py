"""What can happen to a group, and what is to be done about it. `at` is a monotonic time in seconds."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.group import Result
from worker_image import protocol


@dataclass(frozen=True)
class Event:
    """Base of every event."""

    at: float


@dataclass(frozen=True)
class Tick(Event):
    """Time passed."""


@dataclass(frozen=True)
class Paused(Event):
    """This process did not run for `lasted` seconds (Ctrl-Z, a laptop's sleep): nobody could have been heard."""

    lasted: float


@dataclass(frozen=True)
class Joined(Event):
    """An authenticated agent, of the incarnation that is awaited (see state.refusal). attempt, holds: see protocol.Join."""

    worker: int
    attempt: int = -1
    holds: str = ""


@dataclass(frozen=True)
class Said(Event):
    """An agent sent a message."""

    worker: int
    message: protocol.Message


@dataclass(frozen=True)
class Disconnected(Event):
    """The connection of this incarnation's agent is closed."""

    worker: int
    incarnation: int


@dataclass(frozen=True)
class Gone(Event):
    """The backend: nothing of this incarnation is left. why: how its agent ended.

    kind: "lost"; "memory", it needed more than it has; "node", its node never took it, which says nothing of it.
    """

    worker: int
    incarnation: int
    why: str
    kind: str = "lost"


@dataclass(frozen=True)
class Leaves(Event):
    """The backend: this incarnation was told to go (an eviction, a lost node); `Gone` follows."""

    worker: int
    incarnation: int
    why: str


@dataclass(frozen=True)
class Waits(Event):
    """The backend: why this incarnation's agent does not run yet; empty if nothing is in its way."""

    worker: int
    incarnation: int
    why: str


@dataclass(frozen=True)
class StopAsked(Event):
    """Ctrl-C or SIGTERM to the controller."""

    signal: int


@dataclass(frozen=True)
class Action:
    """Base of every action."""


@dataclass(frozen=True)
class Launch(Action):
    """Have the backend start this worker's agent."""

    worker: int
    incarnation: int


@dataclass(frozen=True)
class Remove(Action):
    """Have the backend end whatever is left of this incarnation, and report Gone."""

    worker: int
    incarnation: int


@dataclass(frozen=True)
class Send(Action):
    """Send a message to one worker's agent."""

    worker: int
    message: protocol.Message


@dataclass(frozen=True)
class BeginAll(Action):
    """Start the attempt on every worker, at these addresses in the order of the indices."""

    attempt: int
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Tell(Action):
    """One line for the user."""

    text: str
    topic: str = ""


@dataclass(frozen=True)
class Finish(Action):
    """The job is over."""

    result: Result
