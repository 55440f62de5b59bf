"""The controller's pod: one job on Kubernetes, from the group's gathering to the result, in as many pods as it takes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from orchestrator import names, record, spec
from orchestrator.access import Access
from orchestrator.backends.kubernetes import KubernetesBackend
from orchestrator.client import connect
from orchestrator.controller import Controller
from orchestrator.errors import TfrunError
from orchestrator.group import Policy, Result, State
from orchestrator.kubernetes_spec import GRACE
from orchestrator.record import Clocks
from orchestrator.root import GoneError, Root
from orchestrator.spec import JobSpec
from orchestrator.status import Status

ANYWHERE = "0.0.0.0"  # noqa: S104 # the pod's own address; the network policy says who reaches it
SAVE_TIME = GRACE * 0.6  # seconds of the grace in which the programs may save and leave
ABANDONED = 75  # the exit code of a controller that leaves its job to the next one (EX_TEMPFAIL of sysexits.h); its Job makes another pod
WANTED_DEADLINE = 5.0  # seconds for the API server to say whether the job is still wanted; without an answer it is
ADOPT_AFTER = 60.0  # seconds after which the objects are owned although no attempt has begun
WRITE_WINDOW = 2.0  # seconds in which news are gathered for one write of the status: a launch is one or two
WRITE_PERIOD = 30.0  # seconds between two writes without news
TRY_AGAIN = 5.0  # seconds after something beside the training has failed
LAST_WRITE = 10.0  # seconds for the result
TERMINATION = Path("/dev/termination-log")  # what the kubelet makes the pod's termination message


def run(job_file: Path, key_file: Path) -> int:
    """Run the job to its end, or until this pod has to go. Returns the exit code."""
    job = spec.make(json.loads(job_file.read_text()), str(job_file))  # as manifests.py wrote it: JSON, which needs no YAML library
    result = asyncio.run(_until_done(job, key_file.read_bytes()))
    if result is None:
        print("this controller leaves; the workers go on, and the next controller finds them", flush=True)
        return ABANDONED
    text = f"{result.ending.name.lower()}: {result.reason}"
    print(text, flush=True)
    with contextlib.suppress(OSError):  # outside a pod there is none
        TERMINATION.write_text(text)
    return result.exit_code


async def _until_done(job: JobSpec, key: bytes) -> Result | None:
    assert job.kubernetes
    async with connect(Access(namespace=job.kubernetes.namespace), patience=math.inf) as connection:
        try:
            root = await Root.read(connection, job.name)
        except GoneError:
            return None
        backend = KubernetesBackend(job, connection, root.reference, root.born)
        before = record.before(root.status, await backend.survey(), root.started, Clocks.now(time.monotonic()))
        journal = _Journal(root)
        policy = replace(Policy.of(job), grace=SAVE_TIME)
        controller = Controller(policy, backend, journal, secret=key, before=before)
        adopting = [] if backend.group_is_owned else [lambda: _adopt(root, job, journal)]
        with (
            _background(journal.keep, lambda: root.until_stopped(controller.stop_once), *adopting),
            _leaves_when_told(controller, root),
        ):
            return await controller.run(ANYWHERE, names.PORT)


@contextmanager
def _background(*works: Callable[[], Coroutine[None, None, None]]) -> Iterator[None]:
    """Do these meanwhile. What fails is told and tried again, and the training goes on."""

    async def persist(work: Callable[[], Coroutine[None, None, None]]) -> None:
        while True:
            try:
                return await work()
            except TfrunError as e:
                print(f"{e}; trying again", flush=True)
            await asyncio.sleep(TRY_AGAIN)

    tasks = [asyncio.ensure_future(persist(work)) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


@contextmanager
def _leaves_when_told(controller: Controller, root: Root) -> Iterator[None]:
    """SIGTERM: this pod has to go, and the job with it only if somebody wants that."""
    deciding: set[asyncio.Task[None]] = set()

    async def decide() -> None:
        try:
            wanted = await asyncio.wait_for(root.wanted(), WANTED_DEADLINE)
        except (asyncio.TimeoutError, TfrunError):
            wanted = True
        if wanted:
            controller.abandon()
        else:
            controller.stop_once(signal.SIGTERM)

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, lambda: deciding.add(asyncio.ensure_future(decide())))
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def _adopt(root: Root, job: JobSpec, journal: _Journal) -> None:
    """Own what was applied with kubectl, when the training runs: nothing of it is on the way there."""
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(journal.begun.wait(), ADOPT_AFTER)
    from orchestrator import manifests  # late: everyone waits for this pod's start, and the templates are only needed now

    await root.adopt(manifests.job_objects(job, None))


class _Journal:
    """The observer of a job on a cluster: its pod's output, and the status."""

    def __init__(self, root: Root) -> None:
        self.begun = asyncio.Event()
        self._root = root
        self._news = asyncio.Event()
        self._state: State | None = None
        self._written: Status | None = None

    def told(self, text: str) -> None:
        """See Observer."""
        print(text, flush=True)

    def began(self, attempt: int) -> None:
        """See Observer."""
        self.begun.set()
        print(f"attempt {attempt} runs on every worker", flush=True)

    def opened(self, worker: int, log: str) -> None:
        """See Observer. A pod's output is the cluster's to keep."""

    def progressed(self, state: State) -> None:
        """See Observer. Steps alone are no news."""
        self._state = state

    def changed(self, state: State) -> None:
        """See Observer."""
        self._state = state
        self._news.set()

    async def keep(self) -> None:
        """Write the status when there is news, and now and then how far the training is."""
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), WRITE_PERIOD)
            if self._news.is_set():
                await asyncio.sleep(WRITE_WINDOW)
            self._news.clear()
            if self._state:
                await self._write(self._state)

    async def concluded(self, state: State) -> None:
        """See Observer."""
        with contextlib.suppress(asyncio.TimeoutError, TfrunError):
            await asyncio.wait_for(self._write(state), LAST_WRITE)

    async def _write(self, state: State) -> None:
        now = record.describe(state, Clocks.now(time.monotonic()))
        if self._written and now.model_copy(update={"written": self._written.written}) == self._written:
            return
        self._written = now
        await self._root.write(now)
