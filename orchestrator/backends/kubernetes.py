"""Workers as pods of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any

from orchestrator import names, pods
from orchestrator.backends.base import Meeting, Watcher
from orchestrator.client import Connection, Json, RefusedError, place
from orchestrator.pods import Pod
from orchestrator.spec import JobSpec

LAST_GRACE = 1  # seconds from SIGTERM to SIGKILL for a worker that is given up
FORCE_AFTER = 10.0  # seconds until a pod whose node does not confirm its end is deleted all the same
ACCEPT_DEADLINE = 20.0  # seconds in which a node must have accepted a pod that was put on it, or it is lost without anyone knowing yet
PATIENCE_STEP = 0.1  # seconds
REFUSED_PAUSE = 5.0  # seconds

Identity = tuple[int, int]  # worker, incarnation


class KubernetesBackend:
    """The first incarnation of every worker is a pod of the group's Job, which is there already; later ones get a Job each."""

    def __init__(self, job: JobSpec, connection: Connection, owner: Json | None = None, born: str = "") -> None:
        """owner: the ownerReference of the Jobs that are made. born: when the job was; an older pod is one of another job of its name."""
        self._job = job
        self._connection = connection
        self._owner = owner
        self._born = born
        self._watchers: dict[Identity, Watcher] = {}
        self.pods: dict[Identity, str] = {}  # the names of those that are there
        self._nodes: dict[Identity, str] = {}  # where they are
        self._unaccepted: dict[Identity, asyncio.TimerHandle] = {}
        self._told: dict[Identity, str] = {}  # why each waits
        self._leaving: set[Identity] = set()
        self._unwanted: set[Identity] = set()
        self._made: set[str] = set()  # the names of the Jobs that are there
        self._version = ""
        self.group_is_owned = False  # its Job has an owner: who made it has seen to that for all objects
        self._following: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def survey(self) -> list[Identity]:
        """(current, newest) incarnation of each worker, as an earlier controller has left them."""
        found = await self._pods()
        jobs = await self._jobs()
        self._made = {job["metadata"]["name"] for job in jobs}
        self.group_is_owned = any("ownerReferences" in job["metadata"] for job in jobs if job["metadata"]["name"] == self._job.name)
        self.pods = {pods.identity(pod): pod["metadata"]["name"] for pod in found if not pods.has_ended(pod)}
        live: dict[int, list[int]] = {}
        newest = dict.fromkeys(range(self._job.workers), 0)
        for worker, incarnation in self.pods:
            live.setdefault(worker, []).append(incarnation)
        for labels in (job["metadata"]["labels"] for job in jobs):
            if names.WORKER_LABEL in labels:
                worker, incarnation = int(labels[names.WORKER_LABEL]), int(labels[names.INCARNATION_LABEL])
                newest[worker] = max(newest[worker], incarnation)
        return [(min(live.get(worker, [newest[worker]])), newest[worker]) for worker in range(self._job.workers)]

    async def launch(self, worker: int, incarnation: int, _meeting: Meeting, watcher: Watcher) -> None:
        """See Backend. An agent finds the controller by the Service, and the key in the Secret."""
        self._watchers[worker, incarnation] = watcher
        self._following = self._following or asyncio.ensure_future(self._follow())
        if incarnation == 0 or names.worker_job(self._job.name, worker, incarnation) in self._made:
            return
        from orchestrator import manifests  # late: everyone waits for this pod's start, and the templates are only needed now

        lost = ((identity, node) for identity, node in self._nodes.items() if identity[0] == worker)
        lost_on = next((node for identity, node in lost if identity not in self._leaving), "")  # one that has to go may come back there
        try:
            for manifest in manifests.worker_objects(self._job, worker, incarnation, avoid=lost_on):
                await self._connection.create(self._owned(manifest))
        except RefusedError as e:
            if e.status != HTTPStatus.CONFLICT:  # the answer to an earlier try was lost: it is there
                self._gone((worker, incarnation), f"its Job could not be made ({e})")

    async def remove(self, worker: int, incarnation: int) -> None:
        """See Backend."""
        identity = (worker, incarnation)
        self._unwanted.add(identity)
        name = self.pods.get(identity)
        if not name:
            return  # it may still come: _seen knows
        await self._delete_pod(name, LAST_GRACE)
        until = asyncio.get_running_loop().time() + FORCE_AFTER
        while self.pods.get(identity) == name:
            if asyncio.get_running_loop().time() > until:
                await self._delete_pod(name, 0)
                return
            await asyncio.sleep(PATIENCE_STEP)

    async def close(self, patience: float) -> None:
        """See Backend. Pods that have ended stay, for their logs."""
        await self._make_no_more()
        deadline = asyncio.get_running_loop().time() + patience
        while self.pods and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(PATIENCE_STEP)
        await asyncio.gather(*(self.remove(*identity) for identity in list(self.pods)))
        for task in (*self._tasks, *filter(None, [self._following])):
            task.cancel()
        for timer in self._unaccepted.values():
            timer.cancel()

    async def _make_no_more(self) -> None:
        """A Job whose pod was never made (a quota, an admission) would make it whenever it can."""
        if set(self._watchers) - set(self.pods):
            await self._look()  # whose pods have ended is not awaited any more
        awaited = set(self._watchers) - set(self.pods)
        for worker, incarnation in awaited:
            if incarnation:
                await self._connection.delete(self._path("Job", names.worker_job(self._job.name, worker, incarnation)))
        if any(incarnation == 0 for _, incarnation in awaited):
            await self._connection.patch(self._path("Job", self._job.name), {"spec": {"parallelism": 0}})

    # ---- what becomes of the pods: list, then watch, and again ----

    async def _follow(self) -> None:
        while True:
            try:
                await self._look()
            except RefusedError as e:  # a Role that is being changed, say: without this nobody would be told anything any more
                print(f"{e}; trying again", flush=True)
                await asyncio.sleep(REFUSED_PAUSE)
                continue
            async for kind, pod in self._connection.changes(self._path("Pod"), self._version, labelSelector=self._selector()):
                if not self._is_ours(pod):
                    continue
                if kind == "DELETED":
                    self._ended(pod)
                else:
                    self._seen(pod)

    async def _look(self) -> None:
        found = await self._pods()
        there = {pods.identity(pod) for pod in found}
        for identity in set(self.pods) - there:
            self._gone(identity, "its pod was deleted")
        for pod in found:
            self._seen(pod)
        if set(self._watchers) - there:
            await self._look_for_the_dead(there)

    async def _look_for_the_dead(self, there: set[Identity]) -> None:
        """A pod that came and went while nobody watched: its Job tells."""
        over = _over(await self._jobs())
        for identity in set(self._watchers) - there - set(self.pods):
            if identity in over:
                self._gone(identity, "its pod was deleted")

    def _seen(self, pod: Pod) -> None:
        identity = pods.identity(pod)
        if pods.has_ended(pod):
            self._ended(pod)
            return
        self.pods[identity] = pod["metadata"]["name"]
        self._nodes[identity] = pod["spec"].get("nodeName", "")
        self._expect_acceptance(identity, pod)
        watcher = self._watchers.get(identity)
        if identity in self._unwanted and not pods.is_leaving(pod):
            self._start(self.remove(*identity))
        if not watcher:
            return
        if pods.is_leaving(pod) and identity not in self._leaving:
            self._leaving.add(identity)
            watcher.leaves(*identity, pods.disruption(pod) or "its pod is being deleted")
        trouble = pods.trouble(pod)
        if trouble != self._told.get(identity, ""):
            self._told[identity] = trouble
            watcher.waits(*identity, trouble)

    def _expect_acceptance(self, identity: Identity, pod: Pod) -> None:
        """A pod that was put on a node whose kubelet is gone would wait for ever."""
        accepted = "startTime" in pod.get("status", {})
        if accepted and identity in self._unaccepted:
            self._unaccepted.pop(identity).cancel()
        if not accepted and self._nodes[identity] and identity not in self._unaccepted:
            loop = asyncio.get_running_loop()
            self._unaccepted[identity] = loop.call_later(ACCEPT_DEADLINE, self._start_giving_up, identity, self._nodes[identity])

    def _start_giving_up(self, identity: Identity, node: str) -> None:
        self._start(self._give_up(identity, node))

    async def _give_up(self, identity: Identity, node: str) -> None:
        name = self.pods.get(identity)
        if name:
            await self._delete_pod(name, 0)
            self._gone(identity, f"its node {node} did not accept its pod within {ACCEPT_DEADLINE:g} s", "node")

    def _ended(self, pod: Pod) -> None:
        self._gone(pods.identity(pod), pods.ending(pod), "memory" if pods.ran_out_of_memory(pod) else "lost")

    def _gone(self, identity: Identity, why: str, kind: str = "lost") -> None:
        self.pods.pop(identity, None)
        self._nodes.pop(identity, None)
        if identity in self._unaccepted:
            self._unaccepted.pop(identity).cancel()
        watcher = self._watchers.pop(identity, None)
        if watcher:
            watcher.gone(*identity, why, kind)

    # ---- single requests ----

    async def _pods(self) -> list[Pod]:
        found = await self._connection.get(self._path("Pod"), labelSelector=self._selector())
        self._version = found["metadata"]["resourceVersion"]
        return [pod for pod in found["items"] if self._is_ours(pod)]

    async def _jobs(self) -> list[Json]:
        return await self._connection.items(self._path("Job"), labelSelector=names.selector(self._job.name))

    async def _delete_pod(self, name: str, grace: int) -> None:
        await self._connection.delete(self._path("Pod", name), grace=grace)

    def _is_ours(self, pod: Pod) -> bool:
        return bool(pod["metadata"]["creationTimestamp"] >= self._born)

    def _path(self, kind: str, name: str = "") -> str:
        return place(kind, self._connection.namespace, name)

    def _selector(self) -> str:
        return names.selector(self._job.name, "worker")

    def _owned(self, manifest: Json) -> Json:
        owners = [self._owner] if self._owner else []
        return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": owners}}

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _over(jobs: list[Json]) -> set[Identity]:
    """The workers' incarnations whose Jobs make no pod any more."""
    found: set[Identity] = set()
    for job in jobs:
        labels, status = job["metadata"]["labels"], job.get("status", {})
        ended = any(each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in status.get("conditions", []))
        if names.WORKER_LABEL in labels:
            found |= {(int(labels[names.WORKER_LABEL]), int(labels[names.INCARNATION_LABEL]))} if ended else set()
        elif job["spec"].get("completionMode") == "Indexed":
            found |= {(worker, 0) for text in ("failedIndexes", "completedIndexes") for worker in _indexes(status.get(text, ""))}
            found |= {(worker, 0) for worker in range(job["spec"]["completions"])} if ended else set()
    return found


def _indexes(text: str) -> list[int]:
    """Kubernetes writes them as "1,3-5"."""
    ranges = [part.partition("-") for part in text.split(",") if part]
    return [index for first, _, last in ranges for index in range(int(first), int(last or first) + 1)]
