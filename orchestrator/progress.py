"""The status line: how far the training is. Pure, but for the clock that it is given."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from orchestrator.deadlines import missing
from orchestrator.group import Phase, State

WINDOW = 10.0  # seconds over which the speed is measured


class Progress:
    """Collects what the workers report; `line()` may be called from another thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._state: State | None = None
        self._seen: deque[tuple[float, int]] = deque()

    def update(self, state: State) -> None:
        """Note the group's state; the speed is the chief's."""
        if self._state and self._state.attempt != state.attempt:
            self._seen.clear()
        self._state = state
        step, now = state.workers[0].beat.step, self._clock()
        if step is not None and (not self._seen or self._seen[-1][1] != step):
            self._seen.append((now, step))
        while self._seen and now - self._seen[0][0] > WINDOW and len(self._seen) > 2:
            self._seen.popleft()

    def line(self) -> str:
        """Such as "step 120/600 · 41.2 steps/s · 5.2k examples/s · loss 0.31 · 12 s left"; empty while nothing is known."""
        state = self._state
        if state is None:
            return ""
        if state.phase is Phase.GATHERING:
            return f"attempt {state.attempt}: {missing(state)} yet" if state.attempt else ""
        beat = state.workers[0].beat
        if state.phase is not Phase.RUNNING or beat.step is None:
            return ""
        parts = [f"step {beat.step}/{beat.total}" if beat.total else f"step {beat.step}"]
        speed = self._speed()
        if speed:
            parts.append(f"{compact(speed)} steps/s")
        parts += measured(beat.metrics)
        if beat.activity:
            parts.append(beat.activity)
        elif speed and beat.total:
            parts.append(f"{duration((beat.total - beat.step) / speed)} left")
        return " · ".join(parts)

    def _speed(self) -> float | None:
        seen = list(self._seen)
        if len(seen) < 2 or seen[-1][0] <= seen[0][0]:
            return None
        return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])


def measured(metrics: Mapping[str, float]) -> list[str]:
    """Such as ["5.2k examples/s", "loss 0.31"]: what something is made at, and then what it has come to."""
    speeds = [f"{compact(value)} {name}" for name, value in metrics.items() if name.endswith("/s")]
    return speeds + [f"{name} {value:.4g}" for name, value in metrics.items() if not name.endswith("/s")]


def compact(number: float) -> str:
    """Such as "41.2", "5.2k", "1.3M": as much of a speed as stays the same for long enough to be read."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:  # what would be rounded to 1000 of the smaller one
            digits = 1 if number < 9.95 * size else 0
            return f"{number / size:.{digits}f}".removesuffix(".0") + unit
    return f"{number:.3g}"


def duration(seconds: float) -> str:
    """Such as "0.4 s", "12 s", "3 min 20 s", "2 h 5 min"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
