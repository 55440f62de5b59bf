"""One certificate authority, and a client certificate with a kubeconfig for each component: the API server knows who asks."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import trustme

from tests.cluster import layout

PKI = layout.STATE / "pki"
CA = PKI / "ca.crt"
SERVICE_ACCOUNTS = PKI / "service-accounts.key"  # signs their tokens
_MASTERS = "system:masters"
_CLIENTS = {  # who → (common name, organization)
    layout.ADMIN: ("tfrun-test-admin", _MASTERS),
    "kubelet-client": ("kube-apiserver-kubelet-client", _MASTERS),
    "controller-manager": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", ""),
    "coredns": ("system:coredns", _MASTERS),
    "kwok": ("system:kwok", _MASTERS),
    **{node.name: (f"system:node:{node.name}", "system:nodes") for node in layout.NODES},
}
_SERVERS = {  # who → names and addresses
    "apiserver": ("kubernetes.default.svc", f"kubernetes.default.svc.{layout.DOMAIN}", layout.API, "10.96.0.1"),
    "etcd": ("localhost", "127.0.0.1"),
    **{f"{node.name}-server": (node.name, node.address) for node in layout.NODES},
}


def certificate(who: str) -> Path:
    """The certificate file of an identity."""
    return PKI / f"{who}.crt"


def key(who: str) -> Path:
    """The key file of an identity."""
    return PKI / f"{who}.key"


def make() -> None:
    """Write everything; does nothing if it is there."""
    if SERVICE_ACCOUNTS.exists():  # it is written last
        return
    PKI.mkdir(parents=True, exist_ok=True, mode=0o700)
    ca = trustme.CA(organization_name="tfrun test cluster")
    ca.cert_pem.write_to_path(str(CA))
    for who, (name, organization) in _CLIENTS.items():
        # An identity of its own name: Go refuses the certificate that trustme makes for none (an empty critical extension).
        _write(who, ca.issue_cert(f"{who}.{layout.NAME}", common_name=name, organization_name=organization or None))
        _write_kubeconfig(who)
    for who, names in _SERVERS.items():
        _write(who, ca.issue_cert(*names, common_name=who))
    _private(SERVICE_ACCOUNTS, ca.issue_cert("service-accounts").private_key_pem.bytes())


def _write(who: str, issued: trustme.LeafCert) -> None:
    certificate(who).write_bytes(issued.cert_chain_pems[0].bytes())
    _private(key(who), issued.private_key_pem.bytes())


def _write_kubeconfig(who: str) -> None:
    cluster = {"server": f"https://{layout.API}:{layout.API_PORT}", "certificate-authority-data": _data(CA)}
    user = {"client-certificate-data": _data(certificate(who)), "client-key-data": _data(key(who))}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": layout.NAME,
        "clusters": [{"name": layout.NAME, "cluster": cluster}],
        "users": [{"name": who, "user": user}],
        "contexts": [{"name": layout.NAME, "context": {"cluster": layout.NAME, "user": who}}],
    }
    _private(layout.kubeconfig(who), json.dumps(config, indent=2).encode())


def _data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _private(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as f:
        f.write(content)
