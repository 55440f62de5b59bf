"""`tfrun stop`: the programs save and end, then everything of the job is deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from orchestrator import names, pods
from orchestrator.client import Connection, Json, place
from orchestrator.errors import DeadlineError
from orchestrator.facts import end_of, has_begun, read
from orchestrator.logs import until_over

SAVE = 40.0  # seconds for the controller to hear of it, the programs to save, the agents to leave
COME = 10.0  # seconds in which a controller that is away may come back
GONE = 60.0  # seconds for the pods to end: their grace is 30
TELL = 3.0  # seconds until it is told what is waited for
T = TypeVar("T")
Say = Callable[[str], None]


async def stop(connection: Connection, name: str, now: bool, say: Say) -> None:
    """End and remove a job. say: where to tell what is waited for. Raises DeadlineError with what is left."""
    found = await read(connection, name)
    root = found.root
    if not now and not end_of(root) and "deletionTimestamp" not in root["metadata"]:
        if found.status or (found.controller_pod and has_begun(found.controller_pod)):
            await _save(connection, name, root, say)
        else:
            say(f"{name} had not begun, so there is nothing to save")
    await connection.delete(place("Job", connection.namespace, root["metadata"]["name"]), root["metadata"]["uid"])
    await _until_gone(connection, name, say)


async def _save(connection: Connection, name: str, root: Json, say: Say) -> None:
    """Ask the controller for the end, and wait for it as long as makes sense."""
    await connection.patch(
        place("Job", connection.namespace, root["metadata"]["name"]), {"metadata": {"annotations": {names.STOP: "SIGTERM"}}}
    )
    if not await _in_time(_controller_runs(connection, name), COME):
        say(f"the controller of {name} does not run, so the programs can't be asked to save; removing it as it is")
        return
    saying = asyncio.get_running_loop().call_later(TELL, say, f"waiting until the programs of {name} have saved and ended")
    if not await _in_time(until_over(connection, name), SAVE):
        say(f"{name} has not ended within {SAVE:g} s after it was asked to; removing it as it is")
    saying.cancel()


async def _controller_runs(connection: Connection, name: str) -> bool:
    async for known in connection.live(place("Pod", connection.namespace), labelSelector=names.selector(name, "controller")):
        if any(pod.get("status", {}).get("phase") == "Running" and not pods.is_leaving(pod) for pod in known.values()):
            return True
    return False


async def _until_gone(connection: Connection, name: str, say: Say) -> None:
    """Wait until no pod of the job is left."""
    left: dict[str, Json] = {}

    async def gone() -> bool:
        nonlocal left
        async for left in connection.live(place("Pod", connection.namespace), labelSelector=names.selector(name)):
            if not left:
                return True
        return False

    saying = asyncio.get_running_loop().call_later(
        TELL, lambda: say(f"waiting until these pods have ended: {', '.join(sorted(left)) or name}")
    )
    if not await _in_time(gone(), GONE):
        nodes = sorted({pod["spec"].get("nodeName", "") for pod in left.values()} - {""})
        raise DeadlineError(
            f"{name} is deleted, but its pods {', '.join(sorted(left))} have not ended after {GONE:g} s "
            f"(on {', '.join(nodes) or 'no node'}); `kubectl get nodes` shows whether their nodes are there"
        )
    saying.cancel()


async def _in_time(work: Awaitable[T], seconds: float) -> bool:
    try:
        await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError:
        return False
    return True
