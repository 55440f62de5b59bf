"""The cluster as a whole: up, down, and its parts by name."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tests.cluster import control_groups, control_plane, identities, images, layout, machine, network, node, programs, simulated
from tests.cluster.supervise import Supervisor


def up(say: Callable[[str], None], simulated_nodes: int | None = None) -> None:
    """Start what is not running, and say how to use it. Raises ClusterError."""
    machine.check()
    machine.claim()
    machine.prepare()
    machine.install(say)
    with _builds_alone():
        programs.build(say)
        images.build(say)
    identities.make()
    network.add_addresses()
    supervisor = Supervisor(layout.STATE)
    for component in control_plane.components():
        supervisor.start(component)
    supervisor.start(network.proxy())
    supervisor.start(network.dns())

    def start_node(each: layout.NodeLayout) -> None:
        supervisor.start(node.containerd(each))
        images.load(each, say)
        supervisor.start(node.kubelet(each))

    with ThreadPoolExecutor() as pool:
        list(pool.map(start_node, layout.NODES))
    if simulated_nodes is not None or "kwok" in supervisor.names():
        supervisor.start(simulated.kwok())
    if simulated_nodes is not None:
        simulated.nodes(simulated_nodes)
    say(f"the cluster is up; export KUBECONFIG={layout.kubeconfig(layout.ADMIN)} PATH={layout.BIN}:$PATH, then use kubectl")


@contextmanager
def _builds_alone() -> Iterator[None]:
    """One checkout builds at a time: what is built is shared."""
    layout.BUILD.mkdir(parents=True, exist_ok=True)
    with (layout.BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def down() -> None:
    """Leave nothing behind but what was built. Raises ClusterError where it can't."""
    machine.check()
    supervisor = Supervisor(layout.STATE)
    for each in layout.NODES:
        supervisor.end(f"{each.name}-kubelet")
        control_groups.end(each.cgroup)
        supervisor.end(f"{each.name}-containerd")
        node.end_shims(each)
    for name in supervisor.names():
        supervisor.end(name)
    network.remove()
    machine.release()
