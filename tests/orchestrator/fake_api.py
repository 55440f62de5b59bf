"""An API server in this process, which holds objects and does what it is told to do wrong."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from orchestrator.access import Access
from orchestrator.client import Connection, connect

Json = dict[str, Any]
PLURALS = ("pods", "jobs", "events", "services", "secrets", "resourcequotas", "persistentvolumeclaims")
TOKEN = "canary-of-a-token"
Fault = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


class FakeApi:
    """objects: by path. asked: every request, as "METHOD path". faults: asked one after the other before a request is heard."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.asked: list[str] = []
        self.faults: list[Fault] = []
        self.after: Fault | None = None  # once a request was heard and before it is answered
        self.logs: dict[str, bytes] = {}  # by pod
        self.forbidden: set[str] = set()  # such as "create pods"
        self.refuses: dict[str, str] = {}  # kind → in which words
        self.watched: list[bytes] = []  # what watches bring, one after the other; then the connection breaks

    async def hear(self, request: web.Request) -> web.StreamResponse:
        """Every request comes here."""
        if "watch" not in request.query:
            return await self._answer(request)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(self.watched.pop(0) if self.watched else b"")
        if not self.watched:
            await hangs_up(request)
        return response

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path}")
        if self.faults:
            answer = await self.faults.pop(0)(request)
            if answer is not None:
                return answer
        body = await request.json() if request.can_read_body else {}
        done = getattr(self, f"_{request.method.lower()}")(request, body)
        return (await self.after(request) if self.after else None) or done

    def _get(self, request: web.Request, _body: Json) -> web.Response:
        if request.path in self.objects:
            return web.json_response(self.objects[request.path])
        if request.path.endswith("/log"):
            return web.Response(body=self.logs.get(request.path.split("/")[-2], b""))
        if request.path.rpartition("/")[2] in PLURALS:
            below = [each for path, each in self.objects.items() if _is_below(path, request.path) and _fits(each, request.query)]
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": below})
        return refusal(404, f"{request.path} not found")

    def _post(self, request: web.Request, body: Json) -> web.Response:
        if body["kind"] == "SelfSubjectAccessReview":
            asked = body["spec"]["resourceAttributes"]
            return web.json_response({"status": {"allowed": f"{asked['verb']} {asked['resource']}" not in self.forbidden}})
        path = f"{request.path}/{body['metadata'].get('name')}"
        if path in self.objects:
            return refusal(409, "already exists")
        if body["kind"] in self.refuses:
            return refusal(403, self.refuses[body["kind"]])
        if "dryRun" in request.query:
            return web.json_response(body)
        self.objects[path] = {**body, "metadata": {**body["metadata"], "uid": f"uid-of-{path}"}}
        return web.json_response(self.objects[path], status=201)

    def _patch(self, request: web.Request, body: Json) -> web.Response:
        found = self.objects[request.path]
        metadata = {**found["metadata"], **body.get("metadata", {})}
        self.objects[request.path] = {**found, "metadata": metadata, "spec": {**found["spec"], **body.get("spec", {})}}
        return web.json_response(self.objects[request.path])

    def _delete(self, request: web.Request, body: Json) -> web.Response:
        gone = self.objects.pop(request.path, None)
        if gone is None:
            return refusal(404, "not found")
        uid = gone["metadata"]["uid"]  # what the garbage collector does
        self.objects = {
            path: each
            for path, each in self.objects.items()
            if uid not in [owner["uid"] for owner in each["metadata"].get("ownerReferences", [])]
        }
        return web.json_response(gone)


def _is_below(path: str, listed: str) -> bool:
    """Whether an object is in a list, of its namespace or of all."""
    parent = path.rpartition("/")[0]
    return listed in (parent, re.sub("/namespaces/[^/]+", "", parent))


def _fits(each: Json, query: Mapping[str, str]) -> bool:
    labels = each["metadata"].get("labels", {})
    wanted = [part.partition("=") for part in query.get("labelSelector", "").split(",") if part]
    name = query.get("fieldSelector", "").removeprefix("metadata.name=")
    return name in ("", each["metadata"]["name"]) and all(key in labels and value in ("", labels[key]) for key, _, value in wanted)


def refusal(status: int, message: str, **headers: str) -> web.Response:
    """A Status object, as the API server answers."""
    return web.json_response({"kind": "Status", "message": message}, status=status, headers=headers)


def answers(status: int, message: str = "", **headers: str) -> Fault:
    async def fault(_request: web.Request) -> web.StreamResponse:
        return refusal(status, message, **headers)

    return fault


async def hangs_up(request: web.Request) -> None:
    """Close the connection without an answer."""
    assert request.transport
    request.transport.close()
    await asyncio.sleep(0)


@asynccontextmanager
async def listening(folder: Path) -> AsyncIterator[tuple[FakeApi, Access]]:
    """A fake API server, and how it is reached."""
    api = FakeApi()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", api.hear)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield api, Access(kubeconfig(folder, f"http://{host}:{port}"))
    finally:
        await runner.cleanup()


@asynccontextmanager
async def serving(folder: Path, patience: float = 10.0) -> AsyncIterator[tuple[FakeApi, Connection]]:
    """A fake API server, and a connection to it."""
    async with listening(folder) as (api, access), connect(access, patience) as connection:
        yield api, connection


@contextmanager
def beside(folder: Path) -> Iterator[tuple[FakeApi, Access]]:
    """A fake API server in a thread, for functions with an event loop of their own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = listening(folder)
    try:
        yield asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
        asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def kubeconfig(folder: Path, server: str) -> Path:
    path = folder / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "clusters": [{"name": "one", "cluster": {"server": server}}],
        "users": [{"name": "me", "user": {"token": TOKEN}}],
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "me", "namespace": "ml"}}],
    }
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    return path
