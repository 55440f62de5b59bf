"""The status line."""

from __future__ import annotations

import pytest

from orchestrator.progress import Progress, duration
from tests.orchestrator.group_driver import Group


def test_the_line_tells_steps_speed_metrics_and_time_left() -> None:
    """The chief's report, and a speed measured over the last seconds."""
    group = Group(workers=2).run()
    progress = Progress(lambda: group.at)
    assert progress.line() == ""
    for step in range(0, 101, 10):
        group.beat(0, step=step, total=600, metrics={"loss": 0.25})
        progress.update(group.state)
        group.at += 1.0
    assert progress.line() == "step 100/600 · 10 steps/s · loss 0.25 · 50 s left"
    group.beat(0, step=100, total=600, activity="evaluation")
    progress.update(group.state)
    assert progress.line() == "step 100/600 · 10 steps/s · evaluation"


def test_the_speed_is_that_of_this_attempt() -> None:
    """A restart begins a new measurement; an unknown total leaves out the time left."""
    group = Group(workers=1).run()
    progress = Progress(lambda: group.at)
    group.beat(0, step=50)
    progress.update(group.state)
    assert progress.line() == "step 50"
    group.ended(0, "error", "x", "p", step=50)
    progress.update(group.state)
    assert progress.line() == "attempt 1: worker 0 joined but did not get ready (still importing) yet"
    group.restart()
    progress.update(group.state)
    assert progress.line() == ""
    group.beat(0, step=40)
    progress.update(group.state)
    assert progress.line() == "step 40"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (9.94, "9.9 s"), (12.2, "12 s"), (59.7, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    """As people write them."""
    assert duration(seconds) == text
