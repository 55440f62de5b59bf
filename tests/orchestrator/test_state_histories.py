"""The state machine under random histories: agents and programs that live and die as they please."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import hypothesis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from orchestrator import state as machine
from orchestrator.events import Action, BeginAll, Disconnected, Gone, Joined, Launch, Remove, Said, Send, StopAsked, Tick
from orchestrator.group import Phase, Policy
from orchestrator.restarts import FREE
from worker_image.protocol import AskSave, Beat, Begin, Dismiss, End, Ended, Leaving, Message, Prepare, Ready, SaveTarget

WORKERS = 3
POLICY = Policy(workers=WORKERS, restarts=3, within=1e9, start=1e9, run=1e9)
KINDS = ["done", "error", "signal", "memory", "peer", "preempted"]


@dataclass
class Agent:
    """A simulated agent: what it was told and has not read, whether it is connected, the attempt that its child belongs to."""

    incarnation: int
    alive: bool = True
    connected: bool = False
    deaf: bool = False
    orders: deque[Message] = field(default_factory=deque)
    prepared: int | None = None
    running: int | None = None


class Histories(RuleBasedStateMachine):
    """Never two live attempts; the budget is kept; and there is always an end."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0.0
        self.agents: dict[int, Agent | None] = dict.fromkeys(range(WORKERS))
        self.removing: set[int] = set()
        self.state, actions = machine.begin(POLICY, self.at)
        self.carry_out(actions)

    # ---- the world ----

    def event(self, event: machine.Event) -> None:
        before = self.state
        self.state, actions = machine.step(self.state, event)
        assert self.state.attempt - before.attempt in (0, 1)
        hypothesis.event(f"reached attempt {self.state.attempt}, {self.state.phase.value}")
        self.carry_out(actions)

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Launch(worker, incarnation):
                    old = self.agents[worker]
                    assert old is None or not old.alive, "two incarnations of a worker at once"
                    self.agents[worker] = Agent(incarnation)
                    self.removing.discard(worker)
                case Remove(worker, incarnation):
                    agent = self.agents[worker]
                    assert agent is None or not agent.alive or agent.incarnation == incarnation
                    self.removing.add(worker)
                case Send(worker, message):
                    self.order(worker, message)
                case BeginAll(attempt, addresses):
                    assert len(addresses) == WORKERS
                    live = {a.running for a in self.agents.values() if a and a.alive and a.running is not None}
                    assert not live, f"attempt {attempt} begins while {live} lives"
                    assert not self.removing, "an attempt begins without a worker that is given up"
                    for worker in range(WORKERS):
                        self.order(worker, Begin(attempt, {}))

    def order(self, worker: int, message: Message) -> None:
        agent = self.agents[worker]
        if agent and agent.connected:
            agent.orders.append(message)

    def say(self, worker: int, message: Message) -> None:
        agent = self.agents[worker]
        if agent and agent.alive and agent.connected and not agent.deaf:
            self.event(Said(self.at, worker, message))

    def obey(self, worker: int) -> None:
        agent = self.agents[worker]
        if not (agent and agent.alive and agent.orders):
            return
        order = agent.orders.popleft()
        if isinstance(order, Prepare):
            agent.prepared = order.attempt
            self.say(worker, Ready(order.attempt, f"host:{worker}"))
        elif isinstance(order, Begin) and agent.prepared == order.attempt:
            agent.running = order.attempt
        elif isinstance(order, End) and order.attempt in (agent.running, agent.prepared):
            self.end_child(worker, "ended")
        elif isinstance(order, AskSave):
            self.say(worker, SaveTarget(5))
        elif isinstance(order, Dismiss):
            self.die(worker)

    def end_child(self, worker: int, kind: str, step: int | None = None, place: str = "") -> None:
        agent = self.agents[worker]
        attempt = agent.running if agent and agent.running is not None else agent.prepared if agent else None
        if agent and attempt is not None:
            agent.running = agent.prepared = None
            self.say(worker, Ended(kind, kind, place or kind, step=step, attempt=attempt))

    def die(self, worker: int) -> None:
        agent = self.agents[worker]
        if agent and agent.alive:
            agent.alive = agent.connected = False
            agent.running = agent.prepared = None
            self.event(Gone(self.at, worker, agent.incarnation, "died"))

    # ---- what may happen ----

    workers = st.integers(0, WORKERS - 1)

    @rule(worker=workers)
    def an_agent_joins(self, worker: int) -> None:
        agent = self.agents[worker]
        if agent and agent.alive and not agent.connected and machine.refusal(self.state, worker, agent.incarnation) is None:
            agent.connected = True
            self.event(Joined(self.at, worker))

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
        agent = self.agents[worker]
        if agent and agent.connected:
            self.die(worker)

    @rule(worker=workers)
    def a_connection_breaks(self, worker: int) -> None:
        agent = self.agents[worker]
        if agent and agent.alive and agent.connected:
            agent.connected = False
            self.event(Disconnected(self.at, worker, agent.incarnation))

    @rule(worker=workers)
    def an_agent_falls_silent(self, worker: int) -> None:
        agent = self.agents[worker]
        if agent and agent.running is not None:
            agent.deaf = True

    @rule(worker=workers, beat=st.builds(Beat, step=st.none() | st.integers(0, 20), saver=st.booleans(), stopped=st.booleans()))
    def a_program_reports(self, worker: int, beat: Beat) -> None:
        self.say(worker, beat)

    @rule(worker=workers)
    def an_agent_is_told_to_leave(self, worker: int) -> None:
        self.say(worker, Leaving())

    @rule(worker=workers)
    @precondition(lambda self: self.removing)
    def the_backend_removes(self, worker: int) -> None:
        if worker in self.removing:
            self.removing.discard(worker)
            self.die(worker)

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.at += seconds
        for worker in range(WORKERS):
            self.say(worker, Beat())
        self.event(Tick(self.at))

    @rule()
    @precondition(lambda self: self.state.attempt > 2)
    def the_user_stops(self) -> None:
        self.event(StopAsked(self.at, 2))

    # ---- what must hold ----

    @invariant()
    def one_attempt_lives(self) -> None:
        live = {a.running for a in self.agents.values() if a and a.alive and a.running is not None}
        assert len(live) <= 1

    @invariant()
    def the_budget_is_kept(self) -> None:
        mistakes = [f for f in self.state.history if f.kind not in FREE]
        assert len(mistakes) <= POLICY.restarts + 1
        assert len(self.state.spent) <= POLICY.restarts

    def teardown(self) -> None:
        """Whatever happened: if everyone works from now on, the job ends."""
        for _ in range(4000):
            if self.state.phase is Phase.OVER:
                break
            for worker in range(WORKERS):
                self.an_agent_joins(worker)
                self.obey(worker)
                self.say(worker, Beat())
                agent = self.agents[worker]
                if agent and agent.running is not None:
                    self.end_child(worker, "done")
            for worker in list(self.removing):
                self.the_backend_removes(worker)
            self.time_passes(1.0)
        assert self.state.phase is Phase.OVER
        assert self.state.result


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
