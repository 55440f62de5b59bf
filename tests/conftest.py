"""Running tfrun for real: a process of its own, followed by handshakes, and checked to leave nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

TFRUN = Path(sys.executable).with_name("tfrun")
PROGRAMS = Path(__file__).parent / "programs"
# Whoever runs the tests in the background may have SIGINT ignored, and every program that they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

REPO = Path(__file__).parents[1]
MARK = "TFRUN_TEST_MARK"
IMPORTED = 200_000_000  # bytes: no TensorFlow is smaller
HANDSHAKE_DEADLINE = 90.0  # seconds: two TensorFlow imports on a busy machine


_ENTER = Path(__file__).parent / "programs" / "within"


class Run:
    """One `tfrun run` under way."""

    def __init__(self, arguments: list[str], cwd: Path, mark: str, env: dict[str, str], within: Path | None) -> None:
        self.cwd = cwd
        self._mark = mark
        self._err = (cwd / f"stderr-{uuid.uuid4().hex[:6]}").open("w+b")
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [*((_ENTER, within) if within else ()), TFRUN, "run", *arguments],
            cwd=cwd,
            env={**os.environ, **env, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._err,
            start_new_session=True,
        )

    def until(self, text: str, times: int = 1) -> list[str]:
        """Read output until `times` lines hold the text; returns those lines."""
        found: list[str] = []
        deadline = time.monotonic() + HANDSHAKE_DEADLINE
        assert self.process.stdout
        while len(found) < times:
            assert time.monotonic() < deadline, f"no {text!r} in time:\n{self.report()}"
            line = self.process.stdout.readline().decode(errors="replace")
            assert line, f"the output ended before {text!r}:\n{self.report()}"
            self.lines.append(line.rstrip("\n"))
            if text in line:
                found.append(self.lines[-1])
        return found

    def wait(self, timeout: float = HANDSHAKE_DEADLINE) -> int:
        """Read to the end; returns the exit code."""
        out, _ = self.process.communicate(timeout=timeout)
        self.lines += out.decode(errors="replace").splitlines()
        return self.process.returncode

    def errors(self) -> str:
        """What tfrun itself said."""
        self._err.seek(0)
        return self._err.read().decode()

    def report(self) -> str:
        return "\n".join([*self.lines, "--- stderr", self.errors()])

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return (self.cwd / ".tfrun" / "latest").resolve()

    def result(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "result.json").read_text()))

    def log(self, worker: int, attempt: int) -> str:
        return (self.folder / f"worker-{worker}" / f"attempt-{attempt}.log").read_text(errors="replace")

    def agent(self, worker: int) -> psutil.Process:
        """The newest agent of a worker."""
        found = [p for p in self.processes() if _is_agent(p, worker)]
        return max(found, key=lambda p: p.create_time())

    def child(self, worker: int) -> psutil.Process:
        """The process that runs the program: the oldest child of the agent."""
        return min(self.agent(worker).children(), key=lambda p: p.create_time())

    def standby(self, worker: int) -> psutil.Process:
        """The process that waits beside the program, once it has imported everything: then it sleeps until it is needed."""
        deadline = time.monotonic() + HANDSHAKE_DEADLINE
        while time.monotonic() < deadline:
            waiting = [p for p in self.agent(worker).children() if "--standby" in p.cmdline()]
            if waiting and waiting[0].memory_info().rss > IMPORTED and _idle(waiting[0]):
                return waiting[0]
            time.sleep(0.1)  # polling with a deadline: a process of strangers can't be waited for
        raise AssertionError(f"no standby:\n{self.report()}")

    def processes(self) -> list[psutil.Process]:
        """Every process that came of this run, however deep and however detached."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def gone(self) -> bool:
        """Wait until nothing of the run is left; False if something stays."""
        deadline = time.monotonic() + 10.0
        while self.processes():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)  # polling with a deadline: processes of strangers can't be waited for
        return True

    def close(self) -> None:
        left = [] if self.process.poll() is None else self.processes() if not self.gone() else []
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        self._err.close()
        assert not left, f"left behind: {left}"


def _idle(process: psutil.Process) -> bool:
    """Whether it uses no processor."""
    before = sum(process.cpu_times()[:2])
    time.sleep(0.5)  # what is measured is a rate
    return sum(process.cpu_times()[:2]) == before


def _is_agent(process: psutil.Process, worker: int) -> bool:
    with contextlib.suppress(psutil.Error):
        words = process.cmdline()
        return "agent" in words and "--worker" in words and words[words.index("--worker") + 1] == str(worker)
    return False


Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `tfrun run …` in an empty folder; afterwards nothing of it may be left."""
    runs: list[Run] = []

    def begin(*arguments: object, cwd: Path = tmp_path, within: Path | None = None, **env: str) -> Run:
        runs.append(Run([str(a) for a in arguments], cwd, uuid.uuid4().hex, env, within))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()


@pytest.fixture
def finish(start: Start) -> Callable[..., Run]:
    """Run `tfrun run …` to its end; `run.code` is the exit code."""

    def complete(*arguments: object, **options: Any) -> Run:
        run = start(*arguments, **options)
        run.wait()
        return run

    return complete


@pytest.fixture
def memory_limit() -> Iterator[Callable[[int], Path]]:
    """A memory control group of so many bytes; skips where this system lets us make none."""
    made: list[Path] = []

    def limited(limit: int) -> Path:
        v1 = Path("/sys/fs/cgroup/memory")
        folder = (v1 if v1.is_dir() else Path("/sys/fs/cgroup")) / f"tfrun-test-{uuid.uuid4().hex[:8]}"
        try:
            folder.mkdir()
            made.append(folder)
            (folder / ("memory.limit_in_bytes" if v1.is_dir() else "memory.max")).write_text(str(limit))
        except OSError as e:
            pytest.skip(f"no memory control group can be made here ({e.strerror})")
        return folder

    yield limited
    for folder in made:
        folder.rmdir()


@pytest.fixture
def program() -> Callable[[str], Path]:
    """A program of tests/programs."""
    return lambda name: PROGRAMS / f"{name}.py"


def oldest_python() -> Path:
    """The interpreter with the oldest TensorFlow; skips with the reason where there is none, but not in CI."""
    python = REPO / ".venv-oldest" / "bin" / "python"
    if not python.exists():
        assert "TFRUN_REQUIRE_OLDEST" not in os.environ, "CI must test the oldest TensorFlow: no .venv-oldest"
        pytest.skip("there is no .venv-oldest with TensorFlow 2.15 (make oldest needs a python3.9)")
    return python
