"""Addresses on the loopback interface, Services (kube-proxy), names (CoreDNS)."""

from __future__ import annotations

import json
import socket
import subprocess
from contextlib import suppress

from tests.cluster import layout
from tests.cluster.supervise import Component

INTERFACE = "lo"  # a dummy link would say more, but not every kernel has them
ADDRESSES = (layout.API, layout.DNS, *(node.address for node in layout.NODES))
PROXY_HEALTH = "127.0.0.1:10256"
# A query for the Service of the API server, which every cluster has.
_QUERY = (
    b"\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"
    + b"".join(bytes([len(part)]) + part for part in b"kubernetes.default.svc.cluster.local".split(b"."))
    + b"\x00\x00\x01\x00\x01"
)


def add_addresses() -> None:
    """Give the loopback interface the cluster's addresses; idempotent."""
    have = _present()
    for address in ADDRESSES:
        if address not in have:
            subprocess.run(["ip", "address", "add", f"{address}/32", "dev", INTERFACE], check=True, capture_output=True)


def remove() -> None:
    """Take away the addresses, and kube-proxy's rules."""
    have = _present()
    for address in ADDRESSES:
        if address in have:
            subprocess.run(["ip", "address", "delete", f"{address}/32", "dev", INTERFACE], check=True, capture_output=True)
    for family in ("ip", "ip6"):
        subprocess.run(["nft", "delete", "table", family, "kube-proxy"], check=False, capture_output=True)  # it may not be there


def proxy() -> Component:
    """kube-proxy: one for the machine, since all real nodes share its network stack."""
    config = layout.STATE / "proxy.json"
    text = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clusterCIDR": layout.PODS,
        "hostnameOverride": layout.NODES[0].name,
        "clientConnection": {"kubeconfig": str(layout.kubeconfig("proxy"))},
        "healthzBindAddress": PROXY_HEALTH,
        "metricsBindAddress": "127.0.0.1:10249",
        "nodePortAddresses": ["127.0.0.0/8"],
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},  # the machine's own stay
    }
    return Component("proxy", (str(layout.BIN / "kube-proxy"), f"--config={config}"), _proxy_ready, {config: json.dumps(text, indent=2)})


def dns() -> Component:
    """CoreDNS. A name that was asked for too early stays unknown for 5 s, its default; on real clusters it is up to 30 s."""
    config = layout.STATE / "Corefile"
    text = f"""{layout.DOMAIN}:53 {{
  bind {layout.DNS}
  errors
  kubernetes {layout.DOMAIN} {{
    kubeconfig {layout.kubeconfig("coredns")} {layout.NAME}
  }}
  cache 30
}}
"""
    return Component("coredns", (str(layout.BIN / "coredns"), "-conf", str(config)), _dns_ready, {config: text})


def _present() -> set[str]:
    shown = subprocess.run(["ip", "-json", "address", "show", "dev", INTERFACE], check=True, capture_output=True)
    return {address["local"] for link in json.loads(shown.stdout) for address in link["addr_info"]}


def _proxy_ready() -> bool:
    host, _, port = PROXY_HEALTH.partition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return True
    return False


def _dns_ready() -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(1)
        asking.sendto(_QUERY, (layout.DNS, 53))
        answer = asking.recv(512)
        return answer[3] & 0x0F == 0 and answer[6:8] != b"\0\0"  # no error, at least one address
    return False
