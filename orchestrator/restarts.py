"""What ended an attempt, and whether another one is worth starting. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.group import Ending, Failure, Result, State

# These are nobody's mistake: they never use up the budget. ("left" is the program's answer to a SIGTERM.)
FREE = frozenset({"lost", "silent", "preempted", "left"})
LONGEST_BACKOFF = 30.0  # seconds


@dataclass(frozen=True)
class Decision:
    """The group after a failed attempt. fatal: the job is over. note: the line about the restart."""

    state: State
    fatal: Result | None = None
    note: str = ""


def cause_of(failures: tuple[Failure, ...]) -> Failure:
    """The first failure that is not just the echo of another worker's."""
    return next((f for f in failures if f.kind not in ("peer", "left")), failures[0])


def decide(state: State, at: float) -> Decision:
    """Judge the attempt whose failures are in the state."""
    cause = cause_of(state.failures)
    reached = state.step_reached()
    advanced = reached is not None and (state.furthest is None or reached > state.furthest)
    furthest = max((s for s in (reached, state.furthest) if s is not None), default=None)
    last = state.history[-1] if state.history else None
    judged = replace(state, history=(*state.history, cause), furthest=furthest)
    if cause.kind in FREE:
        return Decision(judged, note=f"{cause}; starting again")
    if last and cause.place and cause.place == last.place and not advanced:
        return Decision(judged, Result(Ending.FAILED, f"{cause}, twice in a row at the same place with no progress between"))
    spent = (*(t for t in state.spent if t > at - state.policy.within), at)
    if len(spent) > state.policy.restarts:
        return Decision(judged, Result(Ending.FAILED, _used_up(cause, state)))
    fruitless = 0 if advanced else state.fruitless + 1
    wait = min(LONGEST_BACKOFF, 2.0 ** (fruitless - 2)) if fruitless > 1 else 0.0
    judged = replace(judged, spent=spent, fruitless=fruitless, not_before=at + wait)
    pause = f" in {wait:.0f} s" if wait else ""
    return Decision(judged, note=f"{cause}; starting again{pause} (restart {len(spent)} of {state.policy.restarts})")


def _used_up(cause: Failure, state: State) -> str:
    budget = state.policy.restarts
    if budget == 0:
        return f"{cause}, and the job allows no restart (restarts.max)"
    return f"{cause}, and all {budget} restarts within {state.policy.within:.0f} s are used up (restarts.max, restarts.within)"
