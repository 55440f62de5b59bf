"""A node is lost with a worker on it → training again on both, the replacement on the other node; and that no index ever trained twice.

The kubelet is killed, and the pod is frozen without a network, so that nothing of it can be seen or told. Later it thaws, while training
goes on. The counter must end exactly. Beside it, once, a plain Indexed Job, for a minute.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kubernetes.client import V1Pod

from benchmarks import plain_job
from benchmarks.cluster import RESTARTS, apply, render, shared_namespace
from benchmarks.measure import Limit, report, runs_wanted
from benchmarks.pods import Line, Lines, settle
from benchmarks.watch import PodWatch
from tests.cluster import faults
from tests.cluster.objects import Namespace

JOBS = 3
STEPS = 3000  # 2 minutes and more: beyond the loss and the thaw
PEER_WATCHED = 60.0  # seconds
ENDS = 300.0  # seconds until the job must be over
PROGRAM = ("--directory", "/data", "--steps", STEPS)
# Two such workers and the controller fit on the node that is left.
SMALL = {"resources": {"cpu": "800m", "memory": "3Gi"}}


@dataclass(frozen=True)
class Loss:
    """What the loss of a node did: seconds until training, seconds until the new pod ran, indices that two live pods had, a wrong end."""

    training: float
    running: float
    twice: float
    inexact: float


def main() -> None:
    """A run is a job."""
    found = []
    for _ in range(runs_wanted(JOBS)):
        with shared_namespace() as (where, _):
            found.append(lost_node(where))
    seen = peer()
    for name, unit, limit in (
        ("training", "s", None),
        ("running", "s until the replacement's pod runs", None),
        ("twice", "indices that two live workers had", Limit(0)),
        ("inexact", "wrong counters at the end", Limit(0)),
    ):
        report(f"cluster_node_lost: {name}", unit, [getattr(each, name) for each in found], limit, peer_seen=seen)


def lost_node(where: Namespace) -> Loss:
    """Lose the node of a worker, not the controller's; give it back when training goes on; wait for the end."""
    lines, watch = Lines(where), PodWatch(where)
    steps = lines.first_steps(apply(render(where, *PROGRAM, shared=True, **SMALL)))
    settle(where, steps, standby=True)
    (controller,) = where.pods("tfrun.dev/role=controller")
    victim = _elsewhere(where, steps, controller.spec.node_name)
    old = {seen.name for seen in watch.seen}
    with lost(victim) as start:
        running = watch.until(lambda seen: seen.runs and seen.name not in old, "running replacement")
        assert running.pod["spec"]["nodeName"] != victim.spec.node_name, "the replacement is on the lost node"
        steps = lines.first_steps(start)
    training = max(step.at for step in steps.values()) - start
    exact = where.until(lambda: [line.said["exact"] for line in lines.look() if line.said["event"] == "done"], "end", ENDS)
    return Loss(training, running.at - start, _had_twice(watch), float(not all(exact)))


def peer() -> str:
    """What a plain Indexed Job does in the same time; it waits five minutes until the pod counts as gone."""
    with shared_namespace() as (where, _):
        lines = Lines(where)
        steps = lines.first_steps(apply(plain_job.objects(where, *PROGRAM, shared=True, backoffLimitPerIndex=RESTARTS)))
        settle(where, steps, standby=False)
        with lost(where.pod(steps[1].pod)) as start:
            try:
                again = max(step.at for step in lines.first_steps(start, patience=PEER_WATCHED).values()) - start
            except TimeoutError:
                return f"plain Indexed Job: nothing within {PEER_WATCHED:g} s (1 run)"
        return f"plain Indexed Job: {again:.1f} s (1 run)"


@contextmanager
def lost(pod: V1Pod) -> Iterator[float]:
    """Nothing comes from a pod nor from its kubelet any more; gives the time at which that began."""
    start = time.monotonic()
    with faults.network_cut(pod), faults.frozen(pod), faults.kubelet_gone(pod.spec.node_name):
        yield start


def _elsewhere(where: Namespace, steps: dict[int, Line], node: str) -> V1Pod:
    for step in steps.values():
        pod = where.pod(step.pod)
        if pod.spec.node_name != node:
            return pod
    raise RuntimeError(f"both workers are on the controller's node, {node}; start again")


def _had_twice(watch: PodWatch) -> float:
    """How many workers had two live pods at some moment; one that is being deleted is not live."""
    live: dict[str, int] = {}
    twice: set[int] = set()
    for seen in watch.seen:
        if seen.index is not None and seen.runs and not seen.pod["metadata"].get("deletionTimestamp"):
            twice |= {seen.index} & {index for name, index in live.items() if name != seen.name}
            live[seen.name] = seen.index
        else:
            live.pop(seen.name, None)
    return float(len(twice))


if __name__ == "__main__":
    main()
