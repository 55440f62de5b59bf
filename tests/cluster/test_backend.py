"""The Kubernetes backend against a real API server: what becomes of pods is told, once and with the reason."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

import pytest

from orchestrator import names, spec
from orchestrator.access import Access
from orchestrator.backends.base import Meeting
from orchestrator.backends.kubernetes import KubernetesBackend
from orchestrator.client import connect
from orchestrator.spec import JobSpec
from tests.cluster import faults, images
from tests.cluster.manifests import pod
from tests.cluster.objects import Cluster, Namespace

pytestmark = pytest.mark.timeout(300)

MEETING = Meeting("job-controller:2220", b"unused: pods find the key in a Secret")
TOLD_WITHIN = 60.0  # seconds
SLEEP = "import time; time.sleep(1000)"
FAIL = "import sys; sys.exit('no such file: data.csv')"


class Told:
    """What the backend told: one entry for each worker's incarnation."""

    def __init__(self) -> None:
        self.why: dict[tuple[int, int], str] = {}
        self.leaving: list[tuple[int, int]] = []
        self.news = asyncio.Event()

    def gone(self, worker: int, incarnation: int, why: str, kind: str = "lost") -> None:
        """See Watcher."""
        assert (worker, incarnation) not in self.why, "told twice"
        self.why[worker, incarnation] = why
        self.news.set()

    def leaves(self, worker: int, incarnation: int, why: str) -> None:
        """See Watcher."""
        self.leaving.append((worker, incarnation))

    def waits(self, worker: int, incarnation: int, why: str) -> None:
        """See Watcher."""

    async def of(self, worker: int, incarnation: int) -> str:
        """The reason, once it is told."""

        async def told() -> str:
            while (worker, incarnation) not in self.why:
                await self.news.wait()
                self.news.clear()
            return self.why[worker, incarnation]

        return await asyncio.wait_for(told(), TOLD_WITHIN)


def job(cluster: Cluster, namespace: Namespace) -> JobSpec:
    part = {
        "namespace": namespace.name,
        "image": cluster.image(images.TENSORFLOW),
        "controller": {"image": cluster.image(images.CONTROLLER)},
        "resources": {"cpu": "100m", "memory": "64Mi"},
    }
    return spec.make({"name": "job", "program": "/nothing.py", "workers": 2, "kubernetes": part}, "the job")


def start(cluster: Cluster, namespace: Namespace, worker: int, program: str) -> str:
    """A pod as the group's Job makes it."""
    name = f"job-{worker}"
    made = pod(name, cluster.image(images.TENSORFLOW), "python3", "-c", program)
    made["metadata"]["labels"] = {
        names.JOB_LABEL: "job",
        names.ROLE_LABEL: "worker",
        names.INCARNATION_LABEL: "0",
        "batch.kubernetes.io/job-completion-index": str(worker),
    }
    made["spec"]["containers"][0]["terminationMessagePolicy"] = "FallbackToLogsOnError"
    namespace.start(made)
    return name


def with_backend(cluster: Cluster, namespace: Namespace, test: Callable[[KubernetesBackend, Told], Awaitable[None]]) -> None:
    """Run a test with a backend, and see it closed."""

    async def run() -> None:
        async with connect(Access(cluster.kubeconfig, namespace=namespace.name), patience=math.inf) as connection:
            backend, told = KubernetesBackend(job(cluster, namespace), connection), Told()
            try:
                await test(backend, told)
            finally:
                await backend.close(0.5)

    asyncio.run(run())


async def seen(backend: KubernetesBackend, worker: int, incarnation: int) -> None:
    """Wait until the backend knows of a worker's pod."""

    async def look() -> None:
        while (worker, incarnation) not in backend.pods:
            await asyncio.sleep(0.05)

    await asyncio.wait_for(look(), TOLD_WITHIN)


def test_each_end_is_told_with_its_reason(cluster: Cluster, namespace: Namespace) -> None:
    """A program that fails, with its last words; a pod that is evicted; a pod that is deleted."""
    failing, evicted, deleted = (start(cluster, namespace, n, text) for n, text in enumerate((FAIL, SLEEP, SLEEP)))
    namespace.running(evicted)
    namespace.running(deleted)

    async def test(backend: KubernetesBackend, told: Told) -> None:
        for worker in range(3):
            await backend.launch(worker, 0, MEETING, told)
        assert await told.of(0, 0) == "its pod ended with code 1 (no such file: data.csv)"
        await asyncio.to_thread(faults.evict, cluster.core, namespace.pod(evicted), 1)
        assert "evicted" in await told.of(1, 0)
        assert told.leaving == [(1, 0)]
        await asyncio.to_thread(cluster.core.delete_namespaced_pod, deleted, namespace.name, grace_period_seconds=1)
        assert "its pod" in await told.of(2, 0)

    with_backend(cluster, namespace, test)
    assert failing in [each.metadata.name for each in namespace.pods()], "what has ended by itself stays, for its logs"


def test_a_replacement_is_one_job(cluster: Cluster, namespace: Namespace) -> None:
    """Asked for twice (an answer was lost) it is there once; removed, it is told."""

    async def test(backend: KubernetesBackend, told: Told) -> None:
        await backend.launch(0, 1, MEETING, told)
        await backend.launch(0, 1, MEETING, told)
        await asyncio.to_thread(namespace.until, lambda: namespace.pods(f"{names.WORKER_LABEL}=0"), "pod")
        await seen(backend, 0, 1)
        await backend.remove(0, 1)
        assert "its pod" in await told.of(0, 1)

    with_backend(cluster, namespace, test)
    made = [each.metadata.name for each in cluster.batch.list_namespaced_job(namespace.name).items]
    assert made == ["job-0-1"]


@pytest.mark.machine
def test_an_api_server_that_is_away_is_waited_for(cluster: Cluster, namespace: Namespace) -> None:
    """The watch breaks, requests fail: nothing is told meanwhile, and afterwards what happened is."""
    name = start(cluster, namespace, 0, SLEEP)
    running = namespace.running(name)

    async def test(backend: KubernetesBackend, told: Told) -> None:
        await backend.launch(0, 0, MEETING, told)
        await seen(backend, 0, 0)
        with faults.api_gone():
            faults.kill(running, "time.sleep")
            await asyncio.sleep(2)  # in which the backend asks in vain, several times
            assert not told.why
        assert await told.of(0, 0) == "its pod ended with code 137 (Error)"

    with_backend(cluster, namespace, test)


def test_closing_waits_for_pods_and_then_deletes_them(cluster: Cluster, namespace: Namespace) -> None:
    """What has not ended within the patience is deleted."""
    name = start(cluster, namespace, 0, SLEEP)
    namespace.running(name)

    async def test(backend: KubernetesBackend, told: Told) -> None:
        await backend.launch(0, 0, MEETING, told)
        await seen(backend, 0, 0)

    with_backend(cluster, namespace, test)
    namespace.until(lambda: not namespace.pods(), "end of the pod")
