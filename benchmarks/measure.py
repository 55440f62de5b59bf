"""What the benchmarks share: runs in turn, JSON lines, and jobs that are followed by what they print."""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TFRUN = Path(sys.executable).with_name("tfrun")
PROGRAMS = Path(__file__).parent / "programs"
RUNS = 10
PATIENCE = 120.0  # seconds without a word until a job counts as hung
STOP_TIME = 20.0  # seconds that a job has to end after SIGTERM


def runs_wanted(default: int = RUNS) -> int:
    """How many runs the command line asks for: fewer than the default only while a benchmark is written."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=default)
    return int(parser.parse_args().runs)


def in_turn(runs: int, *contenders: Callable[[], float]) -> list[list[float]]:
    """Run A B A B …, so that what disturbs the machine disturbs all of them. Returns each contender's values; no run is left out."""
    values: list[list[float]] = [[] for _ in contenders]
    for _ in range(runs):
        for found, contender in zip(values, contenders, strict=True):
            found.append(contender())
    return values


@dataclass(frozen=True)
class Limit:
    """A target: `of` is "value", "ratio" (value / peer's) or "difference" (value - peer's)."""

    at_most: float
    of: str = "value"


@dataclass(frozen=True)
class Peer:
    """Who did the same beside us, and its values."""

    name: str
    values: Sequence[float]


def report(what: str, unit: str, values: Sequence[float], limit: Limit | None = None, peer: Peer | None = None, **more: object) -> None:
    """Print a number as a line of JSON."""
    line: dict[str, object] = {"what": what, **_summary("", values), "unit": unit}
    found = {"value": statistics.median(values)}
    if peer and peer.values:
        line |= {"peer": peer.name, **_summary("peer_", peer.values)}
        theirs = statistics.median(peer.values)
        found |= {"difference": found["value"] - theirs, **({"ratio": found["value"] / theirs} if theirs else {})}
        line |= {name: _rounded(found[name]) for name in ("ratio", "difference") if name in found}
    if limit:
        line |= {"target": f"{limit.of} <= {limit.at_most:g}", "met": found[limit.of] <= limit.at_most}
    print(json.dumps({**line, **more}), flush=True)


def _summary(prefix: str, values: Sequence[float]) -> dict[str, object]:
    ends = {"value": statistics.median(values), "min": min(values), "max": max(values)}
    return {**{prefix + name: _rounded(value) for name, value in ends.items()}, f"{prefix}runs": len(values)}


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


class Job:
    """A command under way in a folder of its own; its lines come with the time at which they could be read."""

    def __init__(self, command: Sequence[object], folder: Path, env: dict[str, str] | None = None) -> None:
        self.ended = 0.0
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [str(word) for word in command],
            cwd=folder,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._lines: queue.Queue[tuple[float, str]] = queue.Queue()
        self._errors: list[str] = []
        self._readers = [threading.Thread(target=read) for read in (self._read_lines, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def line(self, patience: float = PATIENCE) -> tuple[float, str]:
        """The next line, as (time, text). Raises RuntimeError if none comes."""
        try:
            at, text = self._lines.get(timeout=patience)
        except queue.Empty:
            raise RuntimeError(f"no line within {patience:g} s:\n{self.errors()}") from None
        if not text:
            raise RuntimeError(f"the output ended too early:\n{self.errors()}")
        return at, text

    def finish(self) -> int:
        """Wait for the end; returns the exit code. `ended` is when that was."""
        hung = threading.Timer(PATIENCE, self.process.kill)  # wait(timeout) would look only every 50 ms
        hung.start()
        code = self.process.wait()
        self.ended = self.ended or time.monotonic()
        hung.cancel()
        for reader in self._readers:
            reader.join()
        return code

    def stop(self) -> None:
        """End it: SIGTERM, on which a launcher ends its workers, then SIGKILL."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_TIME)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.finish()

    def errors(self) -> str:
        """What it wrote to stderr so far."""
        return "".join(self._errors)

    def _read_lines(self) -> None:
        assert self.process.stdout
        with self.process.stdout as lines:
            for line in lines:
                self._lines.put((time.monotonic(), line.decode(errors="replace")))
        self._lines.put((time.monotonic(), ""))

    def _read_errors(self) -> None:
        assert self.process.stderr
        with self.process.stderr as lines:
            self._errors.extend(line.decode(errors="replace") for line in lines)


@contextmanager
def job(command: Sequence[object], env: dict[str, str] | None = None) -> Iterator[Job]:
    """Start a command in an empty folder; at the end of the context it is ended and the folder is gone."""
    with tempfile.TemporaryDirectory(prefix="tfrun-bench-") as folder:
        started = Job(command, Path(folder), env)
        try:
            yield started
        finally:
            started.stop()


def free_ports(count: int) -> list[int]:
    """Ports that nobody has at the moment, all different."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def high_water(pid: int | str = "self") -> float:
    """The most memory that a process ever had resident, in MB. Not ru_maxrss: that counts its children, and its parent before exec."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"process {pid} has no memory any more")
