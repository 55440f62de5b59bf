"""`tfrun submit`: a job's objects made on a cluster, all of them or none."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Coroutine, Iterable

from orchestrator import names, submit
from orchestrator.client import Connection, Json, RefusedError, UnreachableError, place
from orchestrator.errors import InvalidJobError, LaunchError, TfrunError
from orchestrator.facts import end_of
from orchestrator.spec import JobSpec
from orchestrator.templates import Manifest

CLEARING = 10.0  # seconds in which the objects of an earlier job of this name may still be on their way out
AGAIN = 0.3  # seconds between two looks at them
_SECOND = ("Secret", "RoleBinding", "Job")  # what the cluster checks against a ServiceAccount or Role, or starts pods that need the rest


def in_namespace(job: JobSpec, namespace: str | None) -> JobSpec:
    """The job, somewhere else than its file says."""
    if namespace is None or job.kubernetes is None:
        return job
    return JobSpec.model_validate({**job.model_dump(), "kubernetes": {**job.kubernetes.model_dump(), "namespace": namespace}})


async def send(connection: Connection, job: JobSpec) -> bool:
    """Make everything; what fails half-way is taken back. Returns False where the same job was there already.

    The controller's Job comes first and suspended: it owns the others, so that deleting it deletes all, and its pod needs them.
    """
    root, rest = _split(submit.objects(job), job.name)
    found = await _create_root(connection, root, job.name)
    if not found["spec"].get("suspend"):
        return False  # somebody, or a try of ours whose answer was lost, has submitted it whole
    try:
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": found["metadata"]["name"], "uid": found["metadata"]["uid"]}
        for stage in (False, True):
            batch = [each for each in rest if (each["kind"] in _SECOND) is stage]
            await _all(_create_owned(connection, each, owner) for each in batch)
        await connection.patch(_path(found), {"spec": {"suspend": False}})
    except BaseException as e:  # also Ctrl-C: half a job is worth nothing
        left = await _take_back(connection, found)
        if isinstance(e, TfrunError):
            raise LaunchError(f"{e}; {left}") from e
        raise
    return True


def _split(objects: Iterable[Manifest], name: str) -> tuple[Manifest, list[Manifest]]:
    """(the controller's Job, suspended and with the digest of all, the others)."""
    objects = list(objects)
    digest = hashlib.sha256(json.dumps(objects, sort_keys=True).encode()).hexdigest()
    (root,) = (each for each in objects if (each["kind"], each["metadata"]["name"]) == ("Job", names.controller(name)))
    metadata = {**root["metadata"], "annotations": {**root["metadata"].get("annotations", {}), names.SPEC: digest}}
    return {**root, "metadata": metadata, "spec": {**root["spec"], "suspend": True}}, [each for each in objects if each is not root]


async def _create_root(connection: Connection, root: Manifest, name: str) -> Json:
    """The controller's Job, made now or, the same, before. Raises InvalidJobError where another job has the name."""
    try:
        return await connection.create(root)
    except RefusedError as e:
        if e.status != 409:
            raise
    except BaseException:  # whether it was made is unknown
        await _take_back_unknown(connection, root)
        raise
    found = await connection.get(_path(root))
    if found["metadata"].get("annotations", {}).get(names.SPEC) != root["metadata"]["annotations"][names.SPEC]:
        raise InvalidJobError(
            f"another job {name} is in the namespace {root['metadata']['namespace']}; "
            f"`tfrun stop {name}` ends and removes it, or give this one another name"
        )
    if "deletionTimestamp" in found["metadata"]:
        raise InvalidJobError(f"the job {name} is being deleted; submit it again when `tfrun list` shows it no more")
    if end_of(found):
        raise InvalidJobError(
            f"this same job {name} was submitted before and is over ({end_of(found)}); `tfrun stop {name}` removes it, then submit it again"
        )
    return found


async def _create_owned(connection: Connection, manifest: Manifest, owner: Json) -> None:
    """One of the other objects. One of this name that is not ours may be what an earlier job leaves behind, and about to go."""
    body = {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [owner]}}
    deadline = asyncio.get_running_loop().time() + CLEARING
    while True:
        try:
            await connection.create(body)
            return
        except RefusedError as e:
            if e.status != 409:
                raise
            if await _is_owned(connection, manifest, owner):
                return
            if asyncio.get_running_loop().time() > deadline:
                raise InvalidJobError(
                    f"a {manifest['kind']} {manifest['metadata']['name']} that does not belong to this job is in the namespace; "
                    "delete it or give the job another name"
                ) from e
        await asyncio.sleep(AGAIN)


async def _is_owned(connection: Connection, manifest: Manifest, owner: Json) -> bool:
    """Whether it is there because an earlier try to make it was heard."""
    try:
        found = await connection.get(_path(manifest))
    except RefusedError as e:
        if e.status == 404:
            return False
        raise
    return any(each["uid"] == owner["uid"] for each in found["metadata"].get("ownerReferences", []))


async def _take_back(connection: Connection, root: Json) -> str:
    """Delete everything; tells how that went."""
    namespace, name = root["metadata"]["namespace"], root["metadata"]["name"]
    try:
        await connection.delete(_path(root), root["metadata"]["uid"])
    except (RefusedError, UnreachableError):
        return f"what was made is still there: `kubectl delete job -n {namespace} {name}` removes it"
    return "what was made of the job is removed again"


async def _take_back_unknown(connection: Connection, root: Manifest) -> None:
    try:
        found = await connection.get(_path(root))
    except (RefusedError, UnreachableError):
        return
    annotations = found["metadata"].get("annotations", {})
    if found["spec"].get("suspend") and annotations.get(names.SPEC) == root["metadata"]["annotations"][names.SPEC]:
        await _take_back(connection, found)


async def _all(work: Iterable[Coroutine[None, None, None]]) -> None:
    """Do all at once; the first error is raised when none is under way any more, so that nothing is made after it was taken back."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def _path(each: Json) -> str:
    # Answers to a single object have their kind, and so have manifests.
    return place(each["kind"], each["metadata"]["namespace"], each["metadata"]["name"])
