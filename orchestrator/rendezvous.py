"""Where agents join: an asyncio server that authenticates them, and turns what they send into events."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from collections.abc import Iterable
from typing import Protocol

from worker_image import protocol
from worker_image.protocol import Message

HANDSHAKE_DEADLINE = 10.0  # seconds until a connection must have shown who it is
LINE_LIMIT = 256 * 1024  # bytes that an agent may send in one message
SPARE_FILES = 256  # open files beside the connections
BACKLOG = 4096  # connections that may wait: a whole group comes at once


class Listener(Protocol):
    """What the server tells its owner."""

    def refusal(self, worker: int, incarnation: int) -> protocol.Refused | None:
        """Why this agent is not taken, None if it is."""

    def joined(self, worker: int, attempt: int, holds: str) -> None:
        """An agent has joined, and has this of an attempt (see protocol.Join)."""

    def said(self, worker: int, message: Message) -> None:
        """An agent sent a message."""

    def disconnected(self, worker: int, incarnation: int) -> None:
        """Its connection closed."""


class Rendezvous:
    """The server. `address` is host:port once it is started."""

    def __init__(self, secret: bytes, beat: float, workers: int, listener: Listener) -> None:
        self.address = ""
        self._workers = workers
        self._secret = secret
        self._beat = beat
        self._listener = listener
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen on a port (0: any free one) of this address, and on no other address."""
        _allow_connections(self._workers)
        self._server = await asyncio.start_server(self._serve, host, port, backlog=BACKLOG, limit=LINE_LIMIT)
        port = self._server.sockets[0].getsockname()[1]
        self.address = f"{host}:{port}"

    async def close(self) -> None:
        """Close every connection: an agent whose controller is gone ends its worker, or waits for the next controller."""
        if self._server:
            self._server.close()
        for writer in self._writers.values():
            writer.close()

    def send(self, workers: Iterable[int], message: Message) -> None:
        """Send one message to some workers; it is encoded once. One that is not connected hears of nothing."""
        line = protocol.encode(message)
        for worker in workers:
            writer = self._writers.get(worker)
            if writer:
                writer.write(line)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        worker, incarnation = -1, -1
        try:
            joined = await asyncio.wait_for(self._handshake(reader, writer), HANDSHAKE_DEADLINE)
            if joined is None:
                return
            worker, incarnation = joined.worker, joined.incarnation
            self._writers[worker] = writer
            self._listener.joined(worker, joined.attempt, joined.holds)
            while line := await reader.readline():
                self._listener.said(worker, protocol.decode(line))
        except (OSError, ValueError, asyncio.TimeoutError, protocol.ProtocolError):
            pass  # whatever it was, this connection is no good any more, and that is told below
        finally:
            if worker >= 0:
                if self._writers.get(worker) is writer:
                    del self._writers[worker]
                self._listener.disconnected(worker, incarnation)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _handshake(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> protocol.Join | None:
        nonce = os.urandom(16).hex()
        writer.write(protocol.encode(protocol.Challenge(nonce)))
        join = protocol.expect(await reader.readline(), protocol.Join)
        refused = self._distrust(join, nonce) or self._listener.refusal(join.worker, join.incarnation)
        if refused:
            writer.write(protocol.encode(refused))
            return None
        answer = protocol.proof(self._secret, "controller", join.worker, join.incarnation, (nonce, join.nonce))
        writer.write(protocol.encode(protocol.Welcome(answer, self._beat)))
        return join

    def _distrust(self, join: protocol.Join, nonce: str) -> protocol.Refused | None:
        wanted = protocol.proof(self._secret, "agent", join.worker, join.incarnation, (nonce, join.nonce))
        if not protocol.proven(join.proof, wanted):
            return protocol.Refused("it does not know this run's secret")
        if join.version != protocol.VERSION:
            return protocol.Refused(f"it speaks version {join.version} of the protocol, this controller {protocol.VERSION}")
        return None


def _allow_connections(workers: int) -> None:
    """Raise the limit of open files, of which the usual 1024 are not enough for a large group; as far as the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = SPARE_FILES + 2 * workers
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
