"""What each message of an agent makes of the group. Pure; the messages are described in worker_image/protocol.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from orchestrator import deadlines
from orchestrator.events import Send, Tell
from orchestrator.group import Ending, Failure, Phase, Result, State, Status, indices
from orchestrator.moves import (
    Step,
    begin_if_ready,
    end_attempt,
    finish,
    preempted,
    prepare,
    release_leaving,
    resume_if_known,
    settle,
    succeed,
)
from worker_image.protocol import Beat, Ended, Leaving, Message, Note, Ready, SaveAt, Saved, SaveGo, SaveNoted, SaveTarget

_TOLD_TO_LEAVE = "was told to leave (SIGTERM)"


def handle(state: State, index: int, message: Message, at: float) -> Step:
    """Take note of a message of a connected agent."""
    handler = _MESSAGES.get(type(message))
    return handler(state, index, message, at) if handler else (state, [])


def leave(state: State, index: int, why: str, at: float) -> Step:
    """A worker is to go: everyone saves, its successor starts meanwhile."""
    if state.workers[index].leaving:
        return state, []
    state = state.change(index, leaving=why)
    state, successor = succeed(state, index)
    if state.phase is Phase.RUNNING:
        state, actions = end_attempt(state, preempted(state, index), at, grace=state.policy.grace)
    elif state.phase is Phase.GATHERING:
        state, actions = release_leaving(state)
    else:
        actions = []
    return state, [*successor, *actions]


def _ready(state: State, index: int, message: Ready, at: float) -> Step:
    if state.workers[index].status is not Status.PREPARING or message.attempt != state.attempt:
        return state, []
    return begin_if_ready(state.change(index, status=Status.READY, address=message.address), at)


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
    return resume_if_known(state.change(index, **fields), at)


def _ended(state: State, index: int, outcome: Ended, at: float) -> Step:
    worker = state.workers[index]
    if worker.stale is not None and outcome.attempt == worker.stale:
        return _no_longer_stale(state, index, at)
    if outcome.attempt != state.attempt or worker.status not in (Status.PREPARING, Status.READY, Status.RUNNING, Status.ENDING):
        return state, []
    if outcome.kind == "done" and worker.status is Status.RUNNING:
        state = state.change(index, status=Status.DONE, beat=replace(worker.beat, step=outcome.step))
        if len(state.having(Status.DONE)) == len(state.workers):
            return finish(state, Result(Ending.SUCCEEDED, "every worker's program ended with 0"), [])
        return resume_if_known(state, at)
    state = state.change(index, status=Status.JOINED, beat=Beat(step=outcome.step))
    failure = Failure(index, state.attempt, outcome.kind, outcome.text + _uneven(state, outcome), outcome.place, outcome.step)
    if worker.status is Status.ENDING:
        if outcome.kind not in ("ended", "done", "left"):
            state = replace(state, failures=(*state.failures, failure))
        return settle(state, at)
    if outcome.kind == "ended":  # by the controller before this one, which alone knew why
        failure = replace(failure, kind="lost", text="was ended by the controller before this one")
    return end_attempt(state, failure, at, grace=0.0)


def _no_longer_stale(state: State, index: int, at: float) -> Step:
    state = state.change(index, status=Status.JOINED, stale=None, beat=Beat())
    return prepare(state, [index]) if state.phase is Phase.GATHERING else settle(state, at)


def _uneven(state: State, outcome: Ended) -> str:
    """What a lost peer means when nobody was lost: TensorFlow says no more than that the other one does not answer."""
    done = state.having(Status.DONE)
    if outcome.kind != "peer" or not done:
        return ""
    return f"; {indices(done)} had ended with 0 before, and every worker must make the same number of steps"


def _leaving(state: State, index: int, _message: Leaving, at: float) -> Step:
    return leave(state, index, _TOLD_TO_LEAVE, at)


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
