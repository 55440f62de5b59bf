"""A worker without a controller: when it starts its program again, when it gives up, what it leaves. Real processes, no TensorFlow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import PROGRAMS, REPO
from worker_image.protocol import Outcome
from worker_image.static import Group, Judge

Worker = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    """Start `worker_image static` for a group of one, which the name of this machine's loopback has the address of."""
    started: list[subprocess.Popen[str]] = []

    def start(*program: str, service: str = "localhost", deadline: float = 30.0, restarts: int = 3) -> subprocess.Popen[str]:
        group = {"cluster": {"worker": [f"{service}:2222"]}, "service": service, "start": deadline}
        (tmp_path / "static.json").write_text(json.dumps({**group, "restarts": {"max": restarts, "within": 60}}))
        command = [sys.executable, str(REPO / "worker_image"), "static", str(tmp_path / "static.json"), "script", *program]
        environ = {**os.environ, "JOB_COMPLETION_INDEX": "0"}
        process = subprocess.Popen(command, cwd=tmp_path, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        started.append(process)
        return process

    yield start
    for process in started:
        process.terminate()  # it ends all that is below it, which SIGKILL would leave
        process.communicate(timeout=30)


def below(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def until(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f"the output ended before {text!r}")


def test_it_ends_with_the_program(worker: Worker) -> None:
    """With 0, after the program has got its TF_CONFIG, its index and its attempt."""
    process = worker(str(PROGRAMS / "steps.py"), "3", "0")
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0, out
    assert out.splitlines() == ["begin 0 0", "stepping 0 0", "end 0 0"]


def test_the_program_finds_its_place(worker: Worker, tmp_path: Path) -> None:
    """TF_CONFIG holds the whole cluster and this worker's own task."""
    (tmp_path / "p.py").write_text("import os; print(os.environ['TF_CONFIG'])\n")
    out, _ = worker("p.py").communicate(timeout=30)
    assert json.loads(out) == {"cluster": {"worker": ["localhost:2222"]}, "task": {"type": "worker", "index": 0}}


def test_a_killed_program_is_started_again(worker: Worker) -> None:
    """With the next attempt's number; what it had started is gone before."""
    process = worker(str(PROGRAMS / "waits.py"), "family")
    until(process, "waiting 0 0")
    before = below(process)
    assert len(before) == 3
    before[0].kill()
    until(process, "the program was killed by SIGKILL (killed from outside); starting it again")
    until(process, "waiting 0 1")
    assert not any(each.is_running() for each in before)


def test_the_same_failure_at_the_same_place_is_final(worker: Worker, tmp_path: Path) -> None:
    """A program that can't work is not tried until the budget is used up."""
    (tmp_path / "p.py").write_text("raise ValueError('no data')\n")
    process = worker("p.py")
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert out.count("Traceback") == 2
    assert "the program raised ValueError: no data; starting it again\n" in out
    assert "the program raised ValueError: no data, twice at the same place with no progress between\n" in out


def test_missing_workers_are_named_and_the_wait_has_an_end(worker: Worker) -> None:
    """After 5 s the log says who; at the start deadline it ends with 4, and the program never began."""
    process = worker(str(PROGRAMS / "waits.py"), service="nowhere.invalid", deadline=7.0)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 4
    assert out.splitlines() == [
        "tfrun: worker 0: waiting: no pod of worker 0 runs",
        "tfrun: worker 0: no pod of worker 0 runs after 7 s (deadlines.start)",
    ]


@pytest.mark.parametrize("how", ["", "polite", "family"])
def test_sigterm_leaves_nothing(worker: Worker, how: str) -> None:
    """The program may save, if it has a handler of its own; then all of it is gone."""
    process = worker(str(PROGRAMS / "waits.py"), how)
    until(process, "waiting 0 0")
    before = below(process)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=15)
    assert process.returncode == 143
    assert ("told to end" in out.replace("told to end from outside", "")) is (how == "polite")
    assert not any(each.is_running() for each in before)


def test_sigterm_while_it_waits_for_others(worker: Worker) -> None:
    """It ends at once."""
    process = worker(str(PROGRAMS / "waits.py"), service="nowhere.invalid")
    until(process, "waiting: no pod of worker 0 runs")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=5)
    assert process.returncode == 143


def judge(**fields: Any) -> Judge:
    return Judge(
        Group(**{"cluster": {"worker": ["a:1"]}, "service": "a", "start": 1, "max_restarts": 2, "within": 100, "worker": 0, **fields})
    )


def error(place: str, step: int | None = None) -> Outcome:
    return Outcome("error", "failed", place, 1, step)


PEER = Outcome("peer", "raised UnavailableError", "UnavailableError at p.py:1", 1)


def test_the_loss_of_another_worker_is_free() -> None:
    """However often, at whatever place."""
    judging = judge()
    assert [judging.objection(PEER, at, 1.0) for at in range(20)] == [""] * 20


def test_the_budget() -> None:
    """So many failures within its time, at different places."""
    judging = judge()
    assert not judging.objection(error("a"), 0, 1)
    assert not judging.objection(error("b"), 1, 1)
    assert judging.objection(error("c"), 2, 1) == "and all 2 restarts within 100 s are used up (restarts.max)"
    assert not judging.objection(error("d"), 101.5, 1)


def test_progress_makes_the_same_place_another_one() -> None:
    """A failure that comes after more steps than the one before is not the same."""
    judging = judge()
    assert not judging.objection(error("a", 5), 0, 1)
    assert not judging.objection(error("a", 6), 1, 1)
    assert judging.objection(error("a", 6), 2, 1) == "twice at the same place with no progress between"


def test_pauses_grow_and_end() -> None:
    """Failures in a row that come no further wait 0, 1, 2, 4 … 30 s; progress, or a minute of running, resets that."""
    judging = judge()
    pauses = []
    for at in range(9):
        judging.objection(PEER, at, 1.0)
        pauses.append(judging.pause())
    assert pauses == [0, 1, 2, 4, 8, 16, 30, 30, 30]
    judging.objection(PEER, 10, 61.0)
    assert judging.pause() == 0
