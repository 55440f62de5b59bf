"""What only the passing of time tells: who is missing, silent, frozen or stalled. Pure."""

from __future__ import annotations

from statistics import median

from orchestrator.group import CONNECTED, Ending, Failure, Phase, Result, State, Status, indices

STOPPED_FOR = 1.0  # seconds that a program may be stopped by a signal; nobody does that to a training for shorter
PAUSES = 5.0  # times the longest pause between two steps so far
BUSY = 0.05  # CPU seconds between two beats up to which a worker counts as idle: TensorFlow's own polling takes less
STRAGGLER_AFTER = 10.0  # seconds of steps before workers are compared
STRAGGLER_FACTOR = 3.0  # times slower than the others
STRAGGLER_LOAD = 0.3  # processors: below that a worker keeps nobody waiting by computing
TELL_MISSING_AFTER = 5.0  # seconds of gathering
TELL_MISSING_EVERY = 60.0
COME_BACK = 30.0  # seconds that an agent has to find a new controller, once others have


def silent(state: State, at: float) -> list[int]:
    """The workers whose agents have not been heard of for too long."""
    return [i for i, w in enumerate(state.workers) if w.status in CONNECTED and at - w.heard > state.policy.silence]


def not_back(state: State, at: float) -> list[int]:
    """The workers that have not come back to a new controller, while others of the attempt have."""
    if state.phase is not Phase.RESUMING or at - state.since <= COME_BACK or not state.having(Status.RUNNING, Status.DONE):
        return []
    return state.having(Status.AWAITED)


def stuck(state: State, at: float) -> Failure | None:
    """A finding against a running attempt: a frozen program, or a training that makes no step."""
    if state.phase is not Phase.RUNNING:
        return None
    return _frozen(state, at) or _stalled(state, at)


def straggler(state: State, at: float) -> str:
    """The worker that is much slower than the others, as a line for the user; empty if there is none or too little is known.

    In synchronous training all make the same steps at the same times: there the slow one is who computes while the others wait.
    """
    running = state.having(Status.RUNNING)
    pace, load = {}, {}
    for index in running:
        worker = state.workers[index]
        if worker.first is None or worker.beat.step is None or at - worker.first[0] < STRAGGLER_AFTER:
            return ""
        seconds = at - worker.first[0]
        pace[index] = (worker.beat.step - worker.first[1]) / seconds
        load[index] = (worker.beat.busy - worker.first[2]) / seconds
    if len(running) < 2 or len(running) < len(state.workers):
        return ""
    slow, busy = min(running, key=pace.__getitem__), max(running, key=load.__getitem__)
    usual = median(pace[i] for i in running if i != slow)
    if usual > 0 and pace[slow] * STRAGGLER_FACTOR <= usual:
        return f"worker {slow} makes {pace[slow]:.2g} steps/s where the others make {usual:.2g}"
    waiting = max(BUSY, median(load[i] for i in running if i != busy))
    if load[busy] >= STRAGGLER_FACTOR * waiting and load[busy] >= STRAGGLER_LOAD:
        return f"worker {busy} uses {load[busy] / waiting:.1f} times the processor time of the others, which wait for it"
    return ""


def too_late(state: State, at: float) -> Result | None:
    """The start deadline or the run deadline has passed."""
    waiting = state.phase in (Phase.GATHERING, Phase.RESUMING)
    if waiting and at - max(state.since, state.not_before) > state.policy.start:
        return Result(Ending.DEADLINE, f"{missing(state)} within {state.policy.start:g} s (deadlines.start)")
    if at - state.started > state.policy.run:
        return Result(Ending.DEADLINE, f"the job ran longer than {state.policy.run:g} s (deadlines.run)")
    return None


def missing(state: State) -> str:
    """Who keeps the group from starting, as a sentence part: "worker 1 did not join"."""
    absent: dict[str, list[int]] = {}
    for index in state.having(Status.AWAITED, Status.LOST):
        absent.setdefault(state.workers[index].waits, []).append(index)
    parts = [f"{indices(workers)} did not join" + (f" ({why})" if why else "") for why, workers in absent.items()]
    unready = state.having(Status.JOINED, Status.PREPARING)
    if unready:
        parts.append(f"{indices(unready)} joined but did not get ready (still importing)")
    return ", ".join(parts) or "the group did not start"


def _frozen(state: State, at: float) -> Failure | None:
    for i in state.having(Status.RUNNING):
        worker = state.workers[i]
        if worker.stopped_since is not None and at - worker.stopped_since >= STOPPED_FOR:
            return _failure(state, i, "frozen", "was stopped by a signal (SIGSTOP) and did nothing more")
        if worker.beat.pulse > state.policy.frozen:
            text = f"gave no sign of life for {worker.beat.pulse:.0f} s: its interpreter is blocked"
            return _failure(state, i, "frozen", text)
    return None


def _stalled(state: State, at: float) -> Failure | None:
    """No step by anyone for long, and nobody does anything: only then, for a long save or a slow input must not end a job."""
    workers = [state.workers[i] for i in state.having(Status.RUNNING)]
    if not workers or any(w.beat.step is None or w.beat.activity for w in workers):
        return None
    allowed = max(state.policy.progress, PAUSES * max(w.beat.longest for w in workers))
    waited = at - max(max(w.moved, w.idle_since) for w in workers)
    if waited <= allowed:
        return None
    behind = min(state.having(Status.RUNNING), key=lambda i: state.workers[i].beat.step or 0)
    text = f"made no step for {waited:.0f} s after step {state.workers[behind].beat.step}, and no worker was busy"
    return _failure(state, behind, "stalled", text)


def _failure(state: State, worker: int, kind: str, text: str) -> Failure:
    return Failure(worker, state.attempt, kind, text, step=state.workers[worker].beat.step)
