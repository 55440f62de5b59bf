"""Eviction of a worker → training again on both; five in one job, each worker in turn.

Also: until the replacement's pod is seen Running, and how many steps were made that the next attempt had to make again. Beside it a plain
Indexed Job with backoffLimitPerIndex.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks import plain_job
from benchmarks.cluster import RESTARTS, apply, render, shared_namespace
from benchmarks.measure import Limit, Peer, report, runs_wanted
from benchmarks.pods import Lines, settle, until_it_gives_up
from benchmarks.watch import PodWatch
from tests.cluster import faults
from tests.cluster.objects import Namespace

JOBS = 2
EVICTIONS, PEER_EVICTIONS = 5, 2  # in one job
PEER = "plain Indexed Job, backoffLimitPerIndex"
PROGRAM = ("--directory", "/data")


@dataclass(frozen=True)
class Recovery:
    """What followed an eviction: seconds until training, seconds until the new pod ran, steps made again."""

    training: float
    running: float
    lost: float


def main() -> None:
    """Measure both in turn; a run is a job."""
    found: list[list[Recovery]] = []
    peers: list[list[Recovery]] = []
    for _ in range(runs_wanted(JOBS)):
        with shared_namespace() as (where, _):
            found.append(list(evictions(where, render(where, *PROGRAM, shared=True), EVICTIONS, standby=True)))
        with shared_namespace() as (where, _):
            text = plain_job.objects(where, *PROGRAM, shared=True, backoffLimitPerIndex=RESTARTS)
            peers.append(until_it_gives_up(evictions(where, text, PEER_EVICTIONS, standby=False)))
    for number in range(EVICTIONS):
        theirs = Peer(PEER, [job[number].training for job in peers if number < len(job)])
        values = [job[number].training for job in found]
        report(f"cluster_recovery_evict: eviction {number + 1} of one job, to training", "s", values, Limit(4.5), theirs)
    every, all_peers = [each for job in found for each in job], [each for job in peers for each in job]
    for name, unit, limit in (("training", "s", 4.5), ("running", "s", 1.5), ("lost", "steps", 0)):
        theirs = Peer(PEER, [getattr(each, name) for each in all_peers])
        report(f"cluster_recovery_evict: all, {name}", unit, [getattr(each, name) for each in every], Limit(limit), theirs)


def evictions(where: Namespace, text: str, count: int, standby: bool) -> Iterator[Recovery]:
    """Evict one worker after the other, each when the one before has been made good."""
    lines, watch = Lines(where), PodWatch(where)
    steps = lines.first_steps(apply(text))
    for number in range(count):
        settle(where, steps, standby)
        victim = number % len(steps)
        left = where.pod(steps[victim].pod)
        old = {seen.name for seen in watch.seen}
        start = time.monotonic()
        faults.evict(where.cluster.core, left)
        running = watch.until(lambda seen, old=old: seen.runs and seen.name not in old, "running replacement")
        steps = lines.first_steps(start)
        training = max(step.at for step in steps.values()) - start
        yield Recovery(training, running.at - start, max(step.said["lost"] for step in steps.values()))


if __name__ == "__main__":
    main()
