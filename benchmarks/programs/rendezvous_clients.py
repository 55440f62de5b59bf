"""The agents of benchmarks/rendezvous.py: rendezvous_clients.py controller|broadcast AGENTS ADDRESS-AND-SECRET."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from worker_image import protocol

SETTLE = 2.0  # seconds of running, with everyone's beats, before one is lost
LOST = 7  # the agent whose connection closes


class Group:
    """What all the agents of one run share. `begun` and `told` are set when the last agent has heard of it."""

    def __init__(self, agents: int, secret: bytes) -> None:
        self.secret = secret
        self.begun = asyncio.Event()
        self.told = asyncio.Event()
        self._to_begin = agents
        self._to_tell = agents - 1

    def begin(self) -> None:
        """One more has its TF_CONFIG."""
        self._to_begin -= 1
        if self._to_begin == 0:
            self.begun.set()

    def end(self) -> None:
        """One more knows of the loss."""
        self._to_tell -= 1
        if self._to_tell == 0:
            self.told.set()


class Client(asyncio.Protocol):
    """A connection, cut into lines."""

    def __init__(self, group: Group, worker: int) -> None:
        self.group = group
        self.worker = worker
        self.transport: Any = None
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            self.heard(line)

    def heard(self, line: bytes) -> None:
        """One message."""
        raise NotImplementedError


class Agent(Client):
    """What worker_image/agent.py says to the controller, without a child."""

    nonces = ("", "")
    beat = 0.0

    def heard(self, line: bytes) -> None:
        """One message of the controller."""
        message = protocol.decode(line)
        if isinstance(message, protocol.Challenge):
            self.nonces = (message.nonce, os.urandom(16).hex())
            self.say(protocol.Join(self.worker, 0, self.nonces[1], self._proof("agent")))
        elif isinstance(message, protocol.Welcome):
            assert protocol.proven(message.proof, self._proof("controller"))
            self.beat = message.beat
            self._beats()
        elif isinstance(message, protocol.Prepare):
            self.say(protocol.Ready(message.attempt, f"127.0.0.1:{20000 + self.worker}"))
        elif isinstance(message, protocol.Begin):
            assert len(message.cluster["worker"]) > self.worker
            self.group.begin()
        elif isinstance(message, protocol.End):
            self.group.end()

    def say(self, message: protocol.Message) -> None:
        """Send a message."""
        self.transport.write(protocol.encode(message))

    def _proof(self, role: str) -> str:
        return protocol.proof(self.group.secret, role, self.worker, 0, self.nonces)

    def _beats(self) -> None:
        if not self.transport.is_closing():
            self.say(protocol.Beat(step=1))
            asyncio.get_running_loop().call_later(self.beat, self._beats)


class Trusted(Client):
    """The same for the server without authentication."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        super().connection_made(transport)
        hello = {"worker": self.worker, "address": f"127.0.0.1:{20000 + self.worker}"}
        self.transport.write(json.dumps(hello).encode() + b"\n")

    def heard(self, line: bytes) -> None:
        """One message of the server."""
        if json.loads(line)["kind"] == "Begin":
            self.group.begin()
        else:
            self.group.end()


async def play(kind: type[Client], agents: int, meeting: dict[str, str]) -> dict[str, float]:
    """Join, begin, lose one. Returns the seconds from the first connection to the last Begin, and from the loss to the last End."""
    group = Group(agents, bytes.fromhex(meeting.get("secret", "")))
    host, _, port = meeting["address"].rpartition(":")
    loop = asyncio.get_running_loop()
    clients = [kind(group, i) for i in range(agents)]
    start = time.monotonic()
    await asyncio.gather(*(loop.create_connection(lambda c=client: c, host, int(port)) for client in clients))
    await group.begun.wait()
    begun = time.monotonic() - start
    await asyncio.sleep(SETTLE)
    lost = time.monotonic()
    clients[LOST].transport.abort()
    await group.told.wait()
    return {"begun": begun, "told": time.monotonic() - lost}


if __name__ == "__main__":
    found = asyncio.run(play(Agent if sys.argv[1] == "controller" else Trusted, int(sys.argv[2]), json.loads(sys.argv[3])))
    print(json.dumps(found), flush=True)
    os._exit(0)  # closing two thousand connections in order is no part of it
