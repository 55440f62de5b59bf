"""What is known of a job on a cluster, from the API's own JSON: everything that the verbs show. Pure, but for the functions that read."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any

from orchestrator import names, pods, status
from orchestrator.errors import InvalidJobError

if TYPE_CHECKING:
    from orchestrator.client import Connection  # heavy

Json = dict[str, Any]


@dataclass(frozen=True)
class Facts:
    """One look. root: the controller's Job; jobs: all Jobs; pods: the controller's and the workers', also of earlier incarnations."""

    root: Json
    now: datetime
    jobs: tuple[Json, ...] = ()
    pods: tuple[Json, ...] = ()
    events: tuple[Json, ...] = field(default=(), repr=False)
    home: str = ""  # the namespace that a command takes where it names none

    def command(self, verb: str) -> str:
        """A verb about this job, to type."""
        return f"`tfrun {verb} {self.name}{'' if self.namespace == self.home else f' -n {self.namespace}'}`"

    @property
    def name(self) -> str:
        """The job's."""
        return str(self.root["metadata"]["labels"][names.JOB_LABEL])

    @property
    def namespace(self) -> str:
        """Where it is."""
        return str(self.root["metadata"]["namespace"])

    @cached_property
    def status(self) -> status.Status | None:
        """What the controller wrote."""
        return status.parse(self.root["metadata"].get("annotations", {}).get(names.STATUS))

    @cached_property
    def workers(self) -> int:
        """How many the job has."""
        sizes = [job["spec"].get("completions", 1) for job in self.jobs if job["metadata"]["name"] == self.name]
        return int(sizes[0]) if sizes else 0

    @cached_property
    def controller_pod(self) -> Json | None:
        """The newest."""
        found = [pod for pod in self.pods if pod["metadata"]["labels"].get(names.ROLE_LABEL) == "controller"]
        return max(found, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")), default=None)

    @cached_property
    def worker_pods(self) -> dict[int, Json]:
        """The newest of each worker."""
        return {pods.identity(pod)[0]: pod for pod in sorted(filter(is_worker, self.pods), key=lambda pod: pods.identity(pod)[1])}

    @property
    def phase(self) -> str:
        """One word; docs/commands.md tells what each means."""
        if "deletionTimestamp" in self.root["metadata"]:
            return "deleting"
        ended = end_of(self.root)
        if ended:
            return ended
        if names.STOP in self.root["metadata"].get("annotations", {}):
            return "stopping"
        if self.root["spec"].get("suspend"):
            return "suspended"
        return self.status.phase if self.status else "starting"

    @property
    def exit_code(self) -> int | None:
        """Of the job, once it is over."""
        ended = end_of(self.root)
        if not ended:
            return None
        if self.status and self.status.result:
            return self.status.result.exit_code
        return {"succeeded": 0, "deadline": 4}.get(ended, verdict(self.controller_pod))


def verdict(controller: Json | None) -> int:
    """The exit code of a job whose controller ended without writing its result: its pod's, where that is one of tfrun's."""
    for container in (controller or {}).get("status", {}).get("containerStatuses", []):
        code = container.get("state", {}).get("terminated", {}).get("exitCode")
        if code in (1, 2, 3, 4):
            return int(code)
    return 1


def end_of(root: Json) -> str:
    """How a job ended, in one word; empty while it is not over."""
    known = status.parse(root["metadata"].get("annotations", {}).get(names.STATUS))
    if known and known.result:
        return known.result.ending
    for condition in root.get("status", {}).get("conditions", []):
        if condition["status"] == "True" and condition["type"] == "Complete":
            return "succeeded"
        if condition["status"] == "True" and condition["type"] == "Failed":
            return "deadline" if condition.get("reason") == "DeadlineExceeded" else "failed"
    return ""


def is_worker(pod: Json) -> bool:
    """Whether it is a worker's pod."""
    return bool(pod["metadata"]["labels"].get(names.ROLE_LABEL) == "worker")


def has_begun(pod: Json) -> bool:
    """Whether its container has run, so that it may have printed something."""
    states = [each.get("state", {}) for each in pod.get("status", {}).get("containerStatuses", [])]
    return any("running" in state or "terminated" in state for state in states)


def is_root(job: Json) -> bool:
    """Whether this Job is the one that all other objects of a tfrun job belong to."""
    labels = job["metadata"].get("labels", {})
    return bool(job["metadata"]["name"] == names.controller(labels.get(names.JOB_LABEL, "")))


async def root_of(connection: Connection, name: str) -> Json:
    """The controller's Job. Raises InvalidJobError with what to do where there is none."""
    from orchestrator.client import RefusedError, place

    if not names.is_name(name):
        raise InvalidJobError(f"{name!r} is no job's name; a name is {names.NAME_RULE}")
    try:
        root = await connection.get(place("Job", connection.namespace, names.controller(name)))
    except RefusedError as e:
        if e.status != 404:
            raise
        root = {"metadata": {"name": ""}}
    if not is_root(root):
        raise InvalidJobError(f"there is no job {name} in the namespace {connection.namespace}; `tfrun list -A` shows where there are some")
    return root


async def read(connection: Connection, name: str, events: bool = False) -> Facts:
    """Everything about one job. events: also what the cluster told about its objects."""
    from orchestrator.client import place

    root = await root_of(connection, name)
    where, chosen = connection.namespace, names.selector(name)
    found = await asyncio.gather(
        connection.items(place("Job", where), labelSelector=chosen),
        connection.items(place("Pod", where), labelSelector=chosen),
        *((connection.items(place("Event", where)),) if events else ()),
    )
    ours = {each["metadata"]["uid"] for each in (root, *found[0], *found[1])}
    told = [event for event in (found[2] if events else []) if event["involvedObject"].get("uid") in ours]
    return Facts(root, now(), tuple(found[0]), tuple(found[1]), tuple(sorted(told, key=told_at)), connection.home)


async def read_all(connection: Connection, everywhere: bool) -> list[Facts]:
    """The jobs of a namespace or of all, by namespace and name; without their pods."""
    from orchestrator.client import place

    found = await connection.items(place("Job", "" if everywhere else connection.namespace), labelSelector=names.JOB_LABEL)
    at = now()
    roots = sorted(filter(is_root, found), key=_key)
    return [Facts(root, at, tuple(job for job in found if _key(job) == _key(root))) for root in roots]


def _key(job: Json) -> tuple[str, str]:
    return job["metadata"]["namespace"], job["metadata"]["labels"][names.JOB_LABEL]


def told_at(event: Json) -> str:
    """When an event was told last, so that texts sort as times do."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"), event["metadata"].get("creationTimestamp"))
    return str(next(filter(None, times), ""))


def now() -> datetime:
    """The time of a look at the cluster."""
    return datetime.now(timezone.utc)


def moment(text: str | None) -> datetime | None:
    """A time of the API's JSON."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None
