"""A cluster, and a namespace of one test: making objects and waiting for what becomes of them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import kubernetes
from kubernetes.client import V1Pod, V1PodStatus
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from tests.cluster import images, layout

PATIENCE = 120.0  # seconds until something must be as expected: after an outage of the API server others back off for up to a minute
POLL = 0.1  # seconds
ASK_TIMEOUT = 10.0  # seconds for an answer of the API server
OURS = "tfrun.test/namespace"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/enforce-version": "latest"}
# Where a cluster that is not this machine's finds the images: with this prefix instead of ours.
PREFIX = os.environ.get("TFRUN_TEST_IMAGES", "")

T = TypeVar("T")


class Cluster:
    """A cluster by its kubeconfig."""

    def __init__(self, kubeconfig: Path, token: str = "") -> None:
        self.kubeconfig = kubeconfig
        self._token = token

    def as_holder_of(self, token: str) -> Cluster:
        """The same cluster for someone else, such as a service account."""
        return Cluster(self.kubeconfig, token)

    def missing(self) -> str:
        """Why it can't be used; empty if it can."""
        if not self.kubeconfig.exists():
            return f"there is no cluster ({self.kubeconfig} is missing); `make cluster` starts one"
        try:
            self.core.list_namespace(limit=1, _request_timeout=ASK_TIMEOUT)
        except (ApiException, HTTPError, OSError) as e:
            return f"the cluster of {self.kubeconfig} does not answer ({type(e).__name__}); `make cluster` repairs ours"
        return ""

    @property
    def core(self) -> kubernetes.client.CoreV1Api:
        """Pods, Services, Secrets and the like."""
        return kubernetes.client.CoreV1Api(self.api)

    @property
    def batch(self) -> kubernetes.client.BatchV1Api:
        """Jobs."""
        return kubernetes.client.BatchV1Api(self.api)

    @property
    def rbac(self) -> kubernetes.client.RbacAuthorizationV1Api:
        """Roles and their bindings."""
        return kubernetes.client.RbacAuthorizationV1Api(self.api)

    @property
    def network(self) -> kubernetes.client.NetworkingV1Api:
        """Network policies."""
        return kubernetes.client.NetworkingV1Api(self.api)

    @property
    def discovery(self) -> kubernetes.client.DiscoveryV1Api:
        """Endpoint slices."""
        return kubernetes.client.DiscoveryV1Api(self.api)

    def await_no_tests(self) -> None:
        """Wait until every namespace of a test is gone, which takes the namespace controller five seconds and more."""
        deadline = time.monotonic() + PATIENCE
        while left := [found.metadata.name for found in self.core.list_namespace(label_selector=OURS).items]:
            assert time.monotonic() < deadline, f"namespaces {left} are still there after {PATIENCE:g} s"
            time.sleep(POLL)

    def image(self, image: images.Image) -> str:
        """The name under which this cluster has an image."""
        return f"{PREFIX}/{image.target}:1" if PREFIX else image.name

    @property
    def api(self) -> kubernetes.client.ApiClient:
        """The client below all of these."""
        given = kubernetes.client.Configuration()
        kubernetes.config.load_kube_config(str(self.kubeconfig), client_configuration=given)
        if self._token:
            given.cert_file = given.key_file = None
            given.api_key = {"authorization": f"Bearer {self._token}"}
        return kubernetes.client.ApiClient(given)


@dataclass(frozen=True)
class Entry:
    """One request in the API server's audit log: who used which verb on what, with which answer."""

    user: str
    verb: str
    resource: str  # with its subresource, as RBAC writes it: pods/log
    namespace: str
    name: str
    code: int


class Namespace:
    """A namespace and what is in it."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name

    @classmethod
    def create(cls, cluster: Cluster, name: str) -> Namespace:
        """With Pod Security `restricted`, ready for pods."""
        cluster.core.create_namespace({"metadata": {"name": name, "labels": {OURS: "", **RESTRICTED}}})
        made = cls(cluster, name)
        made.until(lambda: _exists(lambda: cluster.core.read_namespaced_service_account("default", name)), "default service account")
        return made

    def delete(self) -> None:
        """Begin to remove it with everything in it; pods get no time to say goodbye. Cluster.await_no_tests waits for the end.

        Jobs first: one that backs off would keep the finalizers of its pods for minutes.
        """
        self.cluster.batch.delete_collection_namespaced_job(self.name, propagation_policy="Background")
        self.cluster.core.delete_collection_namespaced_pod(self.name, grace_period_seconds=0)
        self.cluster.core.delete_namespace(self.name)

    def quota(self, **hard: str) -> None:
        """Limit what may be in the namespace, such as pods="2"; returns when the limit is in force."""
        core = self.cluster.core
        core.create_namespaced_resource_quota(self.name, {"metadata": {"name": "quota"}, "spec": {"hard": hard}})
        self.until(lambda: core.read_namespaced_resource_quota("quota", self.name).status.used, "quota in force")

    def pods(self, labels: str = "") -> list[V1Pod]:
        """All pods, by name."""
        return sorted(self.cluster.core.list_namespaced_pod(self.name, label_selector=labels).items, key=lambda pod: pod.metadata.name)

    def pod(self, name: str) -> V1Pod:
        """One pod as it is now."""
        return self.cluster.core.read_namespaced_pod(name, self.name)

    def start(self, pod: dict[str, Any]) -> None:
        """Create a pod."""
        self.cluster.core.create_namespaced_pod(self.name, pod)

    def members(self, labels: str, count: int) -> list[V1Pod]:
        """The pods with these labels once there are so many, by name: those of an Indexed Job by index."""

        def look() -> list[V1Pod] | None:
            found = self.pods(labels)
            return found if len(found) == count else None

        return self.until(look, f"{count} pods with {labels}")

    def running(self, name: str) -> V1Pod:
        """The pod once it runs and has an address."""
        return self._pod_when(name, lambda status: status.phase == "Running" and status.pod_ip, "running", PATIENCE)

    def ended(self, name: str, patience: float = PATIENCE) -> V1Pod:
        """The pod once it has succeeded or failed."""
        return self._pod_when(name, lambda status: status.phase in ("Succeeded", "Failed"), "ended", patience)

    def log(self, name: str) -> str:
        """What a pod has printed; nothing where it has not started, or is gone."""
        try:
            return self.cluster.core.read_namespaced_pod_log(name, self.name) or ""  # the client makes None of an empty answer
        except ApiException as e:
            if e.status not in (400, 404):
                raise
            return ""

    def logged(self, name: str, text: str, patience: float = PATIENCE) -> str:
        """The pod's output once it holds a text."""
        return self.until(lambda: log if text in (log := self.log(name)) else None, f"{text!r} in the log of {name}", patience)

    def until(self, look: Callable[[], T | None], what: str, patience: float = PATIENCE) -> T:
        """The first true answer."""
        deadline = time.monotonic() + patience
        while True:
            found = look()
            if found:
                return found
            if time.monotonic() > deadline:
                raise AssertionError(f"no {what} in {self.name} after {patience:g} s\n{self.story()}")
            time.sleep(POLL)

    def story(self) -> str:
        """Events and logs, for whoever reads a failed test."""
        lines = [f"{e.involved_object.name}: {e.reason}: {e.message}" for e in self.cluster.core.list_namespaced_event(self.name).items]
        for pod in self.pods():
            lines += [f"--- {pod.metadata.name}: {pod.status.phase} {pod.status.reason or ''}", self.log(pod.metadata.name)]
        return "\n".join(lines)

    def audit(self) -> Iterator[Entry]:
        """Every finished request about this namespace (only of our own cluster, whose log is at hand)."""
        for line in layout.AUDIT.read_text().splitlines():
            event = json.loads(line)
            what: dict[str, Any] = event.get("objectRef", {})
            if what.get("namespace") == self.name:
                resource = "/".join(filter(None, (what["resource"], what.get("subresource"))))
                user, code = event["user"]["username"], event["responseStatus"]["code"]
                yield Entry(user, event["verb"], resource, self.name, what.get("name", ""), code)

    def _pod_when(self, name: str, fits: Callable[[V1PodStatus], object], what: str, patience: float) -> V1Pod:
        def look() -> V1Pod | None:
            pod = self.pod(name)
            return pod if fits(pod.status) else None

        return self.until(look, f"{name} {what}", patience)


def _exists(read: Callable[[], object]) -> bool:
    try:
        read()
    except ApiException as e:
        if e.status == 404:
            return False
        raise
    return True
