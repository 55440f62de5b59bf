"""1,000 workers on simulated nodes: how many pods a second come up, beside a plain Indexed Job of 1,000.

A simulated node runs nothing, so no agent joins: this is about what the objects ask of the cluster. The controller's pod is a real one.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks import plain_job
from benchmarks.cluster import IDLE, apply, cluster, namespace, render
from benchmarks.measure import Limit, Peer, in_turn, job, report, runs_wanted
from tests.cluster import layout, simulated
from tests.cluster.objects import Namespace
from tests.cluster.supervise import Supervisor

RUNS = 3
WORKERS, NODES = 1000, 20
SHARE = 0.9  # of the peer's pods a second, at least
PATIENCE = 120.0  # seconds without a word of a pod
SELECTOR = {simulated.LABEL: "true"}
TOLERATIONS = [{"key": simulated.LABEL, "operator": "Exists"}]
RESOURCES = {"cpu": "100m", "memory": "1Gi"}


def main() -> None:
    """Measure both in turn."""
    with simulated_nodes():
        values, theirs = in_turn(runs_wanted(RUNS), tfrun, indexed)
    rates = {name: WORKERS / statistics.median(found) for name, found in (("pods_per_s", values), ("peer_pods_per_s", theirs))}
    what = f"cluster_1000: apply to {WORKERS} running pods, {NODES} simulated nodes"
    report(what, "s", values, Limit(1 / SHARE, "ratio"), Peer("plain Indexed Job", theirs), **rates)


def tfrun() -> float:
    """Of a job of tfrun."""
    with namespace() as where:
        part = {"resources": RESOURCES, "node_selector": SELECTOR, "tolerations": TOLERATIONS}
        return seconds(where, render(where, program=IDLE, workers=WORKERS, **part))


def indexed() -> float:
    """Of a plain Indexed Job, sent in the same way."""
    with namespace() as where:
        group: dict[str, Any] = json.loads(plain_job.objects(where, workers=WORKERS, wait=False))
        pod = group["items"][-1]["spec"]["template"]["spec"]
        pod |= {"nodeSelector": SELECTOR, "tolerations": TOLERATIONS}
        # Without a TF_CONFIG of 1,000 names in each pod: the smallest Job is the one to be compared with.
        pod["containers"][0] |= {"command": ["true"], "resources": {"requests": RESOURCES, "limits": RESOURCES}}
        return seconds(where, json.dumps(group))


def seconds(where: Namespace, text: str) -> float:
    """From `kubectl apply` until the last of the workers' pods is seen running."""
    # Not a watch of Python's client: it makes objects of everything, for seconds of a processor that the cluster needs.
    shown = r"jsonpath={.metadata.name} {.spec.nodeName} {.status.phase}{'\n'}"
    watch = (layout.BIN / "kubectl", f"--kubeconfig={where.cluster.kubeconfig}", f"--namespace={where.name}", "get", "pods", "--watch")
    running: set[str] = set()
    with job((*watch, "--output", shown)) as run:
        start = apply(text)
        while len(running) < WORKERS:
            at, line = run.line(PATIENCE)
            name, *rest = line.split()
            if rest[0].startswith("simulated-") and rest[-1] == "Running":
                running.add(name)
    return at - start


@contextmanager
def simulated_nodes() -> Iterator[None]:
    """At least as many as are needed; afterwards as many as before."""
    there = len(cluster().core.list_node(label_selector=simulated.LABEL).items)
    supervisor = Supervisor(layout.STATE)
    supervisor.start(simulated.kwok())
    simulated.nodes(max(there, NODES))
    try:
        yield
    finally:
        simulated.nodes(there)
        if not there:
            supervisor.end("kwok")


if __name__ == "__main__":
    main()
