"""What can happen to a pod, a node, a network, an API server: done to real ones. Those that need this machine say so (`machine`)."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import kubernetes
from kubernetes.client import V1Pod

from tests.cluster import control_groups, control_plane, layout, node
from tests.cluster.supervise import Supervisor

PATIENCE = 30.0  # seconds until a fault must show
_TABLE = f"{layout.NAME}-faults"


def evict(core: kubernetes.client.CoreV1Api, pod: V1Pod, grace: int | None = None) -> None:
    """Through the eviction API, as a drain does it: disruption budgets hold, the pod gets the condition DisruptionTarget."""
    options = None if grace is None else {"gracePeriodSeconds": grace}
    body = {"metadata": {"name": pod.metadata.name, "namespace": pod.metadata.namespace}, "deleteOptions": options}
    core.create_namespaced_pod_eviction(pod.metadata.name, pod.metadata.namespace, body)


def processes(pod: V1Pod, container: str | None = None) -> dict[int, str]:
    """The processes of a pod's containers (not of its sandbox) as this machine numbers them, with their command lines."""
    found = {}
    for group in _groups(pod, container):
        for pid in control_groups.processes(group):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            found[pid] = b" ".join(words).decode(errors="replace").strip()
    return found


def kill(pod: V1Pod, command: str, number: int = signal.SIGKILL) -> int:
    """Send a signal to the one process of a pod whose command line holds a text; returns its pid."""
    found = {pid: words for pid, words in processes(pod).items() if command in words}
    assert len(found) == 1, f"{len(found)} processes with {command!r} in {pod.metadata.name}: {processes(pod)}"
    (pid,) = found
    os.kill(pid, number)
    return pid


@contextmanager
def frozen(pod: V1Pod, container: str | None = None) -> Iterator[None]:
    """Stop everything in a pod's containers with the control group's freezer: no signal, no chance to notice it."""
    groups = _groups(pod, container)
    for group in groups:
        control_groups.freeze(group, True)
    try:
        yield
    finally:
        for group in groups:
            if group.exists():
                control_groups.freeze(group, False)


@contextmanager
def network_cut(*ends: V1Pod) -> Iterator[None]:
    """Drop every packet between two pods, or between one pod and everything, without telling either."""
    source, target = (ends[0].status.pod_ip, ends[1].status.pod_ip if len(ends) > 1 else "0.0.0.0/0")
    rules = "".join(
        f"chain {hook} {{ type filter hook {hook} priority -300; ip saddr {a} ip daddr {b} drop; ip saddr {b} ip daddr {a} drop; }}\n"
        for hook, a, b in (("forward", source, target), ("input", source, target), ("output", source, target))
    )
    name = f"{_TABLE}-{ends[0].metadata.uid}"
    subprocess.run(["nft", "-f", "-"], input=f"table inet {name} {{\n{rules}}}\n".encode(), check=True)
    try:
        yield
    finally:
        subprocess.run(["nft", "delete", "table", "inet", name], check=True)


@contextmanager
def api_gone() -> Iterator[None]:
    """Kill the API server; connections are refused until it is started again."""
    supervisor = Supervisor(layout.STATE)
    supervisor.end("apiserver")
    try:
        yield
    finally:
        supervisor.start(control_plane.apiserver())


@contextmanager
def api_frozen() -> Iterator[None]:
    """Stop the API server: connections are taken, and nothing answers."""
    process = Supervisor(layout.STATE).process("apiserver")
    assert process, "the API server is not running; run `make cluster`"
    process.suspend()
    try:
        yield
    finally:
        process.resume()


@contextmanager
def kubelet_gone(name: str) -> Iterator[None]:
    """Kill a node's kubelet: the node counts as lost after control_plane.LOST_AFTER seconds, while its pods go on."""
    (lost,) = (each for each in layout.NODES if each.name == name)
    supervisor = Supervisor(layout.STATE)
    supervisor.end(f"{name}-kubelet")
    try:
        yield
    finally:
        supervisor.start(node.kubelet(lost))


def _groups(pod: V1Pod, container: str | None) -> list[Path]:
    """The control groups of a pod's running containers, in the tree that has the freezer."""
    tree = control_groups.freezer_tree()
    found = []
    for status in pod.status.container_statuses or []:
        if container in (None, status.name) and status.state.running:
            identity = status.container_id.rpartition("/")[2]
            found += list((tree / f"{layout.NAME}-{pod.spec.node_name}").rglob(identity))
    assert found, f"{pod.metadata.name} has no running container on this machine; read it again once it runs"
    return found
