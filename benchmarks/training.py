"""Training jobs whose workers say when they made the first step of an attempt, and what happens when one is killed or stopped."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks.measure import PROGRAMS, TFRUN, Job, job
from benchmarks.peer import torchrun

STEPS = PROGRAMS / "steps.py"
TORCH_STEPS = PROGRAMS / "torch_steps.py"
RESTARTS = 1000  # more than any benchmark needs
IMPORTED = 150e6  # bytes: a process that has TensorFlow takes at least so much
QUIET = 0.5  # seconds without work until a standby counts as waiting
STANDBY_DEADLINE = 90.0  # seconds: it imports at the lowest priority, beside training on two processors


@dataclass(frozen=True)
class FirstStep:
    """One worker's first step of an attempt: the process that made it, and when."""

    pid: int
    at: float


@contextmanager
def tfrun_job(workers: int, standby: bool = True) -> Iterator[Job]:
    """A training that goes on until it is stopped."""
    flags = () if standby else ("--no-standby",)
    with TemporaryDirectory(prefix="tfrun-bench-") as folder:
        file = Path(folder) / "job.yaml"  # JSON is YAML
        file.write_text(json.dumps({"program": str(STEPS), "workers": workers, "restarts": {"max": RESTARTS}}))
        with job((TFRUN, "run", *flags, file)) as run:
            yield run


@contextmanager
def torchrun_job(workers: int) -> Iterator[Job]:
    """The same of torchrun. --standalone, as its own documentation starts one machine's workers.

    By default torch 2.15 keeps its store over restarts, and gloo finds the dead workers' addresses there: a restart then takes several
    tries or hangs. So it gets a new store for each.
    """
    command = (torchrun(), "--standalone", "--nproc-per-node", workers, "--max-restarts", RESTARTS, TORCH_STEPS)
    with job(command, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}) as run:
        yield run


def first_steps(run: Job, workers: int) -> dict[int, FirstStep]:
    """Follow a job until every worker has made the first step of one and the same attempt. Returns them by worker."""
    attempts: dict[int, dict[int, FirstStep]] = defaultdict(dict)
    while True:
        words = run.line()[1].partition("step ")[2].split()
        if len(words) != 4:
            continue
        worker, attempt, pid, at = int(words[0]), int(words[1]), int(words[2]), float(words[3])
        attempts[attempt][worker] = FirstStep(pid, at)
        if len(attempts[attempt]) == workers:
            return attempts[attempt]


def recoveries(run: Job, workers: int, signal: int, count: int, standby: bool) -> list[float]:
    """Signal one worker's process after the other; returns the seconds from each signal to the next attempt's first step on all workers."""
    values = []
    steps = first_steps(run, workers)
    for number in range(count):
        if standby:
            await_standbys([step.pid for step in steps.values()])
        else:
            time.sleep(2 * QUIET)
        victim = steps[number % workers].pid
        start = time.monotonic()
        os.kill(victim, signal)
        steps = first_steps(run, workers)
        values.append(max(step.at for step in steps.values()) - start)
    return values


def import_time(processes: int) -> float:
    """Seconds that `import tensorflow` takes in so many processes at once, from the start of the first to the end of the last."""
    with ExitStack() as stack:
        command = (TFRUN.with_name("python"), PROGRAMS / "import_time.py")
        runs = [stack.enter_context(job(command)) for _ in range(processes)]
        ends = [float(run.line()[1].split()[1]) for run in runs]
        return max(ends) - runs[0].started


def await_standbys(pids: list[int]) -> None:
    """Wait until a standby beside each of these processes has imported everything: it is large, and uses no processor any more."""
    deadline = time.monotonic() + STANDBY_DEADLINE
    used: dict[int, float] = {}
    while True:
        before, used = used, {p.pid: sum(p.cpu_times()[:2]) for pid in pids for p in _standbys(pid)}
        if len(used) == len(pids) and used == before:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(used)} of {len(pids)} standbys are ready after {STANDBY_DEADLINE:g} s")
        time.sleep(QUIET)


def _standbys(pid: int) -> list[psutil.Process]:
    """The imported processes that the same agent keeps beside this one."""
    found = []
    with suppress(psutil.Error):
        for process in psutil.Process(pid).parent().children():
            with suppress(psutil.Error):
                if process.pid != pid and process.memory_info().rss > IMPORTED:
                    found.append(process)
    return found
