"""Simulated nodes (kwok): objects in the API like any node's, on which pods seem to run. For scale, and for what nodes can do."""

from __future__ import annotations

import kubernetes

from tests.cluster import layout
from tests.cluster.control_plane import api
from tests.cluster.supervise import Component

LABEL = "tfrun.test/simulated"
_ANNOTATION = "kwok.x-k8s.io/node"


def kwok() -> Component:
    """The program that plays the kubelets."""
    command = (
        *(str(layout.BIN / "kwok"), f"--kubeconfig={layout.kubeconfig('kwok')}"),
        *(f"--manage-nodes-with-annotation-selector={_ANNOTATION}=fake", "--cidr=10.246.0.0/16", "--server-address=127.0.0.1:10247"),
        *("--node-lease-duration-seconds=40", f"--config={layout.HERE / 'stages.yaml'}"),
    )
    return Component("kwok", command, lambda: True)


def nodes(count: int) -> None:
    """Have so many, named simulated-0 and so on. A taint keeps away every pod that does not ask for one."""
    core = kubernetes.client.CoreV1Api(api())
    have = {node.metadata.name for node in core.list_node(label_selector=LABEL).items}
    wanted = {f"simulated-{number}" for number in range(count)}
    for name in have - wanted:
        core.delete_node(name)
    for name in sorted(wanted - have):
        core.create_node(_node(name))


def _node(name: str) -> dict[str, object]:
    size = {"cpu": "32", "memory": "256Gi", "pods": "110"}
    labels = {LABEL: "true", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    return {
        "metadata": {"name": name, "labels": labels, "annotations": {_ANNOTATION: "fake"}},
        "spec": {"taints": [{"key": LABEL, "effect": "NoSchedule"}]},
        "status": {"capacity": size, "allocatable": size},
    }
