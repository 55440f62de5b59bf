"""`tfrun logs`: the output of a job's pods, as it is or as it comes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, TextIO

from aiohttp import ClientError

from orchestrator import names, output, pods
from orchestrator.client import RETRY_FIRST, RETRY_MOST, Connection, Json, RefusedError, UnreachableError, place
from orchestrator.errors import InvalidJobError, ReaderGoneError
from orchestrator.facts import Facts, end_of, has_begun, is_worker, read, root_of
from orchestrator.loglines import Line, Lines, merged

LINGER = 15.0  # seconds after a job's end until its pods have ended
BROKEN = (ClientError, OSError, asyncio.TimeoutError, UnreachableError)
Sink = Callable[[list[Line]], None]


@dataclass(frozen=True)
class Choice:
    """Whose output. worker: only this one's; previous: also that of earlier pods; controller: the controller's instead."""

    worker: int | None = None
    previous: bool = False
    controller: bool = False

    def of(self, facts: Facts) -> list[Json]:
        """The pods that are meant, by worker and incarnation."""
        if self.controller:
            every = [pod for pod in facts.pods if not is_worker(pod)]
            return every if self.previous else [pod for pod in every if pod is facts.controller_pod]
        every = sorted(filter(is_worker, facts.pods), key=pods.identity)
        newest = facts.worker_pods
        chosen = [pod for pod in every if self.worker in (None, pods.identity(pod)[0])]
        return chosen if self.previous else [pod for pod in chosen if pod is newest[pods.identity(pod)[0]]]


async def show(connection: Connection, name: str, choice: Choice) -> None:
    """Print what is there, in the order in which it was written."""
    facts = await read(connection, name)
    _check(choice, facts)
    chosen = [pod for pod in choice.of(facts) if has_begun(pod)]
    if not chosen:
        raise InvalidJobError(f"there is no output yet; `tfrun why {name}` says what {name} waits for")
    sinks = [sink(pod, facts.workers) for pod in chosen]
    async for number, line in merged([_numbered(number, connection, pod) for number, pod in enumerate(chosen)]):
        sinks[number]([line])


async def follow(connection: Connection, name: str, choice: Choice) -> None:
    """Print what is there and what comes, also from pods that are yet to come, until the job is over."""
    facts = await read(connection, name)
    _check(choice, facts)
    superseded = {pod["metadata"]["name"] for pod in facts.pods} - {pod["metadata"]["name"] for pod in choice.of(facts)}

    def sink_of(pod: Json) -> Sink | None:
        meant = is_worker(pod) is not choice.controller and choice.worker in (None, choice.controller or pods.identity(pod)[0])
        return sink(pod, facts.workers) if meant and pod["metadata"]["name"] not in superseded else None

    await follow_pods(connection, name, sink_of)


async def follow_pods(connection: Connection, name: str, sink_of: Callable[[Json], Sink | None]) -> Json | None:
    """Give every chosen pod's lines to its sink until the job is over. Returns the controller's Job; None if it was deleted."""
    followed = _Followed(connection)
    over = asyncio.ensure_future(until_over(connection, name))
    look: asyncio.Future[None] = asyncio.ensure_future(followed.look(name, sink_of))
    endless: tuple[asyncio.Future[None], ...] = (look, followed.broken)  # they end with an error only
    try:
        either: set[asyncio.Future[Any]] = {over, *endless}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        for each in endless:
            if each.done():
                each.result()
        if followed.tasks:
            await asyncio.wait(followed.tasks.values(), timeout=LINGER)
        return over.result()
    finally:
        everything: tuple[asyncio.Future[Any], ...] = (over, *endless, *followed.tasks.values())
        for each in everything:
            each.cancel()
        await asyncio.gather(*everything, return_exceptions=True)


async def until_over(connection: Connection, name: str) -> Json | None:
    """The controller's Job once the job is over; None if it was deleted."""
    root = await root_of(connection, name)
    by_name = f"metadata.name={root['metadata']['name']}"
    async for found in connection.live(place("Job", connection.namespace), fieldSelector=by_name):
        now = found.get(root["metadata"]["name"])
        if now is None or now["metadata"]["uid"] != root["metadata"]["uid"]:
            return None
        if end_of(now):
            return now
    raise AssertionError("a live list has no end")


def sink(pod: Json, workers: int) -> Sink:
    """Prints lines: a worker's with its number before each."""
    before = output.prefix(pods.identity(pod)[0], workers, sys.stdout.isatty()) if is_worker(pod) else b""
    return lambda lines: printed(sys.stdout, before, lines)


def printed(to: TextIO, before: bytes, lines: list[Line]) -> None:
    """Write lines whole. Raises ReaderGoneError."""
    try:
        output.write(to.fileno(), b"".join(before + line.text + b"\n" for line in lines))
    except OSError as e:
        raise ReaderGoneError from e


class _Followed:
    """The pods whose output is followed, by name. broken: the first error of one."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def look(self, name: str, sink_of: Callable[[Json], Sink | None]) -> None:
        """Follow every chosen pod as soon as it has begun."""
        where = place("Pod", self._connection.namespace)
        async for known in self._connection.live(where, labelSelector=names.selector(name)):
            for pod_name, pod in known.items():
                to = sink_of(pod) if pod_name not in self.tasks and has_begun(pod) else None
                if to:
                    self.tasks[pod_name] = asyncio.ensure_future(_follow_one(self._connection, pod, to))
                    self.tasks[pod_name].add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error and not self.broken.done():
            self.broken.set_exception(error)


async def _follow_one(connection: Connection, pod: Json, to: Sink) -> None:
    """One pod's output to its end, across breaks: asked for again until it was read whole after its container had ended."""
    lines, path = Lines(), place("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])
    pause = RETRY_FIRST
    while True:
        try:
            ended = pods.has_ended(await connection.get(path))
            async for chunk in connection.chunks(f"{path}/log", follow="true", timestamps="true", **lines.resume()):
                to(lines.feed(chunk))
                pause = RETRY_FIRST
            if ended:
                to(lines.end())
                return
        except RefusedError as e:
            if e.status == 404:  # deleted: what it had printed is gone with it
                to(lines.end())
                return
            if e.status < 500 and e.status != 429:
                raise
        except BROKEN:
            pass
        await asyncio.sleep(pause)
        pause = min(2 * pause, RETRY_MOST)


async def _numbered(number: int, connection: Connection, pod: Json) -> AsyncIterator[tuple[int, Line]]:
    lines, path = Lines(), place("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])
    try:
        async for chunk in connection.chunks(f"{path}/log", timestamps="true"):
            for line in lines.feed(chunk):
                yield number, line
        for line in lines.end():
            yield number, line
    except (RefusedError, *BROKEN) as e:
        print(f"tfrun: the output of {pod['metadata']['name']} can't be read to its end ({e or type(e).__name__})", file=sys.stderr)


def _check(choice: Choice, facts: Facts) -> None:
    if choice.worker is not None and not 0 <= choice.worker < facts.workers:
        raise InvalidJobError(f"there is no worker {choice.worker}; {facts.name} has the workers 0 to {facts.workers - 1}")
