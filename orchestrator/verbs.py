"""The verbs about jobs on a cluster: each is one function, from a cluster's access to what is printed. Nothing is kept on this machine."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from orchestrator import checking, facts, jobfile, logs, manifests, sending, stopping, submit, tables, view
from orchestrator import why as reasons
from orchestrator.access import Access
from orchestrator.client import Connection, Json, connect
from orchestrator.errors import DeadlineError, TfrunError
from orchestrator.facts import is_worker
from orchestrator.spec import JobSpec
from orchestrator.worker_pod import kubernetes_of

SAY_AFTER = 5.0  # seconds without a running controller until the reason is told, and between two looks at it
T = TypeVar("T")


def send(access: Access, job_file: Path, follow: bool, wait: bool) -> int:
    """`tfrun submit`. Returns the exit code: of the job, where its end is awaited."""
    job = sending.in_namespace(jobfile.load(job_file), access.namespace)

    async def work(connection: Connection) -> int:
        for warning in manifests.warnings(job):
            _say(f"warning: {warning}")
        try:
            fresh = await sending.send(connection, job)
        except asyncio.CancelledError:  # Ctrl-C
            _say(f"interrupted; what was made of {job.name} is removed again")
            raise
        print(_submitted(connection, job, fresh), flush=True)
        try:
            return await (_attached(connection, job.name) if follow else _outcome(connection, job.name)) if follow or wait else 0
        except asyncio.CancelledError:
            again, end = (connection.command(verb, job.name) for verb in ("logs -f", "stop"))
            _say(f"detached; {job.name} goes on: {again} follows it again, {end} ends it")
            raise

    return _with(replace(access, namespace=_namespace(job)), work)


def status(access: Access, name: str, output: str) -> str:
    """`tfrun status`."""

    async def work(connection: Connection) -> str:
        found = await facts.read(connection, name)
        if output in ("json", "yaml"):
            return tables.dumped(view.document(found), output)
        columns = view.WIDE_WORKER_COLUMNS if output == "wide" else view.WORKER_COLUMNS
        return f"{view.line(found)}\n{tables.table(columns, view.worker_rows(found), tables.is_terminal())}"

    return _with(access, work)


def jobs(access: Access, everywhere: bool, output: str) -> str:
    """`tfrun list`."""

    async def work(connection: Connection) -> str:
        rows = [view.job_row(each) for each in await facts.read_all(connection, everywhere)]
        if output in ("json", "yaml"):
            return tables.dumped(rows, output)
        if not rows:
            _say(f"there are no jobs {'' if everywhere else f'in the namespace {connection.namespace}'}".rstrip())
            return ""
        columns = ("namespace", *view.JOB_COLUMNS) if everywhere else view.JOB_COLUMNS
        return tables.table(columns, rows, tables.is_terminal())

    return _with(access, work)


def show_logs(access: Access, name: str, choice: logs.Choice, follow: bool) -> None:
    """`tfrun logs`."""

    async def work(connection: Connection) -> None:
        await (logs.follow if follow else logs.show)(connection, name, choice)

    _with(access, work)


def why(access: Access, name: str) -> str:
    """`tfrun why`."""

    async def work(connection: Connection) -> str:
        return reasons.text(await facts.read(connection, name, events=True))

    return _with(access, work)


def wait(access: Access, name: str, timeout: float | None) -> int:
    """`tfrun wait`: the job's exit code. Raises DeadlineError."""

    async def work(connection: Connection) -> int:
        try:
            return await asyncio.wait_for(_outcome(connection, name), timeout)
        except asyncio.TimeoutError:
            raise DeadlineError(f"{name} is not over after {timeout:g} s; {connection.command('why', name)} says what it is at") from None

    return _with(access, work)


def stop(access: Access, name: str, now: bool) -> None:
    """`tfrun stop`."""
    _with(access, lambda connection: stopping.stop(connection, name, now, _say))


def check(access: Access, job_file: Path) -> int:
    """`tfrun check`: prints what the cluster lacks. Returns the exit code."""
    job = sending.in_namespace(jobfile.load(job_file), access.namespace)
    objects = submit.objects(job)  # what is wrong with the job itself comes first
    found = _with(replace(access, namespace=_namespace(job)), lambda connection: checking.check(connection, job, objects))
    for finding in found:
        print(finding)
    lacking = any(not finding.startswith("warning: ") for finding in found)
    print(f"{job.name} can't run here as it is" if lacking else f"{job.name} can run here")
    return 2 if lacking else 0


def _with(access: Access, work: Callable[[Connection], Awaitable[T]]) -> T:
    async def connected() -> T:
        async with connect(access) as connection:
            return await work(connection)

    return asyncio.run(connected())


def _namespace(job: JobSpec) -> str:
    return kubernetes_of(job).namespace


def _submitted(connection: Connection, job: JobSpec, fresh: bool) -> str:
    workers = f"{job.workers} worker{'s' if job.workers > 1 else ''}"
    first = f"{job.name} is submitted to {connection.namespace} ({workers})" if fresh else f"{job.name} is there already, the same job"
    follow, show, end = (connection.command(verb, job.name) for verb in ("logs -f", "status", "stop"))
    return f"{first}\n{follow} follows it, {show} shows it, {end} ends it"


async def _outcome(connection: Connection, name: str) -> int:
    """The exit code of a job, once it is over."""
    return await _judged(connection, name, await logs.until_over(connection, name))


async def _judged(connection: Connection, name: str, root: Json | None) -> int:
    if root is None:
        raise TfrunError(f"the job {name} was deleted before it was over")
    found = facts.Facts(root, facts.now(), home=connection.home)
    if not (found.status and found.status.result):  # else nothing more is needed, and `tfrun stop` may be about to delete it
        found = await facts.read(connection, name)
    print(reasons.ended(found))
    return found.exit_code if found.exit_code is not None else 1


async def _attached(connection: Connection, name: str) -> int:
    """Show the controller's sentences and the workers' output until the end."""
    workers = (await facts.read(connection, name)).workers
    waiting = asyncio.ensure_future(_say_why(connection, name))

    def sink_of(pod: Json) -> logs.Sink:
        if is_worker(pod):
            return logs.sink(pod, workers)
        return lambda lines: logs.printed(sys.stderr, b"tfrun: ", lines)

    try:
        root = await logs.follow_pods(connection, name, sink_of)
    finally:
        waiting.cancel()
    return await _judged(connection, name, root)


async def _say_why(connection: Connection, name: str) -> None:
    """Tell what a job waits for, until its controller runs and tells so itself."""
    told = ""
    while True:
        await asyncio.sleep(SAY_AFTER)
        found = await facts.read(connection, name, events=True)
        if found.status or (found.controller_pod and facts.has_begun(found.controller_pod)):
            return
        text = reasons.text(found)
        if text != told:
            _say(text)
        told = text


def _say(text: str) -> None:
    print(f"tfrun: {text}", file=sys.stderr, flush=True)
