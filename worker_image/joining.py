"""How an agent gets to its controller: tries until one takes it, and each proves to the other that it knows the run's secret."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from dataclasses import dataclass
from typing import Callable, NamedTuple, Optional, Tuple

from worker_image import protocol
from worker_image.protocol import Message

RETRY_FIRST, RETRY_MOST = 0.1, 1.0  # seconds between two tries, growing
TRY_DEADLINE = 5.0  # seconds for one try: what answers nothing may be the address of a controller that is gone
SILENT_CONNECTION = 10.0  # seconds in which what was sent must have arrived, or the connection counts as broken


@dataclass(frozen=True)
class Options:
    """Who this agent is.

    host: the address at which the other workers reach this one. join_deadline: seconds to reach the controller. rejoin: seconds that the
    program goes on without a controller; with 0 it ends with the connection. share: how many agents share this machine's memory.
    """

    controller: str
    worker: int
    incarnation: int
    secret: bytes
    host: str
    join_deadline: float
    rejoin: float
    share: int
    log_dir: Optional[str]
    standby: bool


class Joined(NamedTuple):
    """A connection to a controller. beat: the period of `Beat` messages in seconds."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    beat: float


class RefusedError(Exception):
    """The controller does not want this agent, or is not the one that it says it is."""


class NotYetError(Exception):
    """The controller wants this agent later: the one before it is not gone yet."""


async def join(me: Options, held: Callable[[], Tuple[int, str]], deadline: float) -> Joined:
    """Try for so many seconds. held: the attempt and what the agent has of it (see protocol.Join).

    Raises ConnectionError at the deadline, RefusedError, ProtocolError.
    """
    loop = asyncio.get_running_loop()
    until, pause = loop.time() + deadline, RETRY_FIRST
    while True:
        problem: Exception
        try:
            return await asyncio.wait_for(_ask(me, *held()), TRY_DEADLINE)
        except NotYetError as e:
            problem, pause = e, RETRY_FIRST
        except (OSError, asyncio.TimeoutError) as e:
            problem = e
        if loop.time() > until:
            raise ConnectionError(f"no controller at {me.controller} within {deadline:g} s ({str(problem) or type(problem).__name__})")
        await asyncio.sleep(pause * random.uniform(0.7, 1.0))  # noqa: S311 # no secret
        pause = min(1.5 * pause, RETRY_MOST)


async def _ask(me: Options, attempt: int, holds: str) -> Joined:
    host, _, port = me.controller.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=protocol.MAX_LINE)
    try:
        _notice_silence(writer)
        challenge = protocol.expect(await _line(reader), protocol.Challenge)
        nonces = (challenge.nonce, os.urandom(16).hex())
        proof = protocol.proof(me.secret, "agent", me.worker, me.incarnation, nonces)
        writer.write(protocol.encode(protocol.Join(me.worker, me.incarnation, nonces[1], proof, attempt=attempt, holds=holds)))
        welcome = _welcome(me, protocol.decode(await _line(reader)), nonces)
    except BaseException:
        writer.close()
        raise
    return Joined(reader, writer, welcome.beat)


def _welcome(me: Options, answer: Message, nonces: Tuple[str, str]) -> protocol.Welcome:
    if isinstance(answer, protocol.Refused) and answer.retry:
        raise NotYetError(answer.reason)
    if isinstance(answer, protocol.Refused):
        raise RefusedError(f"the controller refused this agent: {answer.reason}")
    wanted = protocol.proof(me.secret, "controller", me.worker, me.incarnation, nonces)
    if not isinstance(answer, protocol.Welcome) or not protocol.proven(answer.proof, wanted):
        raise RefusedError("what answers at the controller's address does not know this run's secret")
    return answer


async def _line(reader: asyncio.StreamReader) -> bytes:
    line = await reader.readline()
    if not line:
        raise ConnectionError("the connection was closed")
    return line


def _notice_silence(writer: asyncio.StreamWriter) -> None:
    """A controller whose machine is gone closes nothing; the beats that it does not acknowledge show it."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SILENT_CONNECTION * 1000))
