"""The status document: what it says of a group, that it stays small, and what the next controller takes from it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

from orchestrator import record, status
from orchestrator.group import Failure, Status
from orchestrator.record import Clocks
from tests.orchestrator.group_driver import Group

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


def described(group: Group) -> status.Status:
    found = status.parse(record.describe(group.state, Clocks(group.at, NOON)).text())
    assert found
    return found


def test_a_running_group_is_told_in_a_line_for_any_number_of_workers() -> None:
    """Workers in the same state are one entry, with the smallest step of any of them."""
    group = Group(workers=3000).run()
    group.beat(0, step=7, total=100, busy=1.0)
    group.beat(2999, step=6, total=100, busy=1.0)
    found = described(group)
    assert (found.phase, found.attempt, found.step, found.total) == ("running", 0, 7, 100)
    (workers,) = found.workers
    assert (workers.first, workers.last, workers.state, workers.step) == (0, 2999, "running", 6)
    assert len(found.text()) < 400


def test_the_chiefs_metrics_are_told() -> None:
    """A few, finite, short ones: JSON has no NaN, and the document must stay small and readable."""
    group = Group(workers=2).run()
    odd = {"bad": float("nan"), "x" * 1000: 1.0}
    group.beat(0, step=7, metrics={"loss": 0.123456789, **odd, **{f"m{i}": float(i) for i in range(1000)}}, busy=1.0)
    group.beat(1, step=7, metrics={"loss": 0.5}, busy=1.0)
    found = described(group).metrics
    assert list(found.items())[:2] == [("loss", 0.123457), ("m0", 0.0)]
    assert len(found) == 20


def test_the_document_stays_below_what_an_annotation_holds() -> None:
    """Also where every other worker is in another state and failures are long."""
    group = Group(workers=20_000)
    odd = tuple(replace(worker, status=Status.READY) if i % 2 else worker for i, worker in enumerate(group.state.workers))
    failures = tuple(Failure(i, i, "error", "x" * 2000, "ValueError at train.py:1", i) for i in range(1000))
    group.state = replace(group.state, workers=odd, history=failures)
    assert len(described(group).text()) < 256 * 1024


def test_who_is_missing_is_told() -> None:
    """As part of a sentence, while the group gathers."""
    group = Group(workers=2)
    group.join(0)
    assert described(group).waiting == "worker 1 did not join, worker 0 joined but did not get ready (still importing)"


def test_the_next_controller_knows_the_budget() -> None:
    """Restarts that were spent, and when; the cause of each attempt; how far the training was."""
    group = Group(workers=1, restarts=3).run()
    group.beat(0, step=5, busy=1.0)
    group.ended(0, "error", "exited with code 3", "exit code 3", step=5)
    group.restart()
    before = record.before(described(group), [(0, 0)], NOON - timedelta(seconds=60), Clocks(500.0, NOON + timedelta(seconds=10)))
    assert before.known
    assert (before.attempt, before.begun, before.furthest) == (1, True, 5)
    assert before.started == 430.0
    assert before.spent == (490.0,)
    assert [str(failure) for failure in before.history] == ["worker 0 exited with code 3"]


def test_the_result_is_told() -> None:
    """For whoever asks later."""
    group = Group(workers=1).run()
    group.ended(0, "done", step=9)
    found = described(group)
    assert found.phase == "over"
    assert found.result == status.ResultRecord(ending="succeeded", reason="every worker's program ended with 0", exit_code=0)
    assert found.step == 9


def test_what_another_version_wrote_is_no_status() -> None:
    """It is ignored: the agents themselves tell more."""
    assert status.parse('{"phase": "dancing"}') is None
    assert status.parse("no json") is None
    assert status.parse(None) is None
