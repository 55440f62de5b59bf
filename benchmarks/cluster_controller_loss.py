"""The controller's pod is deleted while training goes on: attempts and steps that this costs, and when the next controller decides again.

There is no peer: nothing of a plain Job decides about a running attempt.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil

from benchmarks.cluster import apply, render, shared_namespace
from benchmarks.measure import Limit, report, runs_wanted
from benchmarks.pods import Line, Lines, last_words, logs, program_of, settle
from benchmarks.watch import PodWatch
from tests.cluster import faults
from tests.cluster.objects import Namespace

JOBS = 3
WATCHED = 30.0  # seconds of training after a loss: whoever gives up without a controller has done so by then
LOOK = 0.02  # seconds between two looks at how far training is
RESUMED = "resumed attempt"
PROGRAM = ("--directory", "/data")


@dataclass(frozen=True)
class Losses:
    """Two losses in one job: what the first one cost and when the next had resumed; when the one after the second decided."""

    attempts: float
    steps: float
    standstill: float
    decided: float
    resumed: float | None


def main() -> None:
    """A run is a job."""
    found = []
    for _ in range(runs_wanted(JOBS)):
        with shared_namespace() as (where, folder):
            found.append(losses(where, folder / "made-0"))
    for name, unit, limit in (
        ("attempts", "attempts ended", Limit(0)),
        ("steps", "steps lost", Limit(0)),
        ("standstill", "s without a step, at most", None),
        ("decided", "s from the next one's start to the first step after a SIGKILL", Limit(5)),
    ):
        report(f"cluster_controller_loss: {name}", unit, [getattr(each, name) for each in found], limit)
    said = [each.resumed for each in found if each.resumed is not None]
    if said:
        report(f"cluster_controller_loss: `{RESUMED}`", "s from the next one's start", said, Limit(5))


def losses(where: Namespace, made: Path) -> Losses:
    """Delete the controller, watch; delete the next one and kill a program as soon as the one after it has started."""
    lines, watch = Lines(where), PodWatch(where)
    steps = lines.first_steps(apply(render(where, *PROGRAM, shared=True)))
    settle(where, steps, standby=True)
    start = time.monotonic()
    first = _delete_controller(where)
    standstill = _longest_standstill(where, made)
    resumed = _resumed(where, *_next_controller(where, watch, first))
    since = [line for line in lines.look() if line.said["event"] == "first" and line.at > start]
    steps |= {line.said["worker"]: line for line in since}
    settle(where, steps, standby=True)
    second = _delete_controller(where)
    _, began = _next_controller(where, watch, first, second)
    decided = _kill(where, lines, steps[0]) - began
    lost = max((line.said["lost"] for line in since), default=0)
    return Losses(len({line.said["attempt"] for line in since}), lost, standstill, decided, resumed)


def _delete_controller(where: Namespace) -> str:
    (controller,) = where.pods("tfrun.dev/role=controller")
    where.cluster.core.delete_namespaced_pod(controller.metadata.name, where.name)
    return str(controller.metadata.name)


def _longest_standstill(where: Namespace, made: Path) -> float:
    """The longest time without a step while it is watched. Raises RuntimeError if training does not go on at all."""
    end = time.monotonic() + WATCHED
    longest, last, since = 0.0, "", time.monotonic()
    while (now := time.monotonic()) < end:
        step = made.read_text()
        longest = max(longest, now - since)
        if step != last:
            last, since = step, now
        time.sleep(LOOK)
    if now - since > WATCHED / 2:
        raise RuntimeError(f"training ended with the controller\n{last_words(where)}")
    return longest


def _next_controller(where: Namespace, watch: PodWatch, *before: str) -> tuple[str, float]:
    """Its pod, and when its process began, by the monotonic clock."""
    seen = watch.until(lambda seen: seen.index is None and seen.runs and seen.name not in before, "next controller")
    (began,) = (psutil.Process(pid).create_time() for pid in faults.processes(where.pod(seen.name)))
    return seen.name, began - _boot()


def _kill(where: Namespace, lines: Lines, step: Line) -> float:
    """SIGKILL of a program; returns when all had made the first step of the next attempt."""
    _, program = program_of(where, step)
    start = time.monotonic()
    os.kill(program, signal.SIGKILL)
    return max(step.at for step in lines.first_steps(start).values())


def _resumed(where: Namespace, controller: str, began: float) -> float | None:
    """Seconds until a controller said that it resumed; None if it did not."""
    for file in logs(where, controller):
        for line in file.read_text().splitlines():
            if RESUMED in line:
                at = datetime.fromisoformat(f"{line[:26]}+00:00")  # to the microsecond
                return at.timestamp() - _boot() - began
    return None


def _boot() -> float:
    """When the monotonic clock began, by the other one."""
    return time.time() - time.monotonic()


if __name__ == "__main__":
    main()
