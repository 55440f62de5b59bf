"""Where everything of the cluster is: folders, addresses, ports. Read by every other module here, changed in one place."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).parents[2]
HERE = Path(__file__).parent
STATE = REPO / ".cluster"  # what `down` removes
# Programs and images, kept for the next start and for other checkouts, like the caches of pip and Go.
BUILD = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tfrun-test-cluster"
BIN = BUILD / "bin"

NAME = "tfrun-test"
# Addresses on the machine's own loopback interface: nothing outside the machine is told of them.
API = "10.245.0.1"
API_PORT = 6443
DNS = "10.245.0.2"  # outside SERVICES: kube-proxy drops what goes to an address there that no Service has
SERVICES = "10.96.0.0/16"
PODS = "10.244.0.0/16"
ETCD_PORT, ETCD_PEER_PORT = 2379, 2380
DOMAIN = "cluster.local"


@dataclass(frozen=True)
class NodeLayout:
    """One real node: its own containerd, kubelet, range of pod addresses and control group."""

    number: int

    @property
    def name(self) -> str:
        """The node's name in the cluster."""
        return f"node-{self.number}"

    @property
    def address(self) -> str:
        """Its InternalIP, on the machine's loopback interface."""
        return f"10.245.0.{10 + self.number}"

    @property
    def pods(self) -> str:
        """The addresses of its pods."""
        return f"10.244.{self.number}.0/24"

    @property
    def folder(self) -> Path:
        """Everything that containerd and the kubelet keep."""
        return STATE / self.name

    @property
    def socket(self) -> Path:
        """Containerd's."""
        return self.folder / "containerd.sock"

    @property
    def cgroup(self) -> str:
        """The control group above all its pods: what `down` ends, and what a second kubelet must not share."""
        return f"/{NAME}-{self.name}"

    @property
    def kubelet_port(self) -> int:
        """Of the kubelet's API."""
        return 10250 + 10 * self.number

    @property
    def health_port(self) -> int:
        """Of the kubelet's health check."""
        return 10248 + 10 * self.number


NODES = (NodeLayout(0), NodeLayout(1))


def kubeconfig(who: str) -> Path:
    """The kubeconfig of an identity (identities.py)."""
    return STATE / "pki" / f"{who}.kubeconfig"


ADMIN = "admin"
AUDIT = STATE / "log" / "audit.jsonl"
