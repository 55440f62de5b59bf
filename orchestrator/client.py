"""The connection to a cluster: requests in plain JSON with time limits and retries, errors of one sentence."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from aiohttp import ClientConnectorCertificateError, ClientError, ClientTimeout
from kubernetes.aio import client

from orchestrator import kubeconfig, refusals
from orchestrator.access import Access
from orchestrator.errors import LaunchError

Json = dict[str, Any]
ASK_TIMEOUT = 10.0  # seconds for one answer
PATIENCE = 10.0  # seconds for all tries of one request
WATCH = 60  # seconds until a watch is made anew: one that fell silent is found out so
QUIET = 300.0  # seconds without a byte after which a log is asked for anew
BROKEN_PAUSE = 1.0  # seconds after a watch broke
RETRY_FIRST, RETRY_MOST = 0.2, 5.0  # seconds between two tries, doubling
_RETRIED = frozenset((429, 500, 502, 503, 504))
_CORE, _BATCH, _RBAC = "/api/v1", "/apis/batch/v1", "/apis/rbac.authorization.k8s.io/v1"
_PLACES = {  # kind → where the API has it, and under which name
    "ConfigMap": (_CORE, "configmaps"),
    "Event": (_CORE, "events"),
    "Job": (_BATCH, "jobs"),
    "Namespace": (_CORE, "namespaces"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "PersistentVolumeClaim": (_CORE, "persistentvolumeclaims"),
    "Pod": (_CORE, "pods"),
    "ResourceQuota": (_CORE, "resourcequotas"),
    "Role": (_RBAC, "roles"),
    "RoleBinding": (_RBAC, "rolebindings"),
    "Secret": (_CORE, "secrets"),
    "SelfSubjectAccessReview": ("/apis/authorization.k8s.io/v1", "selfsubjectaccessreviews"),
    "Service": (_CORE, "services"),
    "ServiceAccount": (_CORE, "serviceaccounts"),
}


class RefusedError(LaunchError):
    """The API server said no. status: its HTTP status; said: its own words."""

    def __init__(self, text: str, status: int, said: str) -> None:
        super().__init__(text)
        self.status, self.said = status, said


class UnreachableError(LaunchError):
    """No answer came, for as long as one is worth waiting for."""


def place(kind: str, namespace: str = "", name: str = "", part: str = "") -> str:
    """The path of an object, of a part of it, or of all objects of a kind; without a namespace those of all."""
    prefix, plural = _PLACES[kind]
    return "/".join(filter(None, (prefix, f"namespaces/{namespace}" if namespace else "", plural, name, part)))


def resource(kind: str) -> tuple[str, str]:
    """(API group, resource) as RBAC writes them."""
    prefix, plural = _PLACES[kind]
    return prefix.split("/")[2] if prefix != _CORE else "", plural


@asynccontextmanager
async def connect(access: Access, patience: float = PATIENCE) -> AsyncIterator[Connection]:
    """A connection, closed at the end. patience: seconds for all tries of one request; a controller's is without end.

    Raises InvalidJobError or LaunchError where there is nothing to connect to.
    """
    configuration, namespace = await kubeconfig.load(access)
    async with client.ApiClient(configuration) as api:
        yield Connection(api, access.namespace or namespace, lambda: kubeconfig.load(access), patience, home=namespace)


class Connection:
    """Requests to one cluster. namespace: the one that was chosen; home: the one where a verb without -n looks."""

    def __init__(
        self,
        api: client.ApiClient,
        namespace: str,
        again: Callable[[], Awaitable[tuple[client.Configuration, str]]],
        patience: float = PATIENCE,
        home: str = "",
    ) -> None:
        """again: reads the configuration anew, for a token that has expired."""
        self._api, self.namespace, self._again, self._patience, self.home = api, namespace, again, patience, home

    def command(self, verb: str, name: str) -> str:
        """A verb about a job here, to type."""
        return f"`tfrun {verb} {name}{'' if self.namespace == self.home else f' -n {self.namespace}'}`"

    async def get(self, path: str, **query: str) -> Json:
        """An object, or a list of objects."""
        return await self._ask("GET", path, query)

    async def items(self, path: str, **query: str) -> list[Json]:
        """All objects of a list."""
        found: list[Json] = (await self.get(path, **query))["items"]
        return found

    async def create(self, manifest: Json, **query: str) -> Json:
        """What became of a manifest. A 409 may be the echo of a try whose answer was lost: whoever calls knows its own objects."""
        path = place(manifest["kind"], manifest["metadata"].get("namespace", ""))
        what = f"create the {manifest['kind']} {manifest['metadata'].get('name', '')}".strip()
        return await self._ask("POST", path, query, manifest, what=what)

    async def patch(self, path: str, body: Json) -> Json:
        """Merge a change into an object."""
        return await self._ask("PATCH", path, {}, body, what=f"change {path.rpartition('/')[2]}")

    async def delete(self, path: str, uid: str | None = None, grace: int | None = None) -> None:
        """Delete an object, just the one with this uid, and then what it owns; done if it is gone already, or another has its name.

        grace: seconds that a pod has from SIGTERM to SIGKILL; with 0 its node need not confirm.
        """
        options = {"preconditions": {"uid": uid} if uid else None, "gracePeriodSeconds": grace}
        body = {"propagationPolicy": "Background", **{name: value for name, value in options.items() if value is not None}}
        try:
            await self._ask("DELETE", path, {}, body, what=f"delete {path.rpartition('/')[2]}")
        except RefusedError as e:
            if e.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                raise

    async def chunks(self, path: str, **query: str) -> AsyncIterator[bytes]:
        """The bytes of a log as they come."""
        async with self._streamed(path, query, QUIET) as answer:
            async for chunk in answer.content.iter_any():
                yield chunk

    async def live(self, path: str, **query: str) -> AsyncIterator[dict[str, Json]]:
        """The objects of a list by name, now and again after every change. Once it has begun an outage only delays it."""
        known: dict[str, Json] | None = None
        pause = RETRY_FIRST
        while True:
            try:
                found = await self.get(path, **query)
                known, pause = {each["metadata"]["name"]: each for each in found["items"]}, RETRY_FIRST
                yield dict(known)
                async for change in self._changes(path, query, found["metadata"]["resourceVersion"]):
                    _apply(change, known)
                    yield dict(known)
            except (UnreachableError, ClientError, OSError, asyncio.TimeoutError, ValueError):
                if known is None:
                    raise
            except RefusedError as e:
                if known is None or (e.status not in _RETRIED and e.status != HTTPStatus.GONE):
                    raise
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 # no secret
            pause = min(2 * pause, RETRY_MOST)

    async def changes(self, path: str, version: str, **query: str) -> AsyncIterator[tuple[str, Json]]:
        """What becomes of a list's objects from that version on, as (ADDED, MODIFIED or DELETED; the object), until the link breaks."""
        try:
            async for change in self._changes(path, query, version):
                yield change["type"], change["object"]
        except (RefusedError, ClientError, OSError, asyncio.TimeoutError, ValueError):
            # Whatever cut it (410, a torn line, a missing right), what is true is in the next list: soon, and not in a tight circle.
            await asyncio.sleep(BROKEN_PAUSE * random.uniform(0.5, 1.0))  # noqa: S311 # no secret

    async def _changes(self, path: str, query: Mapping[str, str], version: str) -> AsyncIterator[Json]:
        """Watch, and watch again from where the last one ended, until one brings nothing. Raises RefusedError, or what broke the link."""
        heard = True
        while heard:
            heard = False
            asked = {**query, "watch": "true", "resourceVersion": version, "timeoutSeconds": str(WATCH), "allowWatchBookmarks": "true"}
            async with self._streamed(path, asked, WATCH + ASK_TIMEOUT) as answer:
                async for line in _lines(answer.content):
                    change, heard = json.loads(line), True
                    if change["type"] == "ERROR":
                        raise _refused(change["object"].get("code", HTTPStatus.GONE), change["object"].get("message", ""), f"watch {path}")
                    version = change["object"]["metadata"]["resourceVersion"]
                    if change["type"] != "BOOKMARK":
                        yield change

    # ---- single requests ----

    async def _ask(self, method: str, path: str, query: Mapping[str, str], body: Json | None = None, what: str = "") -> Json:
        """The answer, after as many tries as PATIENCE allows."""
        loop = asyncio.get_running_loop()
        deadline, pause, known_again = loop.time() + self._patience, RETRY_FIRST, False
        while True:
            wait = pause * random.uniform(0.5, 1.0)  # noqa: S311 # no secret
            try:
                answer = await self._send(method, path, query, body, ClientTimeout(total=ASK_TIMEOUT))
                content = await answer.read()
            except (ClientError, OSError, asyncio.TimeoutError) as e:
                if isinstance(e, ClientConnectorCertificateError) or loop.time() + wait > deadline:
                    raise _unreachable(self._api.configuration.host, e) from e
            else:
                if answer.status < HTTPStatus.BAD_REQUEST:
                    return dict(json.loads(content))
                if answer.status == HTTPStatus.UNAUTHORIZED and not known_again:
                    known_again = await self._reload()
                    continue
                wait = max(wait, _seconds(answer.headers.get("Retry-After")))
                if answer.status not in _RETRIED or loop.time() + wait > deadline:
                    raise _refused(answer.status, _message(content), what or f"{method.lower()} {path}")
            await asyncio.sleep(wait)
            pause = min(2 * pause, RETRY_MOST)

    @asynccontextmanager
    async def _streamed(self, path: str, query: Mapping[str, str], quiet: float) -> AsyncIterator[Any]:
        timeout = ClientTimeout(total=None, sock_connect=ASK_TIMEOUT, sock_read=quiet)
        answer = await self._send("GET", path, query, None, timeout)
        try:
            if answer.status == HTTPStatus.UNAUTHORIZED:
                await self._reload()
                answer.close()
                answer = await self._send("GET", path, query, None, timeout)
            if answer.status >= HTTPStatus.BAD_REQUEST:
                raise _refused(answer.status, _message(await answer.read()), f"read {path}")
            yield answer
        finally:
            answer.close()

    async def _send(self, method: str, path: str, query: Mapping[str, str], body: Json | None, timeout: ClientTimeout) -> Any:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Accept": "application/json, */*", "Content-Type": kind}
        request = await self._api.param_serialize(
            method, path, query_params=list(query.items()), header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        _, url, headers, body, _ = request
        return (await self._api.call_api(method, url, headers, body, _request_timeout=timeout)).response

    async def _reload(self) -> bool:
        fresh, _ = await self._again()
        self._api.configuration.api_key = fresh.api_key
        return True


async def _lines(content: Any) -> AsyncIterator[bytes]:
    """Whole lines, however long: aiohttp's own have a limit that an object may pass."""
    partial = b""
    async for chunk in content.iter_any():
        *whole, partial = (partial + chunk).split(b"\n")
        for line in whole:
            yield line


def _apply(change: Json, known: dict[str, Json]) -> None:
    name = change["object"]["metadata"]["name"]
    if change["type"] == "DELETED":
        known.pop(name, None)
    else:
        known[name] = change["object"]


def _refused(status: int, said: str, what: str) -> RefusedError:
    return RefusedError(refusals.sentence(status, said, what), status, said)


def _unreachable(host: str, error: Exception) -> UnreachableError:
    if isinstance(error, ClientConnectorCertificateError):
        said = "its certificate is not one that this configuration trusts"
    elif isinstance(error, asyncio.TimeoutError):
        said = "no answer in time"
    else:
        cause = getattr(error, "os_error", None)
        said = os.strerror(cause.errno) if cause and (cause.errno or 0) > 0 else getattr(cause, "strerror", None) or type(error).__name__
    return UnreachableError(f"the cluster at {host} can't be reached ({said}); choose another with --context or --kubeconfig, or try later")


def _message(content: bytes) -> str:
    try:
        return str(json.loads(content).get("message", ""))
    except (ValueError, AttributeError):
        return content.decode(errors="replace")


def _seconds(retry_after: str | None) -> float:
    return float(retry_after) if retry_after and retry_after.isdigit() else 0.0
