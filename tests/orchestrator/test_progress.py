"""The status line."""

from __future__ import annotations

import pytest

from orchestrator.progress import Progress, compact, duration
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


def test_metrics_that_are_speeds_stand_beside_the_speed() -> None:
    """Their value first, as one says it, and short enough to be read while it changes."""
    group = Group(workers=2).run()
    progress = Progress(lambda: group.at)
    for step in (100, 120):
        group.beat(0, step=step, total=600, metrics={"loss": 0.31, "examples/s": 5234.6, "accuracy": 0.5})
        progress.update(group.state)
        group.at += 0.5
    assert progress.line() == "step 120/600 · 40 steps/s · 5.2k examples/s · loss 0.31 · accuracy 0.5 · 12 s left"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0412, "0.0412"),
        (41.23, "41.2"),
        (999.4, "999"),
        (999.6, "1k"),
        (5234.6, "5.2k"),
        (9960, "10k"),
        (152_300, "152k"),
        (999_600, "1M"),
        (1_340_000, "1.3M"),
        (2.5e9, "2.5G"),
        (float("nan"), "nan"),
    ],
)
def test_large_numbers_are_short(number: float, text: str) -> None:
    """At most four characters, whatever is rounded up."""
    assert compact(number) == text


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
