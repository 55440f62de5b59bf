"""Workers as pods of a cluster. The only module that imports the Kubernetes client."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any

from aiohttp import ClientError
from kubernetes.aio import client, config, watch
from kubernetes.aio.client.exceptions import ApiException

from orchestrator import manifests, names
from orchestrator.backends.base import Gone, Meeting
from orchestrator.spec import JobSpec

ASK_TIMEOUT = 10.0  # seconds for an answer of the API server
WATCH_TIMEOUT = 300  # seconds after which a watch is made anew: one that fell silent is found out so
RETRY_FIRST, RETRY_MOST = 0.2, 10.0  # seconds between two tries, doubling
_INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
_ENDED = ("Succeeded", "Failed")
Pod = dict[str, Any]  # as in the API's JSON
Identity = tuple[int, int]  # worker, incarnation


def inside_the_cluster() -> client.ApiClient:
    """A client for a pod, as its service account."""
    config.load_incluster_config()
    return client.ApiClient()


class KubernetesBackend:
    """The first incarnation of every worker is a pod of the group's Job, which is there already; later ones get a Job each."""

    def __init__(self, job: JobSpec, api: client.ApiClient) -> None:
        assert job.kubernetes
        self._job = job
        self._namespace = job.kubernetes.namespace
        self._awaited: dict[Identity, Gone] = {}
        self.pods: dict[Identity, str] = {}  # the names of those that are there
        self._tasks: set[asyncio.Task[None]] = set()
        self._client = api
        self._core = client.CoreV1Api(self._client)
        self._batch = client.BatchV1Api(self._client)

    async def launch(self, worker: int, incarnation: int, _meeting: Meeting, gone: Gone) -> None:
        """See Backend. An agent finds the controller by the Service, and the key in the Secret."""
        self._awaited[worker, incarnation] = gone
        if not self._tasks:
            self._start(self._follow())
        if incarnation == 0:
            return
        for manifest in manifests.worker_objects(self._job, worker, incarnation):
            await self._insist(lambda body=manifest: self._create_job(body))

    async def remove(self, worker: int, incarnation: int) -> None:
        """See Backend."""
        name = self.pods.get((worker, incarnation))
        if name:
            await self._insist(lambda: self._delete_pod(name))

    async def close(self, patience: float) -> None:
        """See Backend."""
        deadline = asyncio.get_running_loop().time() + patience
        while self.pods and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.1)
        for identity in list(self.pods):
            await self.remove(*identity)
        for task in self._tasks:
            task.cancel()
        await self._client.close()

    # ---- what becomes of the pods: list, then watch, and again ----

    async def _follow(self) -> None:
        while True:
            version = await self._insist(self._look)
            try:
                await self._watch(version)
            except (ApiException, ClientError, asyncio.TimeoutError, ValueError):
                continue  # whatever cut the watch, what is true is in the next list

    async def _look(self) -> str:
        found = await self._core.list_namespaced_pod(self._namespace, label_selector=self._selector(), _request_timeout=ASK_TIMEOUT)
        pods = {_identity(pod): pod for pod in self._client.sanitize_for_serialization(found.items)}
        for identity in set(self.pods) - set(pods):
            self._gone(identity, "its pod was deleted")
        for pod in pods.values():
            self._seen(pod)
        return str(found.metadata.resource_version)

    async def _watch(self, version: str) -> None:
        watching = watch.Watch()
        arguments: dict[str, Any] = {"label_selector": self._selector(), "resource_version": version, "timeout_seconds": WATCH_TIMEOUT}
        async for event in watching.stream(self._core.list_namespaced_pod, self._namespace, **arguments):
            pod = event["raw_object"]
            if event["type"] == "DELETED":
                self._gone(_identity(pod), _why(pod))
            elif event["type"] in ("ADDED", "MODIFIED"):
                self._seen(pod)

    def _seen(self, pod: Pod) -> None:
        if pod["status"].get("phase") in _ENDED:
            self._gone(_identity(pod), _why(pod))
        else:
            self.pods[_identity(pod)] = pod["metadata"]["name"]

    def _gone(self, identity: Identity, why: str) -> None:
        self.pods.pop(identity, None)
        gone = self._awaited.pop(identity, None)
        if gone:
            gone(*identity, why)

    def _selector(self) -> str:
        return f"{names.JOB_LABEL}={self._job.name},{names.ROLE_LABEL}=worker"

    # ---- single requests ----

    async def _create_job(self, body: dict[str, Any]) -> None:
        try:
            await self._batch.create_namespaced_job(self._namespace, body, _request_timeout=ASK_TIMEOUT)
        except ApiException as e:
            if e.status != HTTPStatus.CONFLICT:  # the answer to an earlier try was lost: it is there
                raise

    async def _delete_pod(self, name: str) -> None:
        try:
            await self._core.delete_namespaced_pod(name, self._namespace, grace_period_seconds=0, _request_timeout=ASK_TIMEOUT)
        except ApiException as e:
            if e.status != HTTPStatus.NOT_FOUND:
                raise

    async def _insist(self, request: Any) -> Any:
        """Ask until there is an answer: the API server may be away for a while, and the workers train meanwhile."""
        pause = RETRY_FIRST
        while True:
            try:
                return await request()
            except ApiException as e:
                if e.status not in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.UNAUTHORIZED) and e.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                    raise
            except (ClientError, OSError, asyncio.TimeoutError):
                pass
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 # no secret
            pause = min(2 * pause, RETRY_MOST)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)


def _identity(pod: Pod) -> Identity:
    labels = pod["metadata"]["labels"]
    return int(labels.get(names.WORKER_LABEL) or labels[_INDEX_LABEL]), int(labels[names.INCARNATION_LABEL])


def _why(pod: Pod) -> str:
    """How a pod ended, as part of a sentence."""
    status = pod["status"]
    for condition in status.get("conditions", []):
        if condition["type"] == "DisruptionTarget":
            return f"its pod was evicted ({condition.get('message') or condition.get('reason')})"
    for container in status.get("containerStatuses", []):
        ended = container.get("state", {}).get("terminated")
        if ended:
            said = ended.get("message", "").strip().rpartition("\n")[2]
            return f"its pod ended with code {ended['exitCode']} ({said or ended.get('reason')})"
    return f"its pod is gone ({status.get('reason', 'deleted')})"
