"""`tfrun submit`: all objects of a job or none, however a request ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from orchestrator import names, sending, spec, submit
from orchestrator.client import place
from orchestrator.errors import InvalidJobError, LaunchError
from tests.orchestrator.fake_api import FakeApi, answers, hangs_up, serving
from tests.orchestrator.job_facts import result

JOB = spec.make(
    {
        "name": "digits",
        "builtin": "digits",
        "kubernetes": {"namespace": "ml", "image": "a:1", "controller": {"image": "b:1"}, "resources": {"memory": "1Gi"}},
    },
    "job.yaml",
)
ROOT = place("Job", "ml", "digits-controller")
WRITES = len(submit.objects(JOB)) + 1


def made(api: FakeApi) -> list[tuple[str, str]]:
    return sorted((each["kind"], each["metadata"]["name"]) for each in api.objects.values())


WHOLE = sorted((each["kind"], each["metadata"]["name"]) for each in submit.objects(JOB))


def test_the_root_is_first_and_owns_all(tmp_path: Path) -> None:
    """One write for each object and one that starts the controller; deleting the first object deletes the others."""

    async def work() -> None:
        async with serving(tmp_path) as (api, connection):
            assert await sending.send(connection, JOB)
            assert made(api) == WHOLE
            assert api.asked[0] == f"POST {ROOT.rpartition('/')[0]}"
            assert api.asked[-1] == f"PATCH {ROOT}"
            assert len(api.asked) == WRITES <= 14
            root = api.objects.pop(ROOT)
            assert root["spec"]["suspend"] is False
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "digits-controller", "uid": root["metadata"]["uid"]}
            assert all(each["metadata"]["ownerReferences"] == [owner] for each in api.objects.values())

    asyncio.run(work())


@pytest.mark.parametrize("number", range(WRITES))
def test_a_lost_answer_makes_nothing_twice(tmp_path: Path, number: int) -> None:
    """Whichever write's answer is lost: each object is there once, and the job has started."""

    async def work() -> None:
        async with serving(tmp_path) as (api, connection):

            async def lose(request: web.Request) -> None:
                if request.method in ("POST", "PATCH") and len([each for each in api.asked if not each.startswith("GET")]) == number + 1:
                    api.after = None
                    await hangs_up(request)

            api.after = lose
            assert await sending.send(connection, JOB)
            assert made(api) == WHOLE
            assert api.objects[ROOT]["spec"]["suspend"] is False

    asyncio.run(work())


@pytest.mark.parametrize("number", range(WRITES))
def test_a_refused_object_leaves_nothing(tmp_path: Path, number: int) -> None:
    """Whichever write is refused: what was made is removed, the error says what it was, and submitting again works."""

    async def work() -> None:
        async with serving(tmp_path) as (api, connection):

            async def nothing(_request: web.Request) -> None: ...

            api.faults = [nothing] * number + [answers(403, "denied by a webhook")]
            with pytest.raises(LaunchError, match=r"^the cluster refused to \w+ .*denied by a webhook"):
                await sending.send(connection, JOB)
            assert made(api) == []
            assert await sending.send(connection, JOB)
            assert made(api) == WHOLE

    asyncio.run(work())


@pytest.mark.parametrize("number", range(WRITES))
def test_an_interrupted_submit_leaves_nothing(tmp_path: Path, number: int) -> None:
    """Ctrl-C at any write: nothing stays behind."""

    async def work() -> None:
        async with serving(tmp_path) as (api, connection):
            sent = asyncio.ensure_future(sending.send(connection, JOB))

            async def interrupt(_request: web.Request) -> None:
                if len(api.asked) == number + 1:
                    sent.cancel()

            api.after = interrupt
            with pytest.raises(asyncio.CancelledError):
                await sent
            for _ in range(20):  # what the server heard before it heard of the end
                await asyncio.sleep(0.01)
            # An object that is made after its owner is gone is the garbage collector's.
            assert ROOT not in api.objects

    asyncio.run(work())


def test_an_interrupted_submit_is_finished_by_the_next(tmp_path: Path) -> None:
    """A submit that was killed leaves a suspended job; the same command makes the rest of it."""

    async def work() -> None:
        async with serving(tmp_path) as (api, connection):
            await sending.send(connection, JOB)
            api.objects = dict(list(api.objects.items())[:4])
            api.objects[ROOT]["spec"]["suspend"] = True
            assert await sending.send(connection, JOB)
            assert made(api) == WHOLE

    asyncio.run(work())


def test_the_same_job_is_there_once(tmp_path: Path) -> None:
    """Submitted twice it is the same job; another job of its name, one that is over and one that is being deleted are refused."""

    async def work() -> None:
        async with serving(tmp_path) as (api, connection):
            assert await sending.send(connection, JOB)
            assert not await sending.send(connection, JOB)
            assert made(api) == WHOLE
            with pytest.raises(InvalidJobError, match="another job digits is in the namespace ml; `tfrun stop digits`"):
                await sending.send(connection, JOB.model_copy(update={"workers": 3}))
            api.objects[ROOT]["metadata"]["annotations"][names.STATUS] = result("failed", "no").text()
            with pytest.raises(
                InvalidJobError, match=r"this same job digits was submitted before and is over \(failed\); `tfrun stop digits`"
            ):
                await sending.send(connection, JOB)
            api.objects[ROOT]["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
            with pytest.raises(InvalidJobError, match="the job digits is being deleted; submit it again"):
                await sending.send(connection, JOB)

    asyncio.run(work())


def test_what_an_earlier_job_leaves_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object of the name that is about to go is no error; one that stays is named, and what was made is removed."""
    monkeypatch.setattr(sending, "CLEARING", 0.5)
    service = place("Service", "ml", "digits-controller")

    async def work() -> None:
        async with serving(tmp_path) as (api, connection):
            api.objects[service] = {"kind": "Service", "metadata": {"name": "digits-controller", "uid": "other"}}
            asyncio.get_running_loop().call_later(0.2, api.objects.pop, service)
            assert await sending.send(connection, JOB)
            api.objects = {service: {"kind": "Service", "metadata": {"name": "digits-controller", "uid": "other"}}}
            with pytest.raises(
                LaunchError, match="a Service digits-controller that does not belong to this job is in the namespace; delete it"
            ):
                await sending.send(connection, JOB)
            assert list(api.objects) == [service]

    asyncio.run(work())


def test_a_namespace_given_on_the_command_line_counts() -> None:
    """-n has the objects made there, and nothing else is changed."""
    moved = sending.in_namespace(JOB, "other")
    assert {each["metadata"]["namespace"] for each in submit.objects(moved)} == {"other"}
    assert sending.in_namespace(JOB, None) == JOB
