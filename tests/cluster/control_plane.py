"""etcd, the API server, the controller manager and the scheduler, as on any cluster; what differs is said here."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from http import HTTPStatus

import kubernetes
import urllib3

from tests.cluster import identities, layout
from tests.cluster.identities import CA, certificate, key
from tests.cluster.supervise import Component

ETCD = f"https://127.0.0.1:{layout.ETCD_PORT}"
LOST_AFTER = 12  # seconds without a sign from a node until it counts as lost; 50 by default, too long for a test
ASK_TIMEOUT = 2.0  # seconds for an answer while we wait for a component
_AUDIT_POLICY = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]}


def components() -> list[Component]:
    """In the order in which they are started."""
    return [_etcd(), apiserver(), _controller_manager(), _scheduler()]


def apiserver() -> Component:
    """The API server. It is asked at an address that pods can reach too."""
    audit = layout.STATE / "audit-policy.json"
    command = (
        *(str(layout.BIN / "kube-apiserver"), f"--bind-address={layout.API}", f"--advertise-address={layout.API}"),
        *(f"--secure-port={layout.API_PORT}", f"--service-cluster-ip-range={layout.SERVICES}"),
        *(f"--etcd-servers={ETCD}", f"--etcd-cafile={CA}", f"--etcd-certfile={certificate('etcd')}", f"--etcd-keyfile={key('etcd')}"),
        *(f"--client-ca-file={CA}", f"--tls-cert-file={certificate('apiserver')}", f"--tls-private-key-file={key('apiserver')}"),
        *(f"--kubelet-certificate-authority={CA}", "--kubelet-preferred-address-types=InternalIP"),
        *(f"--kubelet-client-certificate={certificate('kubelet-client')}", f"--kubelet-client-key={key('kubelet-client')}"),
        f"--service-account-issuer=https://kubernetes.default.svc.{layout.DOMAIN}",
        *(f"--service-account-key-file={identities.SERVICE_ACCOUNTS}", f"--service-account-signing-key-file={identities.SERVICE_ACCOUNTS}"),
        *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true"),
        *(f"--audit-policy-file={audit}", f"--audit-log-path={layout.AUDIT}"),
    )
    return Component("apiserver", command, _ready, {audit: json.dumps(_AUDIT_POLICY)})


def _etcd() -> Component:
    urls = [f"https://127.0.0.1:{port}" for port in (layout.ETCD_PORT, layout.ETCD_PEER_PORT)]
    tls = (f"cert-file={certificate('etcd')}", f"key-file={key('etcd')}", f"trusted-ca-file={CA}", "client-cert-auth")
    command = (
        *(str(layout.BIN / "etcd"), f"--data-dir={layout.STATE / 'etcd'}", "--log-level=error"),
        "--unsafe-no-fsync",  # a machine that loses power loses the cluster; a process that is killed loses nothing
        *(f"--{flag}" for flag in tls),
        *(f"--peer-{flag}" for flag in tls),
        *(f"--listen-client-urls={urls[0]}", f"--advertise-client-urls={urls[0]}"),
        *(f"--listen-peer-urls={urls[1]}", f"--initial-advertise-peer-urls={urls[1]}", f"--initial-cluster=default={urls[1]}"),
    )
    return Component("etcd", command, _always)  # the API server is ready only when etcd is


def _controller_manager() -> Component:
    command = (
        *(str(layout.BIN / "kube-controller-manager"), f"--kubeconfig={layout.kubeconfig('controller-manager')}", "--leader-elect=false"),
        *("--bind-address=127.0.0.1", f"--root-ca-file={CA}", "--use-service-account-credentials"),
        f"--service-account-private-key-file={identities.SERVICE_ACCOUNTS}",
        "--controllers=*,-node-route-controller,-service-lb-controller,-cloud-node-lifecycle-controller",
        *(f"--node-monitor-grace-period={LOST_AFTER}s", "--node-monitor-period=1s"),
    )
    return Component("controller-manager", command, _default_service_account)


def _scheduler() -> Component:
    kubeconfig = layout.kubeconfig("scheduler")
    command = (str(layout.BIN / "kube-scheduler"), f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--bind-address=127.0.0.1")
    return Component("scheduler", command, _always)


def api() -> kubernetes.client.ApiClient:
    """A client with every right."""
    return kubernetes.config.new_client_from_config(str(layout.kubeconfig(layout.ADMIN)))


def answers(path: str) -> bytes:
    """What the API server answers to a GET of this path; empty if that is not a 200."""
    with suppress(urllib3.exceptions.HTTPError):
        got = _connections().request("GET", f"https://{layout.API}:{layout.API_PORT}{path}", timeout=ASK_TIMEOUT, retries=False)
        return got.data if got.status == HTTPStatus.OK else b""
    return b""


@cache
def _connections() -> urllib3.PoolManager:
    return urllib3.PoolManager(ca_certs=str(CA), cert_file=str(certificate(layout.ADMIN)), key_file=str(key(layout.ADMIN)))


def _ready() -> bool:
    return answers("/readyz") == b"ok"


def _default_service_account() -> bool:
    return bool(answers("/api/v1/namespaces/default/serviceaccounts/default"))


def _always() -> bool:
    return True
