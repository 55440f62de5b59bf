"""The cluster as a whole: up, down, and its parts by name."""

from __future__ import annotations

from collections.abc import Callable

from tests.cluster import control_groups, control_plane, identities, images, layout, machine, network, node, programs, simulated
from tests.cluster.supervise import Supervisor

REAL_NODES = layout.NODES[:1]


def up(say: Callable[[str], None], simulated_nodes: int | None = None) -> None:
    """Start what is not running, and say how to use it. Raises ClusterError."""
    machine.check()
    machine.claim()
    machine.prepare()
    machine.install(say)
    programs.build(say)
    images.build(say)
    identities.make()
    network.add_addresses(REAL_NODES)
    supervisor = Supervisor(layout.STATE)
    for component in control_plane.components():
        supervisor.start(component)
    for each in REAL_NODES:
        supervisor.start(node.containerd(each))
        images.load(each, say)
        supervisor.start(node.kubelet(each))
    supervisor.start(network.proxy())
    supervisor.start(network.dns())
    if simulated_nodes is not None:
        supervisor.start(simulated.kwok())
        simulated.nodes(simulated_nodes)
    say(f"the cluster is up; export KUBECONFIG={layout.kubeconfig(layout.ADMIN)} PATH={layout.BIN}:$PATH, then use kubectl")


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
