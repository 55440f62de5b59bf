"""A job's root on a cluster: the controller's Job, which owns every other object, carries the status, and is where a stop is asked for."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from datetime import datetime
from http import HTTPStatus

from orchestrator import names, status
from orchestrator.client import Connection, Json, RefusedError, place
from orchestrator.errors import LaunchError
from orchestrator.status import Status

RIGHTS_DEADLINE = 15.0  # seconds in which a new job's Role must be in force
RIGHTS_PAUSE = 0.2  # seconds between two tries
# The key's Secret goes with its account.
ADOPTED = ("ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Service", "NetworkPolicy", "Job")


class GoneError(Exception):
    """The job was deleted."""


class Root:
    """The controller's own Job, as it was when it was read."""

    def __init__(self, connection: Connection, name: str, found: Json) -> None:
        self._connection = connection
        self._name = name
        self._found = found

    @classmethod
    async def read(cls, connection: Connection, job: str) -> Root:
        """Find it, and with that learn that this controller has its rights. Raises GoneError, LaunchError."""
        name = names.controller(job)
        until = asyncio.get_running_loop().time() + RIGHTS_DEADLINE
        while True:
            try:
                return cls(connection, name, await _get(connection, name))
            except RefusedError as e:
                if e.status != HTTPStatus.FORBIDDEN or asyncio.get_running_loop().time() > until:
                    raise LaunchError(f"{e}; apply the job's Role and RoleBinding as `tfrun render` prints them") from e
                await asyncio.sleep(RIGHTS_PAUSE)

    @property
    def reference(self) -> Json:
        """The ownerReference of what belongs to the job."""
        return {"apiVersion": "batch/v1", "kind": "Job", "name": self._name, "uid": self._found["metadata"]["uid"]}

    @property
    def started(self) -> datetime:
        """When the job did."""
        return datetime.fromisoformat(self.born.replace("Z", "+00:00"))

    @property
    def born(self) -> str:
        """The same as the API writes it: such texts can be compared."""
        return str(self._found["metadata"]["creationTimestamp"])

    @property
    def status(self) -> Status | None:
        """What the controller before this one wrote."""
        return status.parse(_annotations(self._found).get(names.STATUS))

    async def write(self, now: Status) -> None:
        """Write the status. A job that is gone needs none, and another one of its name must not get it: hence the uid."""
        metadata = {"uid": self._found["metadata"]["uid"], "annotations": {names.STATUS: now.text()}}
        try:
            await self._connection.patch(self._path(), {"metadata": metadata})
        except RefusedError as e:
            if e.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                raise

    async def adopt(self, objects: list[Json]) -> None:
        """Have everything go when this Job goes: what was applied with kubectl has no owner yet."""
        owned = {"metadata": {"ownerReferences": [self.reference]}}
        for each in objects:
            if each["kind"] in ADOPTED and (each["kind"], each["metadata"]["name"]) != ("Job", self._name):
                await self._connection.patch(place(each["kind"], self._connection.namespace, each["metadata"]["name"]), owned)

    async def until_stopped(self, stop: Callable[[int], None]) -> None:
        """Call `stop` with a signal's number when the user asks for it, or deletes the job."""
        found: Json | None = self._found
        while True:
            if found is None or names.STOP in _annotations(found):
                stop(signal.SIGTERM)
                return
            version = found["metadata"]["resourceVersion"]
            async for kind, now in self._connection.changes(self._path(""), version, fieldSelector=f"metadata.name={self._name}"):
                if kind == "DELETED" or names.STOP in _annotations(now):
                    stop(signal.SIGTERM)
                    return
            try:
                found = await self._again()
            except GoneError:
                found = None

    async def wanted(self) -> bool:
        """Whether the job is to go on without this controller: nobody has deleted it or asked it to stop."""
        try:
            return names.STOP not in _annotations(await self._again())
        except GoneError:
            return False

    async def _again(self) -> Json:
        """As it is now. Raises GoneError, also where another one has its name."""
        found = await _get(self._connection, self._name)
        if found["metadata"]["uid"] != self._found["metadata"]["uid"]:
            raise GoneError(self._name)
        return found

    def _path(self, name: str | None = None) -> str:
        return place("Job", self._connection.namespace, self._name if name is None else name)


async def _get(connection: Connection, name: str) -> Json:
    """By a list of one: what a list and a watch of just this name need is one right."""
    found = await connection.items(place("Job", connection.namespace), fieldSelector=f"metadata.name={name}")
    if not found or "deletionTimestamp" in found[0]["metadata"]:
        raise GoneError(name)
    return found[0]


def _annotations(job: Json) -> dict[str, str]:
    found: dict[str, str] = job["metadata"].get("annotations", {})
    return found
