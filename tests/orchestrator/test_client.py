"""The connection to a cluster: retries, errors of one sentence, and which configuration counts."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from aiohttp import web

from orchestrator.access import Access
from orchestrator.client import Connection, RefusedError, UnreachableError, connect, place
from orchestrator.errors import InvalidJobError, LaunchError
from tests.orchestrator.fake_api import TOKEN, answers, hangs_up, kubeconfig, serving

POD = place("Pod", "ml", "x")


@pytest.mark.parametrize("fault", [429, 500, 502, 503, 504, "no answer"])
def test_what_passes_is_asked_for_again(tmp_path: Path, fault: int | str) -> None:
    """A busy server, one in trouble and a broken connection are no errors yet."""
    passing = answers(fault) if isinstance(fault, int) else hangs_up

    async def work() -> object:
        async with serving(tmp_path) as (api, connection):
            api.objects[POD] = {"kind": "Pod"}
            api.faults = [passing, passing]
            found = await connection.get(POD)
            return found, len(api.asked)

    assert asyncio.run(work()) == ({"kind": "Pod"}, 3)


def test_the_server_says_when_to_ask_again(tmp_path: Path) -> None:
    """Retry-After is honoured."""

    async def work() -> None:
        async with serving(tmp_path) as (api, connection):
            api.objects[POD] = {}
            api.faults = [answers(429, **{"Retry-After": "1"})]
            await connection.get(POD)

    begun = time.monotonic()
    asyncio.run(work())
    assert time.monotonic() - begun >= 1.0


def test_tries_come_to_an_end(tmp_path: Path) -> None:
    """After its patience a request fails with what the server said, or with the address that does not answer."""

    async def work() -> None:
        async with serving(tmp_path, patience=0.5) as (api, connection):
            api.faults = [answers(503, "etcd is away")] * 50
            with pytest.raises(RefusedError, match=r"^the cluster refused to get .*/pods/x \(503\): etcd is away$"):
                await connection.get(POD)
            api.faults = [hangs_up] * 50
            with pytest.raises(
                UnreachableError, match=r"^the cluster at http://127.0.0.1:\d+ can't be reached \(\w+\); choose another"
            ) as error:
                await connection.get(POD)
            assert error.value.exit_code == 3

    asyncio.run(work())


def test_nobody_there(tmp_path: Path) -> None:
    """A refused connection is told as such."""

    async def work() -> None:
        async with connect(Access(kubeconfig(tmp_path, "http://127.0.0.1:1")), patience=0.1) as connection:
            with pytest.raises(UnreachableError, match=r"can't be reached \(Connection refused\)"):
                await connection.get(POD)

    asyncio.run(work())


def test_an_expired_token_is_read_again_once(tmp_path: Path) -> None:
    """401 has the kubeconfig read anew, which asks a login plugin again; a second one is an error that does not name the token."""

    async def work() -> None:
        async with serving(tmp_path) as (api, connection):
            seen = []

            async def refuses_the_old(request: web.Request) -> web.StreamResponse | None:
                seen.append(request.headers["Authorization"])
                return None if seen[-1] == "Bearer new" else await answers(401, "Unauthorized")(request)

            api.objects[POD] = {}
            path = tmp_path / "kubeconfig"
            path.write_text(path.read_text().replace(TOKEN, "new"))
            api.faults = [refuses_the_old, refuses_the_old]
            await connection.get(POD)
            assert seen == [f"Bearer {TOKEN}", "Bearer new"]
            api.faults = [answers(401), answers(401)]
            with pytest.raises(LaunchError, match="does not know who you are") as error:
                await connection.get(POD)
            assert "new" not in str(error.value)

    asyncio.run(work())


def test_a_missing_right_is_named(tmp_path: Path) -> None:
    """403 says verb, resource and API group, without a second try."""
    said = 'jobs.batch is forbidden: User "jane" cannot create resource "jobs" in API group "batch" in the namespace "ml"'

    async def work() -> None:
        async with serving(tmp_path) as (api, connection):
            api.faults = [answers(403, said)]
            with pytest.raises(
                RefusedError, match="jane may not create jobs here; ask for a Role with the verb create on jobs in the API group"
            ):
                await connection.create({"kind": "Job", "metadata": {"namespace": "ml", "name": "x"}})
            assert len(api.asked) == 1

    asyncio.run(work())


def test_a_watch_that_breaks_begins_again_with_the_truth(tmp_path: Path) -> None:
    """A cut, an answer of 410 and a torn line each lead to the list, so that a change which nobody heard of is seen."""

    def event(kind: str, name: str) -> bytes:
        return json.dumps({"type": kind, "object": {"metadata": {"name": name, "resourceVersion": "2"}, "code": 410}}).encode() + b"\n"

    async def work() -> None:
        async with serving(tmp_path) as (api, connection):
            where = place("Pod", "ml")
            api.watched = [event("ADDED", "b") + event("DELETED", "a") + event("ERROR", ""), event("ADDED", "c") + b'{"type":']
            api.objects = {f"{where}/a": {"metadata": {"name": "a"}}}
            seen = []
            async for known in connection.live(where):
                seen.append(sorted(known))
                if len(seen) == 3:
                    api.objects = {f"{where}/d": {"metadata": {"name": "d"}}}
                if len(seen) == 6:
                    break
            assert seen == [["a"], ["a", "b"], ["b"], ["d"], ["c", "d"], ["d"]]

    asyncio.run(work())


def test_nothing_to_connect_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration that is missing, broken or anybody's to change is refused in a sentence without what is in it."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "there is no kubeconfig" in _refused(Access())
    assert "there is no kubeconfig /none (--kubeconfig)" in _refused(Access(Path("/none")))
    path = kubeconfig(tmp_path, "http://127.0.0.1:1")
    assert "can't be used for the context two (ConfigException)" in _refused(Access(path, "two"))
    path.chmod(0o606)
    assert f"`chmod 600 {path}`" in _refused(Access(path))
    path.chmod(0o600)
    for broken in (f"token: {TOKEN}: {{", f"users: [{{name: me, user: {{token: {TOKEN}}}}}]", f"users: {TOKEN}", ""):
        path.write_text(broken)
        assert "can't be used with its current context" in _refused(Access(path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert "this pod has no service account's token" in _refused(Access())


def test_options_choose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--kubeconfig before KUBECONFIG; the context's namespace unless one is given; commands name it where it has to be."""
    path = kubeconfig(tmp_path, "http://127.0.0.1:1")
    monkeypatch.setenv("KUBECONFIG", "/none")

    async def opened(access: Access) -> Connection:
        async with connect(access) as connection:
            return connection

    assert asyncio.run(opened(Access(path))).namespace == "ml"
    assert asyncio.run(opened(Access(path))).command("why", "digits") == "`tfrun why digits`"
    other = asyncio.run(opened(Access(path, namespace="other")))
    assert (other.namespace, other.command("why", "digits")) == ("other", "`tfrun why digits -n other`")


def _refused(access: Access) -> str:
    async def work() -> None:
        async with connect(access):
            raise AssertionError("it connected")

    with pytest.raises(InvalidJobError) as error:
        asyncio.run(work())
    assert TOKEN not in str(error.value)
    return str(error.value)
