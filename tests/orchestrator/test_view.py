"""What `tfrun status` and `tfrun list` show."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import get_args

import pytest

from orchestrator import tables, view
from orchestrator.facts import is_root
from orchestrator.group import Ending
from orchestrator.status import Status, WorkerRange
from tests.conftest import REPO
from tests.orchestrator.job_facts import (
    NOW,
    Json,
    condition,
    controller,
    facts,
    result,
    root,
    status,
    unschedulable,
    worker,
)


def test_a_table_in_a_pipe_is_aligned_text() -> None:
    """One row a line, however long: no escape codes, no wrapping, no empty cells."""
    rows = [{"name": "digits", "node": ""}, {"name": "a" * 200, "node": "node-1"}]
    lines = tables.table(("name", "node"), rows, terminal=False).splitlines()
    assert lines[0].split() == ["NAME", "NODE"]
    assert lines[1].split() == ["digits", "-"]
    assert lines[2].split() == ["a" * 200, "node-1"]
    assert {line.index(cell) for line, cell in zip(lines, ("NODE", "-", "node-1"), strict=True)} == {203}


def test_a_table_on_a_terminal_keeps_what_looks_like_markup() -> None:
    """A name with brackets is shown as it is."""
    assert "[red]x[/red]" in tables.table(("name",), [{"name": "[red]x[/red]"}], terminal=True)


def test_a_running_job() -> None:
    """The controller's status and the pods make one row for each worker."""
    told = status(
        step=340, total=600, restarts=1, attempt=1, workers=(WorkerRange(first=0, last=1, state="running", incarnation=0, step=340),)
    )
    known = facts(root(told), controller(), worker(0), worker(1))
    assert view.line(known) == "digits: running since 3 min 0 s · attempt 1 · step 340/600 · 1/10 restarts spent"
    measured = status(step=340, total=600, metrics={"loss": 0.31, "examples/s": 5200.0})
    assert view.line(facts(root(measured))).endswith("step 340/600 · 5.2k examples/s · loss 0.31 · 0/10 restarts spent")
    first, second = view.worker_rows(known)
    assert {key: first[key] for key in view.WORKER_COLUMNS} == {
        "worker": 0,
        "pod": "digits-0-0",
        "node": "node-0",
        "state": "running",
        "attempt": 1,
        "step": 340,
        "since": "1 min 0 s",
    }
    assert second["worker"] == 1
    document = json.loads(json.dumps(view.document(known)))
    assert (document["name"], document["phase"], document["attempt"], len(document["workers"])) == ("digits", "running", 1, 2)


@pytest.mark.parametrize(
    ("pod", "state"),
    [
        (None, "lost"),
        (worker(0), "joining"),  # the status tells of its predecessor
        (worker(0, incarnation=1), "lost"),
        (worker(0, "Succeeded"), "done"),
        (worker(0, "Failed"), "ended"),
        (unschedulable(worker(0), "0/2 nodes"), "unschedulable"),
        (worker(0, "Pending", waiting={"reason": "ContainerCreating"}), "starting"),
        (worker(0, "Pending", waiting={"reason": "ErrImagePull", "message": "no"}), "ErrImagePull"),
        (worker(0, "Pending", node=""), "pending"),
    ],
)
def test_a_worker_in_one_word(pod: Json | None, state: str) -> None:
    """What keeps its pod from running, else what its agent is at."""
    assert view.state_of(pod, WorkerRange(first=0, last=0, state="lost", incarnation=1)) == state


def test_a_leaving_worker_and_one_without_anything() -> None:
    """A pod that was told to go, and a worker of which there is nothing yet."""
    leaving = worker(0)
    leaving["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    assert view.state_of(leaving, None) == "leaving"
    assert view.state_of(None, None) == "no pod"


def test_the_newest_pod_of_a_worker_counts() -> None:
    """A replaced worker is shown once."""
    known = facts(root(status()), worker(1, incarnation=2), worker(0), worker(1, "Failed"))
    assert [row["pod"] for row in view.worker_rows(known)] == ["digits-0-0", "digits-1-2"]


@pytest.mark.parametrize(
    ("of", "phase"),
    [
        (root(), "starting"),
        (root(suspend=True), "suspended"),
        (root(status("gathering")), "gathering"),
        (root(status(), annotations={"tfrun.dev/stop": "SIGTERM"}), "stopping"),
        (root(status(), deletionTimestamp="2026-11-21T12:00:00Z"), "deleting"),
        (root(result("succeeded", "done", 0)), "succeeded"),
        (root(conditions=(condition("Failed", "BackoffLimitExceeded"),)), "failed"),
        (root(conditions=(condition("Failed", "DeadlineExceeded"),)), "deadline"),
    ],
)
def test_a_job_in_one_word(of: Json, phase: str) -> None:
    """The phase of `list` and `status`, also where the controller has written nothing."""
    assert view.job_row(facts(of))["phase"] == phase


@pytest.mark.parametrize(
    ("of", "pods", "code"),
    [
        (root(), (), None),
        (root(result("failed", "x", 1)), (), 1),
        (root(result("stopped", "x", 143)), (), 143),
        (root(conditions=(condition("Complete", "x"),)), (), 0),
        (root(conditions=(condition("Failed", "DeadlineExceeded"),)), (), 4),
        (root(conditions=(condition("Failed", "PodFailurePolicy"),)), (controller("Failed", terminated={"exitCode": 3}),), 3),
        (root(conditions=(condition("Failed", "BackoffLimitExceeded"),)), (controller("Failed", terminated={"exitCode": 137}),), 1),
    ],
)
def test_the_exit_code_of_a_job(of: Json, pods: tuple[Json, ...], code: int | None) -> None:
    """The controller's own, or what is known of its end where it wrote none."""
    assert facts(of, *pods).exit_code == code


def test_only_the_controllers_job_is_a_root() -> None:
    """The Job of a job called x-controller is not the controller of a job called x."""
    assert is_root(root())
    assert not is_root({"metadata": {"name": "x-controller", "labels": {"tfrun.dev/job": "x-controller"}}})


def test_a_clock_that_is_behind_tells_no_negative_age() -> None:
    """A laptop's clock is not the cluster's."""
    assert view.age(NOW + timedelta(seconds=30), NOW) == "0 s"


def test_every_word_is_explained() -> None:
    """docs/commands.md has a line for each phase of a job and each state of a worker."""
    page = (REPO / "docs" / "commands.md").read_text()
    explained = {word.strip() for line in re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE) for word in line.split(",")}
    phases = {*get_args(Status.model_fields["phase"].annotation)} - {"over"} | {ending.name.lower() for ending in Ending}
    states = {*get_args(WorkerRange.model_fields["state"].annotation)}
    ours = {"starting", "suspended", "stopping", "deleting", "no pod", "pending", "unschedulable", "joining", "leaving", "ended"}
    assert phases | states | ours <= explained
