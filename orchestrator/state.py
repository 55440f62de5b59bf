"""The group's life as a pure state machine: `step(state, event) -> (state, actions)`. No clock, no I/O.

gathering → running(attempt k) → (ending → gathering → running(attempt k+1))* → over

An attempt begins only when every worker is READY, and a worker is READY only after its agent has said that nothing of the attempt
before is left there (or the backend has said so of a lost one): two attempts never live at once.

A controller that follows another one begins with resuming: its agents went on meanwhile, and say as they join what they hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from orchestrator import deadlines, messages
from orchestrator.events import (
    Action,
    Disconnected,
    Event,
    Finish,
    Gone,
    Joined,
    Launch,
    Leaves,
    Paused,
    Remove,
    Said,
    Send,
    StopAsked,
    Tell,
    Tick,
    Waits,
)
from orchestrator.group import (
    CONNECTED,
    Before,
    Ending,
    Failure,
    Phase,
    Policy,
    Result,
    State,
    Status,
    Worker,
)
from orchestrator.moves import (
    RUNS,
    Step,
    begin_if_ready,
    end_attempt,
    finish,
    gather,
    lose,
    prepare,
    settle,
    stopped_by,
    succeed,
)
from worker_image.protocol import Beat, Dismiss, End, Refused

STILLBORN_LIMIT = 2  # agents of one worker in a row that end before they join
ENDING_SLACK = 20.0  # seconds beyond the grace until an agent that does not confirm the end of its child is given up


def begin(policy: Policy, at: float) -> Step:
    """A new group: every worker is to be launched."""
    workers = (Worker(heard=at),) * policy.workers
    return State(policy, workers, started=at, since=at), [Launch(i, 0) for i in range(policy.workers)]


def resume(policy: Policy, at: float, before: Before) -> Step:
    """The group of a controller that is gone, or a new one whose first workers are there already."""
    workers = tuple(
        Worker(incarnation=current, launched=newest, joined_before=before.known, heard=at) for current, newest in before.incarnations
    )
    state = State(
        policy,
        workers,
        started=before.started,
        since=at,
        phase=Phase.RESUMING,  # also where nothing is known: the one before may have been lost before it could write
        attempt=before.attempt,
        begun=before.begun,
        history=before.history,
        spent=before.spent,
        furthest=before.furthest,
        fruitless=before.fruitless,
    )
    actions: list[Action] = [Launch(i, k) for i, each in enumerate(before.incarnations) for k in sorted(set(each))]
    if before.result:
        return replace(state, phase=Phase.OVER, result=before.result), [*actions, Finish(before.result)]
    return state, actions


def refusal(state: State, worker: int, incarnation: int) -> Refused | None:
    """Why an agent that wants to join is not taken; None if it is."""
    if not 0 <= worker < len(state.workers):
        return Refused(f"there is no worker {worker} in a group of {len(state.workers)}")
    known = state.workers[worker]
    if known.incarnation < incarnation <= known.launched:
        return Refused(f"incarnation {known.incarnation} of worker {worker} is not gone yet", retry=True)
    if incarnation != known.incarnation:
        return Refused(f"incarnation {incarnation} of worker {worker} is not the current one ({known.incarnation})")
    if known.status is not Status.AWAITED:
        return Refused(f"worker {worker} has joined already")
    return None


def step(state: State, event: Event) -> Step:
    """What an event makes of the group, and what is to be done."""
    if state.phase is Phase.OVER:
        if isinstance(event, Joined) and state.result:  # its controller was lost before it could say so
            return state, [Send(event.worker, Dismiss(state.result.exit_code))]
        return state, []
    return _HANDLERS[type(event)](state, event)


# ---- what agents and backend tell ----


def _joined(state: State, event: Joined) -> Step:
    index, at = event.worker, event.at
    state = state.change(index, status=Status.JOINED, joined_before=True, stillborn=0, waits="", heard=at)
    if state.phase is Phase.RESUMING:
        return _joined_again(state, event)
    actions: list[Action] = []
    if event.attempt >= state.attempt and state.phase is Phase.GATHERING:  # a number is never used twice
        state = replace(state, attempt=event.attempt + 1)
        state, actions = prepare(state, state.having(Status.PREPARING, Status.READY))
    if event.holds == "running":  # of an attempt that is given up
        state = state.change(index, status=Status.ENDING, stale=event.attempt)
        return state, [*actions, Send(index, End(event.attempt))]
    if state.phase is not Phase.GATHERING:
        return state, actions
    state, more = prepare(state, [index])
    return state, [*actions, *more]


def _joined_again(state: State, event: Joined) -> Step:
    """While resuming. One that holds nothing of the attempt shows that this is not whole, and it is ended wherever it lives."""
    index, at = event.worker, event.at
    others = state.having(Status.RUNNING, Status.DONE)
    if event.holds and (event.attempt == state.attempt or (event.attempt > state.attempt and not others)):
        fields = {"status": Status.RUNNING, "beat": Beat(), "moved": at, "idle_since": at, "stopped_since": None, "first": None}
        return replace(state.change(index, **fields), attempt=event.attempt, begun=True), []
    actions: list[Action] = []
    if event.holds == "running":  # of an older attempt
        state = state.change(index, status=Status.ENDING, stale=event.attempt)
        actions = [Send(index, End(event.attempt))]
    if others:
        text = f"holds nothing of attempt {state.attempt}: the controller before this one was lost while it began or ended"
        state, more = end_attempt(state, Failure(index, state.attempt, "lost", text), at, grace=0.0)
    else:
        state, more = gather(replace(state, attempt=max(state.attempt + state.begun, event.attempt + 1)), at)
    return state, [*actions, *more]


def _said(state: State, event: Said) -> Step:
    if state.workers[event.worker].status not in CONNECTED:
        return state, []
    return messages.handle(state.change(event.worker, heard=event.at), event.worker, event.message, event.at)


def _disconnected(state: State, event: Disconnected) -> Step:
    worker = state.workers[event.worker]
    if event.incarnation != worker.incarnation or worker.status not in CONNECTED:
        return state, []
    return lose(state, event.worker, event.at, "lost", "was lost: the connection of its agent closed")


def _leaves(state: State, event: Leaves) -> Step:
    worker = state.workers[event.worker]
    if event.incarnation != worker.incarnation or worker.status not in CONNECTED:
        return state, []
    return messages.leave(state, event.worker, f"has to leave: {event.why}", event.at)


def _waits(state: State, event: Waits) -> Step:
    current = event.incarnation == state.workers[event.worker].incarnation
    return state.change(event.worker, waits=event.why) if current else state, []


def _gone(state: State, event: Gone) -> Step:
    worker = state.workers[event.worker]
    if worker.incarnation < event.incarnation == worker.launched:
        return _relaunch(state, event)
    if event.incarnation != worker.incarnation:
        return state, []
    actions: list[Action] = []
    if worker.status is Status.LOST:
        state = _explained(state, event)
    elif worker.status in CONNECTED or _held_a_part(state, worker):
        state, actions = lose(state, event.worker, event.at, "lost", f"was lost: {event.why}")
        state = _explained(state, event)
        actions = [a for a in actions if not isinstance(a, Remove)]
    worker = state.workers[event.worker]
    stillborn = 0 if worker.joined_before else worker.stillborn + (event.kind != "node")
    if stillborn >= STILLBORN_LIMIT:
        return _not_launched(state, event, actions)
    if worker.launched == worker.incarnation:
        state, launch = succeed(state, event.worker)
        actions = [*actions, *launch]
    newest = state.workers[event.worker].launched
    fresh = Worker(Status.AWAITED, newest, newest, stillborn=stillborn, heard=event.at)
    settled, more = settle(state.change(event.worker, **vars(fresh)), event.at)
    return settled, [*actions, *more]


def _held_a_part(state: State, worker: Worker) -> bool:
    """Whether one that did not come back to this controller was in an attempt that may still live elsewhere."""
    return state.phase is Phase.RESUMING and (worker.joined_before or bool(state.having(Status.RUNNING, Status.DONE)))


def _relaunch(state: State, event: Gone) -> Step:
    """A successor has ended before its time."""
    worker = state.workers[event.worker]
    stillborn = worker.stillborn + (event.kind != "node")
    if stillborn >= STILLBORN_LIMIT:
        return _not_launched(state, event, [])
    state = state.change(event.worker, launched=worker.launched + 1, stillborn=stillborn)
    return state, [Launch(event.worker, worker.launched + 1)]


def _not_launched(state: State, event: Gone, actions: list[Action]) -> Step:
    reason = f"worker {event.worker} could not be started: {event.why} before it joined"
    return finish(state, Result(Ending.NOT_LAUNCHED, reason), actions)


def _explained(state: State, event: Gone) -> State:
    """A worker that ran out of memory is no lost one, though the first that is seen of it is a closed connection."""
    if event.kind != "memory":
        return state

    def better(failure: Failure) -> Failure:
        mine = failure.worker == event.worker and failure.kind == "lost"
        return replace(failure, kind=event.kind, text=f"was lost: {event.why}", place="out of memory") if mine else failure

    return replace(state, failures=tuple(map(better, state.failures)))


# ---- time and the user ----


def _tick(state: State, event: Tick) -> Step:
    late = deadlines.too_late(state, event.at)
    if late:
        return finish(state, late, [])
    actions: list[Action] = []
    for index in deadlines.silent(state, event.at):
        quiet = f"was lost: its agent was silent for {event.at - state.workers[index].heard:.0f} s"
        state, more = lose(state, index, event.at, "silent", quiet)
        actions += more
    for index in deadlines.not_back(state, event.at):
        text = f"was lost: its agent did not come back to the new controller within {deadlines.COME_BACK:g} s"
        state, more = lose(state, index, event.at, "lost", text)
        actions += more
    finding = deadlines.stuck(state, event.at)
    if finding:
        state, more = end_attempt(state, finding, event.at, grace=0.0, stacks=True)
        actions += more
    state, more = _push_on(state, event.at)
    return state, [*actions, *more]


def _push_on(state: State, at: float) -> Step:
    """What is due in each phase."""
    if state.phase is Phase.RUNNING and not state.told_straggler:
        text = deadlines.straggler(state, at)
        return replace(state, told_straggler=bool(text)), [Tell(text)] if text else []
    if state.phase is Phase.RESUMING:
        return _tell_missing(state, at)
    if state.phase is Phase.GATHERING:
        begun, actions = begin_if_ready(state, at)
        return (begun, actions) if actions else _tell_missing(begun, at)
    if state.phase is not Phase.ENDING:
        return state, []
    if state.end_at is not None and at >= state.end_at:
        ends: list[Action] = [Send(i, End(state.attempt)) for i in state.having(Status.ENDING)]
        return replace(state, end_at=None), ends
    actions = []
    if at - state.since > state.policy.grace + ENDING_SLACK:
        for index in state.having(Status.ENDING):
            state, more = lose(state, index, at, "silent", "was lost: its agent did not end its program")
            actions += more
    return state, actions


def _tell_missing(state: State, at: float) -> Step:
    waited = at - state.since
    due = waited > deadlines.TELL_MISSING_AFTER and at - state.told_missing > deadlines.TELL_MISSING_EVERY
    if not due or at < state.not_before:
        return state, []
    text = f"still waiting after {waited:.0f} s: {deadlines.missing(state)}; giving up after {state.policy.start:g} s"
    return replace(state, told_missing=at), [Tell(text)]


def _paused(state: State, event: Paused) -> Step:
    def later(worker: Worker) -> Worker:
        return replace(worker, heard=event.at, moved=event.at, stopped_since=None)

    return replace(state, workers=tuple(later(w) for w in state.workers), since=state.since + event.lasted), []


def _stop_asked(state: State, event: StopAsked) -> Step:
    result = stopped_by(event.signal)
    if state.stopping or not (state.phase is Phase.ENDING or (state.phase in RUNS and state.having(Status.RUNNING))):
        return finish(state, result, [])
    state = replace(state, stopping=event.signal)
    tell = Tell(f"{result.reason}: the workers are ending, within {state.policy.grace:g} s; once more stops them at once")
    if state.phase is Phase.ENDING:
        return state, [tell]
    state, actions = end_attempt(state, None, event.at, grace=state.policy.grace)
    return state, [tell, *actions]


_HANDLERS: dict[type[Event], Callable[[State, Any], Step]] = {
    Tick: _tick,
    Paused: _paused,
    Joined: _joined,
    Said: _said,
    Disconnected: _disconnected,
    Leaves: _leaves,
    Waits: _waits,
    Gone: _gone,
    StopAsked: _stop_asked,
}
