"""The group's life as a pure state machine: `step(state, event) -> (state, actions)`. No clock, no I/O.

gathering → running(attempt k) → (ending → gathering → running(attempt k+1))* → over

An attempt begins only when every worker is READY, and a worker is READY only after its agent has said that nothing of the attempt
before is left there (or the backend has said so of a lost one): two attempts never live at once.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from orchestrator import deadlines, restarts
from orchestrator.events import (
    Action,
    BeginAll,
    Disconnected,
    Event,
    Finish,
    Gone,
    Joined,
    Launch,
    Paused,
    Remove,
    Said,
    Send,
    StopAsked,
    Tell,
    Tick,
)
from orchestrator.group import (
    CONNECTED,
    HAS_LIVE_PROGRAM,
    Ending,
    Failure,
    Phase,
    Policy,
    Result,
    Saving,
    State,
    Status,
    Worker,
    indices,
)
from worker_image.protocol import (
    AskSave,
    Beat,
    Dismiss,
    End,
    Ended,
    Leaving,
    Message,
    Note,
    Prepare,
    Ready,
    SaveAt,
    Saved,
    SaveGo,
    SaveNoted,
    SaveTarget,
)

Step = tuple[State, list[Action]]

STILLBORN_LIMIT = 2  # agents of one worker in a row that end before they join
ENDING_SLACK = 20.0  # seconds beyond the grace until an agent that does not confirm the end of its child is given up


def begin(policy: Policy, at: float) -> Step:
    """A new group: every worker is to be launched."""
    workers = (Worker(heard=at),) * policy.workers
    return State(policy, workers, started=at, since=at), [Launch(i, 0) for i in range(policy.workers)]


def refusal(state: State, worker: int, incarnation: int) -> str | None:
    """Why an agent that wants to join is not taken; None if it is."""
    if not 0 <= worker < len(state.workers):
        return f"there is no worker {worker} in a group of {len(state.workers)}"
    known = state.workers[worker]
    if incarnation != known.incarnation:
        return f"incarnation {incarnation} of worker {worker} is not the current one ({known.incarnation})"
    if known.status is not Status.AWAITED:
        return f"worker {worker} has joined already"
    return None


def step(state: State, event: Event) -> Step:
    """What an event makes of the group, and what is to be done."""
    if state.phase is Phase.OVER:
        return state, []
    return _HANDLERS[type(event)](state, event)


# ---- what agents and backend tell ----


def _joined(state: State, event: Joined) -> Step:
    state = state.change(event.worker, status=Status.JOINED, joined_before=True, stillborn=0, heard=event.at)
    return _prepare(state, [event.worker]) if state.phase is Phase.GATHERING else (state, [])


def _said(state: State, event: Said) -> Step:
    if state.workers[event.worker].status not in CONNECTED:
        return state, []
    state = state.change(event.worker, heard=event.at)
    handler = _MESSAGES.get(type(event.message))
    return handler(state, event.worker, event.message, event.at) if handler else (state, [])


def _disconnected(state: State, event: Disconnected) -> Step:
    worker = state.workers[event.worker]
    if event.incarnation != worker.incarnation or worker.status not in CONNECTED:
        return state, []
    return _lose(state, event.worker, event.at, "lost", "was lost: the connection of its agent closed")


def _gone(state: State, event: Gone) -> Step:
    worker = state.workers[event.worker]
    if event.incarnation != worker.incarnation:
        return state, []
    actions: list[Action] = []
    if worker.status in CONNECTED:
        state, actions = _lose(state, event.worker, event.at, "lost", f"was lost: {event.why}")
    stillborn = 0 if worker.joined_before else worker.stillborn + 1
    if stillborn >= STILLBORN_LIMIT:
        reason = f"worker {event.worker} could not be started: {event.why} before it joined"
        return _finish(state, Result(Ending.NOT_LAUNCHED, reason), actions)
    fresh = Worker(Status.AWAITED, worker.incarnation + 1, stillborn=stillborn, heard=event.at)
    state = state.change(event.worker, **vars(fresh))
    actions = [a for a in actions if not isinstance(a, Remove)]
    settled, more = _settle(state, event.at)
    return settled, [*actions, Launch(event.worker, fresh.incarnation), *more] if settled.phase is not Phase.OVER else more


def _lose(state: State, index: int, at: float, kind: str, text: str) -> Step:
    """An agent is gone: its worker's part of the attempt is lost, and the backend makes sure that nothing is left."""
    worker = state.workers[index]
    failure = Failure(index, state.attempt, kind, text, step=worker.beat.step)
    state = state.change(index, status=Status.LOST)
    actions: list[Action] = [Remove(index, worker.incarnation)]
    if state.phase is Phase.RUNNING:
        state, more = _end_attempt(state, failure, at, grace=0.0)
        return state, [*actions, *more]
    if state.phase is Phase.ENDING:
        state = replace(state, failures=(*state.failures, failure))
        if state.saving:  # nobody can save without it
            state = replace(state, saving=None, end_at=at)
    return state, actions


# ---- messages ----


def _ready(state: State, index: int, message: Ready, at: float) -> Step:
    if state.workers[index].status is not Status.PREPARING or message.attempt != state.attempt:
        return state, []
    return _begin_if_ready(state.change(index, status=Status.READY, address=message.address), at)


def _beat(state: State, index: int, beat: Beat, at: float) -> Step:
    worker = state.workers[index]
    if worker.status not in (Status.RUNNING, Status.ENDING):
        return state, []
    moved = beat.step != worker.beat.step or beat.activity or beat.stopped
    fields: dict[str, Any] = {"beat": beat, "moved": at if moved else worker.moved}
    fields["idle_since"] = at if beat.busy - worker.beat.busy > deadlines.BUSY else worker.idle_since
    fields["stopped_since"] = (worker.stopped_since if worker.stopped_since is not None else at) if beat.stopped else None
    if worker.first is None and beat.step is not None:
        fields["first"] = (at, beat.step, beat.busy)
    return state.change(index, **fields), []


def _ended(state: State, index: int, outcome: Ended, at: float) -> Step:
    status = state.workers[index].status
    if outcome.attempt != state.attempt or status not in (Status.PREPARING, Status.READY, Status.RUNNING, Status.ENDING):
        return state, []
    if outcome.kind == "done" and status is Status.RUNNING:
        state = state.change(index, status=Status.DONE)
        if len(state.having(Status.DONE)) == len(state.workers):
            return _finish(state, Result(Ending.SUCCEEDED, "every worker's program ended with 0"), [])
        return state, []
    state = state.change(index, status=Status.JOINED, beat=Beat(step=outcome.step))
    failure = Failure(index, state.attempt, outcome.kind, outcome.text + _uneven(state, outcome), outcome.place, outcome.step)
    if status is Status.ENDING:
        if outcome.kind not in ("ended", "done", "left"):
            state = replace(state, failures=(*state.failures, failure))
        return _settle(state, at)
    return _end_attempt(state, failure, at, grace=0.0)


def _uneven(state: State, outcome: Ended) -> str:
    """What a lost peer means when nobody was lost: TensorFlow says no more than that the other one does not answer."""
    done = state.having(Status.DONE)
    if outcome.kind != "peer" or not done:
        return ""
    return f"; {indices(done)} had ended with 0 before, and every worker must make the same number of steps"


def _leaving(state: State, index: int, _message: Leaving, at: float) -> Step:
    state = state.change(index, leaving=True)
    if state.phase is Phase.RUNNING:
        failure = Failure(index, state.attempt, "preempted", "was told to leave (SIGTERM)", step=state.workers[index].beat.step)
        return _end_attempt(state, failure, at, grace=state.policy.grace)
    return _release_leaving(state) if state.phase is Phase.GATHERING else (state, [])


def _note(state: State, _index: int, message: Note, _at: float) -> Step:
    return state, [Tell(message.text, message.topic or message.text)]


def _save_target(state: State, index: int, message: SaveTarget, _at: float) -> Step:
    if not state.saving or state.saving.leader != index:
        return state, [Send(index, SaveGo(ok=False))]
    others = [i for i in state.having(Status.ENDING) if i != index]
    if not others:
        return state, [Send(index, SaveGo(ok=True))]
    return state, [Send(i, SaveAt(message.boundary)) for i in others]


def _save_noted(state: State, index: int, message: SaveNoted, _at: float) -> Step:
    saving = state.saving
    if not saving:
        return state, []
    if not message.ok:  # it is past the boundary: this save can't be, and the programs are ended at the end of the grace
        return replace(state, saving=None), [Send(saving.leader, SaveGo(ok=False))]
    saving = replace(saving, noted=saving.noted | {index})
    state = replace(state, saving=saving)
    waited_for = set(state.having(Status.ENDING)) - {saving.leader}
    return state, [Send(saving.leader, SaveGo(ok=True))] if waited_for <= saving.noted else []


def _saved(state: State, index: int, message: Saved, _at: float) -> Step:
    saving = state.saving
    if not saving:
        return state, []
    saving = replace(saving, saved=saving.saved | {index})
    everyone = len(saving.saved) == len(state.workers)
    return replace(state, saving=saving), [Tell(f"every worker saved at step {message.step}")] if everyone else []


# ---- time and the user ----


def _tick(state: State, event: Tick) -> Step:
    late = deadlines.too_late(state, event.at)
    if late:
        return _finish(state, late, [])
    actions: list[Action] = []
    for index in deadlines.silent(state, event.at):
        quiet = f"was lost: its agent was silent for {event.at - state.workers[index].heard:.0f} s"
        state, more = _lose(state, index, event.at, "silent", quiet)
        actions += more
    finding = deadlines.stuck(state, event.at)
    if finding:
        state, more = _end_attempt(state, finding, event.at, grace=0.0, stacks=True)
        actions += more
    state, more = _push_on(state, event.at)
    return state, [*actions, *more]


def _push_on(state: State, at: float) -> Step:
    """What is due in each phase."""
    if state.phase is Phase.RUNNING and not state.told_straggler:
        text = deadlines.straggler(state, at)
        return replace(state, told_straggler=bool(text)), [Tell(text)] if text else []
    if state.phase is Phase.GATHERING:
        begun, actions = _begin_if_ready(state, at)
        return (begun, actions) if actions else _tell_missing(begun, at)
    if state.phase is not Phase.ENDING:
        return state, []
    if state.end_at is not None and at >= state.end_at:
        ends: list[Action] = [Send(i, End(state.attempt)) for i in state.having(Status.ENDING)]
        return replace(state, end_at=None), ends
    actions = []
    if at - state.since > state.policy.grace + ENDING_SLACK:
        for index in state.having(Status.ENDING):
            state, more = _lose(state, index, at, "silent", "was lost: its agent did not end its program")
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
    result = _stopped_by(event.signal)
    if state.stopping or state.phase is Phase.GATHERING:
        return _finish(state, result, [])
    state = replace(state, stopping=event.signal)
    tell = Tell(f"{result.reason}: the workers are ending, within {state.policy.grace:g} s; once more stops them at once")
    if state.phase is Phase.ENDING:
        return state, [tell]
    state, actions = _end_attempt(state, None, event.at, grace=state.policy.grace)
    return state, [tell, *actions]


# ---- the moves ----


def _prepare(state: State, workers: list[int]) -> Step:
    for index in workers:
        state = state.change(index, status=Status.PREPARING)
    return state, [Send(i, Prepare(state.attempt)) for i in workers]


def _begin_if_ready(state: State, at: float) -> Step:
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


def _end_attempt(state: State, failure: Failure | None, at: float, grace: float, stacks: bool = False) -> Step:
    """End the attempt on every worker: by a coordinated save where there is time and every program can, else by the agents."""
    running = state.having(Status.RUNNING)
    can_save = bool(grace and running and all(state.workers[i].beat.saver for i in running) and not state.having(Status.DONE))
    for index in state.having(Status.DONE):
        state = state.change(index, status=Status.JOINED)
    for index in running:
        state = state.change(index, status=Status.ENDING)
    failures = (*state.failures, failure) if failure else state.failures
    state = replace(state, phase=Phase.ENDING, since=at, failures=failures)
    if can_save:
        return replace(state, saving=Saving(running[0]), end_at=at + grace), [Send(running[0], AskSave())]
    settled, actions = _settle(state, at)
    return settled, [*(Send(i, End(state.attempt, grace, stacks)) for i in running), *actions]


def _settle(state: State, at: float) -> Step:
    """When nothing of the attempt is left anywhere: what now?"""
    if state.phase is not Phase.ENDING or state.having(*HAS_LIVE_PROGRAM):
        return state, []
    if state.stopping:
        return _finish(state, _stopped_by(state.stopping), [])
    decision = restarts.decide(state, at)
    state = decision.state
    if decision.fatal:
        return _finish(state, decision.fatal, [])
    attempt = state.attempt + 1 if state.begun else state.attempt
    state = replace(state, phase=Phase.GATHERING, since=at, attempt=attempt, begun=False, saving=None, end_at=None, told_missing=0.0)
    state, released = _release_leaving(state)
    state, prepared = _prepare(state, state.having(Status.JOINED))
    return state, [Tell(decision.note), *released, *prepared]


def _release_leaving(state: State) -> Step:
    """Let the agents go that were told to leave; the backend replaces them."""
    actions: list[Action] = []
    for index, worker in enumerate(state.workers):
        if worker.leaving and worker.status in CONNECTED:
            state = state.change(index, status=Status.LOST)
            actions += [Send(index, Dismiss()), Remove(index, worker.incarnation)]
    return state, actions


def _stopped_by(number: int) -> Result:
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    return Result(Ending.STOPPED, f"stopped by {name}", number)


def _finish(state: State, result: Result, before: list[Action]) -> Step:
    """The job is over: who is connected cleans up and goes, the rest is removed."""
    last: list[Action] = [
        Send(i, Dismiss()) if worker.status in CONNECTED else Remove(i, worker.incarnation) for i, worker in enumerate(state.workers)
    ]
    return replace(state, phase=Phase.OVER, result=result), [*before, *last, Finish(result)]


_HANDLERS: dict[type[Event], Callable[[State, Any], Step]] = {
    Tick: _tick,
    Paused: _paused,
    Joined: _joined,
    Said: _said,
    Disconnected: _disconnected,
    Gone: _gone,
    StopAsked: _stop_asked,
}

_MESSAGES: dict[type[Message], Callable[[State, int, Any, float], Step]] = {
    Ready: _ready,
    Beat: _beat,
    Ended: _ended,
    Leaving: _leaving,
    Note: _note,
    SaveTarget: _save_target,
    SaveNoted: _save_noted,
    Saved: _saved,
}
