"""Drives the state machine by hand: says what agents say, keeps what is to be done."""

from __future__ import annotations

from typing import Any

from orchestrator import state as machine
from orchestrator.events import Action, BeginAll, Disconnected, Event, Finish, Gone, Joined, Launch, Said, Send, StopAsked, Tell, Tick
from orchestrator.group import Before, Policy, Result, Status
from worker_image.protocol import Beat, Ended, Message, Ready


class Group:
    """A group with a clock that only the test moves."""

    def __init__(self, workers: int = 2, **policy: Any) -> None:
        self.at = 1000.0
        self.state, self.actions = machine.begin(Policy(workers=workers, **policy), self.at)

    def event(self, event: Event) -> list[Action]:
        self.state, self.actions = machine.step(self.state, event)
        return self.actions

    def later(self, seconds: float) -> list[Action]:
        """Let time pass in ticks, with a beat of every connected worker each second; returns all actions."""
        actions: list[Action] = []
        until = self.at + seconds
        while self.at < until:
            self.at = min(until, self.at + 0.5)
            for worker in range(len(self.state.workers)):
                if self.state.workers[worker].status not in (Status.AWAITED, Status.LOST):
                    actions += self.event(Said(self.at, worker, self.state.workers[worker].beat))
            actions += self.event(Tick(self.at))
        return actions

    def silence(self, seconds: float) -> list[Action]:
        """Let time pass without a word from anyone."""
        self.at += seconds
        return self.event(Tick(self.at))

    def join(self, *workers: int, attempt: int = -1, holds: str = "") -> list[Action]:
        return [a for w in workers for a in self.event(Joined(self.at, w, attempt, holds))]

    def new_controller(self, **told: Any) -> Group:
        """The controller is lost; what the next one begins with. told: fields of Before beside what it knows of a running group."""
        old = self.state
        incarnations = tuple((worker.incarnation, worker.launched) for worker in old.workers)
        before = {"known": True, "attempt": old.attempt, "begun": old.begun, "history": old.history, "spent": old.spent, **told}
        self.state, self.actions = machine.resume(old.policy, self.at, Before(incarnations, old.started, **before))
        return self

    def say(self, worker: int, message: Message) -> list[Action]:
        return self.event(Said(self.at, worker, message))

    def ready(self, *workers: int) -> list[Action]:
        return [a for w in workers for a in self.say(w, Ready(self.state.attempt, f"127.0.0.1:{9000 + w}"))]

    def beat(self, worker: int, **fields: Any) -> list[Action]:
        return self.say(worker, Beat(**fields))

    def ended(
        self, worker: int, kind: str, text: str = "", place: str = "", step: int | None = None, attempt: int | None = None
    ) -> list[Action]:
        attempt = self.state.attempt if attempt is None else attempt
        return self.say(worker, Ended(kind, text or kind, place, step=step, attempt=attempt))

    def disconnect(self, worker: int) -> list[Action]:
        return self.event(Disconnected(self.at, worker, self.state.workers[worker].incarnation))

    def gone(self, worker: int, why: str = "its agent was killed by SIGKILL") -> list[Action]:
        return self.event(Gone(self.at, worker, self.state.workers[worker].incarnation, why))

    def stop(self, number: int = 2) -> list[Action]:
        return self.event(StopAsked(self.at, number))

    def run(self) -> Group:
        """Gather and begin."""
        everyone = range(len(self.state.workers))
        self.join(*everyone)
        self.ready(*everyone)
        assert self.begun(), self.actions
        return self

    def restart(self) -> None:
        """After a failure was settled: everyone is ready again."""
        self.join(*self.state.having(Status.AWAITED))
        self.ready(*self.state.having(Status.PREPARING))

    def begun(self) -> bool:
        return any(isinstance(a, BeginAll) for a in self.actions)

    @property
    def result(self) -> Result | None:
        return self.state.result


def sent(actions: list[Action], kind: type[Message]) -> list[int]:
    """The workers that are sent a message of this kind."""
    return [a.worker for a in actions if isinstance(a, Send) and isinstance(a.message, kind)]


def launched(actions: list[Action]) -> list[tuple[int, int]]:
    """The incarnations that are launched."""
    return [(a.worker, a.incarnation) for a in actions if isinstance(a, Launch)]


def told(actions: list[Action]) -> str:
    """What the user is told."""
    return "\n".join(a.text for a in actions if isinstance(a, Tell))


def finished(actions: list[Action]) -> bool:
    return any(isinstance(a, Finish) for a in actions)
