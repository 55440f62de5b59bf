"""Controller and rendezvous over real sockets, with a backend that starts nothing: the test plays the agents."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from orchestrator.backends.base import Meeting, Watcher
from orchestrator.controller import Controller
from orchestrator.group import Ending, Policy, Result, State
from orchestrator.names import LOOPBACK
from worker_image import protocol
from worker_image.protocol import Begin, Challenge, Dismiss, End, Ended, Join, Message, Prepare, Ready, Refused, Welcome

SECRET = b"s" * protocol.SECRET_BYTES


OPEN: list[asyncio.StreamWriter] = []  # the test's connections, closed by hang_up


async def hang_up() -> None:
    while OPEN:
        OPEN[-1].close()
        with contextlib.suppress(OSError):
            await OPEN.pop().wait_closed()


class FakeBackend:
    """Notes what it is asked for. `meeting` is set once something is launched."""

    def __init__(self) -> None:
        self.launched: list[tuple[int, int]] = []
        self.meeting: asyncio.Future[Meeting] = asyncio.get_running_loop().create_future()
        self.watcher: Watcher | None = None
        self.patience: list[float] = []
        self.error: Exception | None = None

    async def launch(self, worker: int, incarnation: int, meeting: Meeting, watcher: Watcher) -> None:
        if self.error:
            raise self.error
        self.launched.append((worker, incarnation))
        self.watcher = watcher
        if not self.meeting.done():
            self.meeting.set_result(meeting)

    async def remove(self, worker: int, incarnation: int) -> None:
        assert self.watcher
        self.watcher.gone(worker, incarnation, "removed")

    async def close(self, patience: float) -> None:
        self.patience.append(patience)


class Silence:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.attempts: list[int] = []

    def told(self, text: str) -> None:
        self.lines.append(text)

    def began(self, attempt: int) -> None:
        self.attempts.append(attempt)

    def opened(self, worker: int, log: str) -> None:
        self.lines.append(f"{worker} {log}")

    def progressed(self, state: State) -> None:
        pass

    def changed(self, state: State) -> None:
        pass

    async def concluded(self, state: State) -> None:
        pass


class FakeAgent:
    """The test's end of a real connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        OPEN.append(writer)

    def say(self, message: Message) -> None:
        self.writer.write(protocol.encode(message))

    async def hear(self) -> Message | None:
        line = await asyncio.wait_for(self.reader.readline(), 5)
        return protocol.decode(line) if line else None


async def connect(address: str) -> FakeAgent:
    host, port = address.split(":")
    return FakeAgent(*await asyncio.open_connection(host, int(port)))


async def join(
    address: str, worker: int, incarnation: int = 0, secret: bytes = SECRET, version: int = protocol.VERSION
) -> tuple[FakeAgent, Message | None]:
    agent = await connect(address)
    challenge = await agent.hear()
    assert isinstance(challenge, Challenge)
    proof = protocol.proof(secret, "agent", worker, incarnation, (challenge.nonce, "n"))
    agent.say(Join(worker, incarnation, "n", proof, version))
    answer = await agent.hear()
    if isinstance(answer, Welcome):
        assert answer.proof == protocol.proof(SECRET, "controller", worker, incarnation, (challenge.nonce, "n"))
    return agent, answer


Play = Callable[[Controller, FakeBackend, Silence, str], Awaitable[None]]


def play(script: Play, **policy: Any) -> tuple[Result, Silence, FakeBackend]:
    """Run a controller with this script beside it."""

    async def main() -> tuple[Result, Silence, FakeBackend]:
        backend, observer = FakeBackend(), Silence()
        controller = Controller(Policy(**{"workers": 2, **policy}), backend, observer, secret=SECRET)
        running = asyncio.ensure_future(controller.run(LOOPBACK))
        meeting = await asyncio.wait_for(backend.meeting, 5)
        await asyncio.wait_for(script(controller, backend, observer, meeting.address), 20)
        result = await asyncio.wait_for(running, 20)
        await hang_up()
        return result, observer, backend

    return asyncio.run(main())


def test_a_group_meets_runs_and_ends() -> None:
    """Join, Prepare, Ready, Begin with everyone's addresses, Ended, Dismiss."""

    async def script(controller: Controller, backend: FakeBackend, observer: Silence, address: str) -> None:
        agents = [(await join(address, i))[0] for i in range(2)]
        for i, agent in enumerate(agents):
            assert await agent.hear() == Prepare(0)
            agent.say(Ready(0, f"10.0.0.{i}:2222"))
        for agent in agents:
            assert await agent.hear() == Begin(0, {"worker": ["10.0.0.0:2222", "10.0.0.1:2222"]})
            agent.say(protocol.Opened(0, "attempt-0.log"))
            agent.say(protocol.Beat(step=1))
            agent.say(protocol.Note("only once"))
            agent.say(Ended("done", "ended", attempt=0))
        for agent in agents:
            assert await agent.hear() == Dismiss()
        assert controller.state.result

    result, observer, backend = play(script)
    assert result.ending is Ending.SUCCEEDED
    assert observer.attempts == [0]
    assert sorted(observer.lines) == ["0 attempt-0.log", "1 attempt-0.log", "only once"]
    assert backend.launched == [(0, 0), (1, 0)]


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"secret": b"x" * 32}, "it does not know this run's secret"),
        ({"version": 99}, "it speaks version 99 of the protocol"),
        ({"worker": 7}, "there is no worker 7 in a group of 2"),
        ({"incarnation": 3}, "incarnation 3 of worker 0 is not the current one (0)"),
    ],
)
def test_a_stranger_is_refused_with_the_reason(how: dict[str, Any], reason: str) -> None:
    """Who does not hold the secret, or is not awaited, gets no further than the handshake."""

    async def script(controller: Controller, backend: FakeBackend, observer: Silence, address: str) -> None:
        agent, answer = await join(address, **{"worker": 0, **how})
        assert isinstance(answer, Refused)
        assert answer.reason.startswith(reason)
        assert await agent.hear() is None
        controller.stop(2)

    play(script)


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\xff\xfe\n", b"{}\n", b'{"message":"Leaving"}\n', b"[" * 100_000 + b"\n", b"x" * 600_000, b""]
)
def test_garbage_ends_only_its_own_connection(garbage: bytes) -> None:
    """Whatever a stranger sends, the others join as ever."""

    async def script(controller: Controller, backend: FakeBackend, observer: Silence, address: str) -> None:
        stranger = await connect(address)
        await stranger.hear()
        stranger.writer.write(garbage)
        stranger.writer.write_eof()
        with contextlib.suppress(ConnectionResetError):  # how the kernel closes a connection with unread bytes
            assert await stranger.reader.read() == b""
        _, answer = await join(address, 0)
        assert isinstance(answer, Welcome)
        controller.stop(2)

    play(script)


def test_garbage_of_a_member_loses_only_that_member() -> None:
    """An agent that speaks nonsense is lost, removed and replaced."""

    async def script(controller: Controller, backend: FakeBackend, observer: Silence, address: str) -> None:
        agent, _ = await join(address, 1)
        assert await agent.hear() == Prepare(0)
        agent.writer.write(b"nonsense\n")
        assert await agent.hear() is None
        while (1, 1) not in backend.launched:
            await asyncio.sleep(0)
        controller.stop(2)

    play(script)


def test_the_loss_of_one_is_told_to_all_at_once() -> None:
    """A closed connection ends the attempt everywhere, long before TensorFlow would notice."""

    async def script(controller: Controller, backend: FakeBackend, observer: Silence, address: str) -> None:
        agents = [(await join(address, i))[0] for i in range(3)]
        for i, agent in enumerate(agents):
            await agent.hear()
            agent.say(Ready(0, f"h:{i}"))
        for agent in agents:
            assert isinstance(await agent.hear(), Begin)
        agents[2].writer.close()
        for agent in agents[:2]:
            assert await agent.hear() == End(0)
            agent.say(Ended("ended", "was ended", attempt=0))
        for agent in agents[:2]:
            assert await agent.hear() == Prepare(1)
        assert (2, 1) in backend.launched
        controller.stop(2)

    _, observer, _ = play(script, workers=3)
    assert observer.lines == ["worker 2 was lost: the connection of its agent closed; starting again"]


def test_the_secret_never_travels() -> None:
    """F46: neither side sends it, in no form that could be used again."""
    seen: list[bytes] = []

    async def script(controller: Controller, backend: FakeBackend, observer: Silence, address: str) -> None:
        first, second = await connect(address), await connect(address)
        challenges = [await first.hear(), await second.hear()]
        assert challenges[0] != challenges[1], "an answer can be replayed"
        _, answer = await join(address, 0)
        seen.extend(protocol.encode(m) for m in (*challenges, answer) if m)
        controller.stop(2)

    play(script)
    assert not [line for line in seen if SECRET in line or SECRET.hex().encode() in line]


def test_a_second_stop_has_no_patience() -> None:
    """Once waits for the agents to clean up, twice does not."""

    async def script(controller: Controller, backend: FakeBackend, observer: Silence, address: str) -> None:
        agents = [(await join(address, i))[0] for i in range(2)]
        for i, agent in enumerate(agents):
            await agent.hear()
            agent.say(Ready(0, f"h:{i}"))
        for agent in agents:
            await agent.hear()

        async def never(patience: float) -> None:
            backend.patience.append(patience)
            if patience:
                await asyncio.Event().wait()

        backend.close = never  # type: ignore[method-assign] # the fake's own
        controller.stop(2)
        controller.stop(2)

    result, _, backend = play(script)
    assert result.exit_code == 130
    assert backend.patience[-1] == 0.0


def test_a_backend_that_breaks_ends_the_run() -> None:
    """A bug of ours must not leave anyone waiting."""

    async def main() -> None:
        backend = FakeBackend()
        backend.error = RuntimeError("broken")
        controller = Controller(Policy(workers=1), backend, Silence(), secret=SECRET)
        with pytest.raises(RuntimeError, match="broken"):
            await asyncio.wait_for(controller.run(LOOPBACK), 5)

    asyncio.run(main())


def test_a_pause_of_the_controller_loses_nobody() -> None:
    """The clock jumps by an hour (Ctrl-Z and fg): the workers are still there."""

    async def main() -> None:
        now = 0.0
        backend, observer = FakeBackend(), Silence()
        controller = Controller(Policy(workers=1), backend, observer, clock=lambda: now, secret=SECRET)
        running = asyncio.ensure_future(controller.run(LOOPBACK))
        agent, _ = await join((await backend.meeting).address, 0)
        await agent.hear()
        agent.say(Ready(0, "h:1"))
        await agent.hear()
        now += 3600.0
        await asyncio.sleep(0.3)  # three ticks of the controller's own timer
        assert not observer.lines
        controller.stop(2)
        controller.stop(2)
        await running
        await hang_up()

    asyncio.run(main())


def test_deadlines_do_not_follow_the_time_of_day() -> None:
    """E41: a clock that is set an hour back or forth changes no deadline."""
    assert inspect.signature(Controller).parameters["clock"].default is time.monotonic
