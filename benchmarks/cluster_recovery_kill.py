"""SIGKILL of a training process in a pod → the first step of the next attempt on both workers; five in one job, each worker in turn.

Beside it a plain Indexed Job whose containers start again in their pods (restartPolicy OnFailure), which waits longer each time.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

from benchmarks import plain_job
from benchmarks.cluster import RESTARTS, apply, namespace, render
from benchmarks.measure import Limit, Peer, report, runs_wanted
from benchmarks.pods import Lines, program_of, settle, until_it_gives_up
from tests.cluster.objects import Namespace

JOBS = 2
KILLS, PEER_KILLS = 5, 2  # in one job
LIMIT = 0.6  # seconds
PEER = "plain Indexed Job, OnFailure"


def main() -> None:
    """Measure both in turn; a run is a job."""
    found: list[list[float]] = []
    peers: list[list[float]] = []
    for _ in range(runs_wanted(JOBS)):
        with namespace() as where:
            found.append(list(kills(where, render(where), KILLS, standby=True)))
        with namespace() as where:
            text = plain_job.objects(where, restart="OnFailure", backoffLimit=RESTARTS)
            peers.append(until_it_gives_up(kills(where, text, PEER_KILLS, standby=False)))
    for number in range(KILLS):
        theirs = Peer(PEER, [values[number] for values in peers if number < len(values)])
        report(f"cluster_recovery_kill: kill {number + 1} of one job", "s", [values[number] for values in found], Limit(LIMIT), theirs)
    every, theirs = [value for values in found for value in values], Peer(PEER, [value for values in peers for value in values])
    report("cluster_recovery_kill: all", "s", every, Limit(LIMIT), theirs)


def kills(where: Namespace, text: str, count: int, standby: bool) -> Iterator[float]:
    """Seconds from each kill to the first step of both workers after it."""
    lines = Lines(where)
    steps = lines.first_steps(apply(text))
    for number in range(count):
        settle(where, steps, standby)
        _, program = program_of(where, steps[number % len(steps)])
        start = time.monotonic()
        os.kill(program, signal.SIGKILL)
        steps = lines.first_steps(start)
        yield max(step.at for step in steps.values()) - start


if __name__ == "__main__":
    main()
