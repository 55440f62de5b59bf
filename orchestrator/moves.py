"""The moves of a group from one phase to the next: each gives the new state and what is to be done. Pure; state.py says when."""

from __future__ import annotations

import signal
from dataclasses import replace

from orchestrator import restarts
from orchestrator.events import Action, BeginAll, Finish, Launch, Remove, Send, Tell
from orchestrator.group import CONNECTED, HAS_LIVE_PROGRAM, Ending, Failure, Phase, Result, Saving, State, Status
from worker_image.protocol import AskSave, Beat, Dismiss, End, Prepare

Step = tuple[State, list[Action]]

RUNS = (Phase.RUNNING, Phase.RESUMING)  # programs may be running, and nobody is ending them


def prepare(state: State, workers: list[int]) -> Step:
    """Have children ready for the next attempt."""
    for index in workers:
        state = state.change(index, status=Status.PREPARING)
    return state, [Send(i, Prepare(state.attempt)) for i in workers]


def begin_if_ready(state: State, at: float) -> Step:
    """Begin the attempt when every worker is ready."""
    if state.phase is not Phase.GATHERING or at < state.not_before or any(w.status is not Status.READY for w in state.workers):
        return state, []
    workers = tuple(
        replace(w, status=Status.RUNNING, beat=Beat(), heard=at, moved=at, idle_since=at, stopped_since=None, first=None)
        for w in state.workers
    )
    state = replace(
        state, workers=workers, phase=Phase.RUNNING, since=at, begun=True, failures=(), saving=None, end_at=None, told_straggler=False
    )
    return state, [BeginAll(state.attempt, tuple(w.address for w in workers))]


def resume_if_known(state: State, at: float) -> Step:
    """A controller that follows another one: when every worker has told that it runs the same attempt, that is the attempt."""
    told = [w.status is Status.DONE or (w.status is Status.RUNNING and w.beat != Beat()) for w in state.workers]
    if state.phase is not Phase.RESUMING or not all(told):
        return state, []
    workers = tuple(replace(w, moved=at, idle_since=at) for w in state.workers)
    state = replace(state, workers=workers, phase=Phase.RUNNING, since=at)
    actions: list[Action] = [Tell(f"resumed attempt {state.attempt}, which runs on every worker")]
    leaving = [i for i in state.having(Status.RUNNING) if state.workers[i].leaving]
    if leaving:
        state, more = end_attempt(state, preempted(state, leaving[0]), at, grace=state.policy.grace)
        actions += more
    return state, actions


def preempted(state: State, index: int) -> Failure:
    """The finding against an attempt of which a worker has to leave."""
    worker = state.workers[index]
    return Failure(index, state.attempt, "preempted", worker.leaving, step=worker.beat.step)


def lose(state: State, index: int, at: float, kind: str, text: str) -> Step:
    """An agent is gone: its worker's part of the attempt is lost, and the backend makes sure that nothing is left."""
    worker = state.workers[index]
    failure = Failure(index, state.attempt, kind, text, step=worker.beat.step)
    state = state.change(index, status=Status.LOST)
    state, actions = succeed(state, index)
    actions = [Remove(index, worker.incarnation), *actions]
    if state.phase in RUNS:
        state, more = end_attempt(state, failure, at, grace=0.0)
        return state, [*actions, *more]
    if state.phase is Phase.ENDING:
        state = replace(state, failures=(*state.failures, failure))
        if state.saving:  # nobody can save without it
            state = replace(state, saving=None, end_at=at)
    return state, actions


def succeed(state: State, index: int) -> Step:
    """Start the next incarnation of a worker that is leaving or lost: it starts and imports meanwhile, and waits for the other's end."""
    worker = state.workers[index]
    if state.stopping or worker.launched > worker.incarnation:
        return state, []
    return state.change(index, launched=worker.launched + 1), [Launch(index, worker.launched + 1)]


def end_attempt(state: State, failure: Failure | None, at: float, grace: float, stacks: bool = False) -> Step:
    """End the attempt on every worker: by a coordinated save where there is time and every program can, else by the agents."""
    running = state.having(Status.RUNNING)
    everyone_can = all(state.workers[i].beat.saver for i in running) and state.phase is Phase.RUNNING
    can_save = bool(grace and running and everyone_can and not state.having(Status.DONE))
    for index in state.having(Status.DONE):
        state = state.change(index, status=Status.JOINED)
    for index in running:
        state = state.change(index, status=Status.ENDING)
    failures = (*state.failures, failure) if failure else state.failures
    state = replace(state, phase=Phase.ENDING, since=at, failures=failures)
    if can_save:
        return replace(state, saving=Saving(running[0]), end_at=at + grace), [Send(running[0], AskSave())]
    settled, actions = settle(state, at)
    return settled, [*(Send(i, End(state.attempt, grace, stacks)) for i in running), *actions]


def settle(state: State, at: float) -> Step:
    """When nothing of the attempt is left anywhere: what now?"""
    if state.phase is not Phase.ENDING or state.having(*HAS_LIVE_PROGRAM):
        return state, []
    if state.stopping:
        return finish(state, stopped_by(state.stopping), [])
    decision = restarts.decide(state, at)
    state = decision.state
    if decision.fatal:
        return finish(state, decision.fatal, [])
    attempt = state.attempt + 1 if state.begun else state.attempt
    state, actions = gather(replace(state, attempt=attempt), at)
    return state, [Tell(decision.note), *actions]


def gather(state: State, at: float) -> Step:
    """Wait for everyone, and have those that are here get ready."""
    state = replace(state, phase=Phase.GATHERING, since=at, begun=False, saving=None, end_at=None, told_missing=0.0)
    state, released = release_leaving(state)
    state, prepared = prepare(state, state.having(Status.JOINED))
    return state, [*released, *prepared]


def release_leaving(state: State) -> Step:
    """Let the agents go that were told to leave; their successors take over."""
    actions: list[Action] = []
    for index, worker in enumerate(state.workers):
        if worker.leaving and worker.status in CONNECTED:
            state = state.change(index, status=Status.LOST)
            actions += [Send(index, Dismiss()), Remove(index, worker.incarnation)]
    return state, actions


def stopped_by(number: int) -> Result:
    """The end that the user asked for."""
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    return Result(Ending.STOPPED, f"stopped by {name}", number)


def finish(state: State, result: Result, before: list[Action]) -> Step:
    """The job is over: who is connected cleans up and goes, the rest is removed."""
    last: list[Action] = []
    for index, worker in enumerate(state.workers):
        here = worker.status in CONNECTED
        last.append(Send(index, Dismiss(result.exit_code)) if here else Remove(index, worker.incarnation))
        last += [Remove(index, worker.launched)] if worker.launched > worker.incarnation else []
    return replace(state, phase=Phase.OVER, result=result), [*before, *last, Finish(result)]
