"""The state machine under random histories: agents, programs and controllers that live and die as they please."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timezone

import hypothesis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from orchestrator import record
from orchestrator import state as machine
from orchestrator.events import Action, BeginAll, Disconnected, Gone, Joined, Launch, Remove, Said, Send, StopAsked, Tick
from orchestrator.group import Phase, Policy
from orchestrator.record import Clocks
from orchestrator.status import Status, parse
from worker_image.protocol import AskSave, Beat, Begin, Dismiss, End, Ended, Leaving, Message, Prepare, Ready, SaveTarget

WORKERS = 3
POLICY = Policy(workers=WORKERS, restarts=3, within=1e9, start=1e9, run=1e9)
KINDS = ["done", "error", "signal", "memory", "peer", "preempted"]
NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


@dataclass
class Agent:
    """A simulated agent: what it was told and has not read, whether it is connected, what it has of which attempt."""

    alive: bool = True
    connected: bool = False
    deaf: bool = False
    leaving: bool = False
    orders: deque[Message] = field(default_factory=deque)
    attempt: int = -1
    begun: int = -1
    prepared: bool = False
    running: bool = False
    last: Ended | None = None

    def held(self) -> tuple[int, str]:
        if self.running:
            return self.attempt, "running"
        return (self.attempt, "ended") if self.last else (self.begun, "")


class Histories(RuleBasedStateMachine):
    """Never two live attempts; the budget is kept; and there is always an end."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0.0
        self.agents: dict[tuple[int, int], Agent] = {}
        self.removing: set[tuple[int, int]] = set()
        self.untold: list[tuple[int, int]] = []  # agents that are gone, of which the backend is yet to tell
        self.written: str | None = None
        self.state, actions = machine.begin(POLICY, self.at)
        self.carry_out(actions)

    # ---- the world ----

    def event(self, event: machine.Event) -> None:
        before = self.state
        self.state, actions = machine.step(self.state, event)
        assert self.state.attempt >= before.attempt
        hypothesis.event(f"reached attempt {self.state.attempt}, {self.state.phase.value}")
        self.carry_out(actions)

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Launch(worker, incarnation):
                    self.launch((worker, incarnation))
                case Remove(worker, incarnation):
                    self.removing.add((worker, incarnation))
                case Send(worker, message):
                    self.order(worker, message)
                case BeginAll(attempt, addresses):
                    assert len(addresses) == WORKERS
                    live = self.live()
                    assert not live, f"attempt {attempt} begins while {live} lives"
                    known = {agent.begun for agent in self.agents.values() if agent.alive}
                    assert attempt not in known, "a number is used twice"
                    for worker in range(WORKERS):
                        assert (worker, self.state.workers[worker].incarnation) not in self.removing, (
                            "one that is given up is in the attempt"
                        )
                        self.order(worker, Begin(attempt, {}))

    def launch(self, identity: tuple[int, int]) -> None:
        """As the backend does it: what is there is watched, what is gone is told."""
        found = self.agents.setdefault(identity, Agent())
        if not found.alive:
            self.untold.append(identity)

    def live(self) -> set[int]:
        return {agent.attempt for agent in self.agents.values() if agent.alive and agent.running}

    def current(self, worker: int) -> Agent:
        return self.agents[worker, self.state.workers[worker].incarnation]

    def order(self, worker: int, message: Message) -> None:
        agent = self.current(worker)
        if agent.connected:
            agent.orders.append(message)

    def say(self, worker: int, message: Message) -> None:
        agent = self.current(worker)
        if agent.alive and agent.connected and not agent.deaf:
            self.event(Said(self.at, worker, message))

    def obey(self, worker: int) -> None:
        agent = self.current(worker)
        if not (agent.alive and agent.orders):
            return
        order = agent.orders.popleft()
        if isinstance(order, Prepare):
            agent.attempt, agent.prepared, agent.running, agent.last = order.attempt, True, False, None
            self.say(worker, Ready(order.attempt, f"host:{worker}"))
        elif isinstance(order, Begin) and agent.prepared and agent.attempt == order.attempt:
            agent.prepared, agent.running, agent.begun = False, True, order.attempt
        elif isinstance(order, End) and order.attempt == agent.attempt:
            self.end_child(worker, "ended")
        elif isinstance(order, AskSave):
            self.say(worker, SaveTarget(5))
        elif isinstance(order, Dismiss):
            self.die((worker, self.state.workers[worker].incarnation))

    def end_child(self, worker: int, kind: str, step: int | None = None, place: str = "") -> None:
        agent = self.current(worker)
        if agent.prepared or agent.running:
            agent.prepared = agent.running = False
            agent.last = Ended(kind, kind, place or kind, step=step, attempt=agent.attempt)
            self.say(worker, agent.last)

    def die(self, identity: tuple[int, int]) -> None:
        agent = self.agents[identity]
        self.removing.discard(identity)
        if agent.alive:
            agent.alive = agent.connected = agent.prepared = agent.running = False
            self.event(Gone(self.at, *identity, "died"))

    # ---- what may happen ----

    workers = st.integers(0, WORKERS - 1)

    @rule(worker=workers)
    def an_agent_joins(self, worker: int) -> None:
        incarnation = self.state.workers[worker].incarnation
        agent = self.current(worker)
        if agent.alive and not agent.connected and not agent.deaf and machine.refusal(self.state, worker, incarnation) is None:
            agent.connected = True
            agent.orders.clear()
            self.event(Joined(self.at, worker, *agent.held()))
            if agent.last and not (agent.prepared or agent.running):
                self.say(worker, agent.last)
            if agent.leaving:
                self.say(worker, Leaving())

    @rule()
    def the_status_is_written(self) -> None:
        self.written = record.describe(self.state, Clocks(self.at, NOON)).text()

    @rule()
    def the_controller_is_lost(self) -> None:
        """What it has not written is forgotten, and so is what it was about to do; the cluster knows what it has launched."""
        over = self.state.phase is Phase.OVER
        if over:  # a result is written before anyone is let go
            self.the_status_is_written()
        for agent in self.agents.values():
            agent.connected = False
        self.removing.clear()
        self.untold.clear()
        known = []
        for worker in range(WORKERS):
            all_of_it = [incarnation for each, incarnation in self.agents if each == worker]
            living = [incarnation for incarnation in all_of_it if self.agents[worker, incarnation].alive]
            known.append((min(living, default=max(all_of_it)), max(all_of_it)))
        told: Status | None = parse(self.written)
        self.state, actions = machine.resume(POLICY, self.at, record.before(told, known, NOON, Clocks(self.at, NOON)))
        assert (self.state.phase is Phase.OVER) == over, "a job that was over is not begun again"
        self.carry_out(actions)

    @rule()
    @precondition(lambda self: self.untold)
    def the_backend_tells_of_those_that_are_gone(self) -> None:
        untold, self.untold = self.untold, []
        for identity in untold:
            self.event(Gone(self.at, *identity, "its pod was deleted"))

    @rule(worker=workers)
    def an_agent_reads_an_order(self, worker: int) -> None:
        self.obey(worker)

    @rule(rounds=st.integers(1, 6))
    def everyone_does_as_told(self, rounds: int) -> None:
        for _ in range(rounds):
            for worker in range(WORKERS):
                self.an_agent_joins(worker)
                self.obey(worker)

    @rule(worker=workers, kind=st.sampled_from(KINDS), step=st.none() | st.integers(0, 20))
    def a_program_ends(self, worker: int, kind: str, step: int | None) -> None:
        self.end_child(worker, kind, step)

    @rule(worker=workers, place=st.sampled_from("abcde"), step=st.integers(0, 1000))
    def an_attempt_fails(self, worker: int, place: str, step: int) -> None:
        self.everyone_does_as_told(6)
        self.end_child(worker, "error", step, place)

    @rule(worker=workers)
    def an_agent_dies(self, worker: int) -> None:
        if self.current(worker).attempt >= 0:
            self.die((worker, self.state.workers[worker].incarnation))

    @rule(worker=workers)
    def a_successor_dies(self, worker: int) -> None:
        known = self.state.workers[worker]
        if known.launched > known.incarnation and known.stillborn == 0:
            self.die((worker, known.launched))

    @rule(worker=workers)
    def a_connection_breaks(self, worker: int) -> None:
        agent = self.current(worker)
        if agent.alive and agent.connected:
            agent.connected = False
            self.event(Disconnected(self.at, worker, self.state.workers[worker].incarnation))

    @rule(worker=workers)
    def an_agent_falls_silent(self, worker: int) -> None:
        agent = self.current(worker)
        agent.deaf = agent.deaf or agent.running

    @rule(worker=workers, beat=st.builds(Beat, step=st.none() | st.integers(0, 20), saver=st.booleans(), stopped=st.booleans()))
    def a_program_reports(self, worker: int, beat: Beat) -> None:
        self.say(worker, beat)

    @rule(worker=workers)
    def an_agent_is_told_to_leave(self, worker: int) -> None:
        self.current(worker).leaving = True
        self.say(worker, Leaving())

    @rule(worker=workers)
    @precondition(lambda self: self.removing)
    def the_backend_removes(self, worker: int) -> None:
        for identity in [each for each in self.removing if each[0] == worker]:
            self.die(identity)

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.at += seconds
        for worker in range(WORKERS):
            self.say(worker, Beat(busy=self.at))
        self.event(Tick(self.at))

    @rule()
    @precondition(lambda self: self.state.attempt > 2)
    def the_user_stops(self) -> None:
        self.event(StopAsked(self.at, 2))

    # ---- what must hold ----

    @invariant()
    def one_attempt_lives(self) -> None:
        assert len(self.live()) <= 1

    @invariant()
    def a_worker_runs_once(self) -> None:
        running = [worker for (worker, _), agent in self.agents.items() if agent.alive and agent.running]
        assert len(running) == len(set(running))

    @invariant()
    def the_budget_is_kept(self) -> None:
        assert len(self.state.spent) <= POLICY.restarts

    def teardown(self) -> None:
        """Whatever happened: if everyone works from now on, the job ends."""
        for _ in range(400):
            if self.state.phase is Phase.OVER:
                break
            self.the_backend_tells_of_those_that_are_gone()
            for worker in range(WORKERS):
                if self.current(worker).deaf and not self.current(worker).connected:
                    self.die((worker, self.state.workers[worker].incarnation))
                self.an_agent_joins(worker)
                self.obey(worker)
                self.say(worker, Beat(busy=self.at))
                if self.current(worker).running:
                    self.end_child(worker, "done")
            for identity in list(self.removing):
                self.die(identity)
            self.time_passes(1.0)
        assert self.state.phase is Phase.OVER
        assert self.state.result


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
