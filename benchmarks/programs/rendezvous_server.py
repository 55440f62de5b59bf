"""The server of benchmarks/rendezvous.py: rendezvous_server.py controller|broadcast AGENTS. Its own process, for its own memory."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading

from benchmarks.measure import high_water
from orchestrator.backends.base import Gone, Meeting
from orchestrator.controller import Controller
from orchestrator.group import Policy, State

SECRET = b"s" * 32


class NoBackend:
    """Launches nothing; once every worker is to be launched it tells where the controller is."""

    def __init__(self, agents: int) -> None:
        self._missing = agents

    async def launch(self, _worker: int, _incarnation: int, meeting: Meeting, _gone: Gone) -> None:
        """See Backend."""
        self._missing -= 1
        if self._missing == 0:
            _tell({"address": meeting.address, "secret": meeting.secret.hex()})

    async def remove(self, worker: int, incarnation: int) -> None:
        """See Backend."""

    async def close(self, patience: float) -> None:
        """See Backend."""


class Silent:
    """An observer that shows nothing."""

    def told(self, text: str) -> None:
        """See Observer."""

    def began(self, attempt: int) -> None:
        """See Observer."""

    def opened(self, worker: int, log: str) -> None:
        """See Observer."""

    def progressed(self, state: State) -> None:
        """See Observer."""


class Broadcast:
    """The peer: collects every address, sends all of them to all, and tells all when a connection closes."""

    def __init__(self, agents: int) -> None:
        self._agents = agents
        self._addresses: dict[int, str] = {}
        self._writers: list[asyncio.StreamWriter] = []

    async def run(self) -> None:
        """Serve for ever."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=4096)
        host, port = server.sockets[0].getsockname()
        _tell({"address": f"{host}:{port}"})
        await server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        while line := await reader.readline():
            hello = json.loads(line)
            self._addresses[hello["worker"]] = hello["address"]
            if len(self._addresses) == self._agents:
                self._send({"kind": "Begin", "cluster": {"worker": [self._addresses[i] for i in range(self._agents)]}})
        self._writers.remove(writer)
        self._send({"kind": "End"})

    def _send(self, message: dict[str, object]) -> None:
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        for writer in self._writers:
            writer.write(line)


async def _controller(agents: int) -> None:
    await Controller(Policy(agents), NoBackend(agents), Silent(), secret=SECRET).run("127.0.0.1")


def _tell(what: dict[str, object]) -> None:
    print(json.dumps(what), flush=True)


def _leave_when_asked() -> None:
    sys.stdin.readline()
    _tell({"memory": high_water()})
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_leave_when_asked, daemon=True).start()
    count = int(sys.argv[2])
    asyncio.run(_controller(count) if sys.argv[1] == "controller" else Broadcast(count).run())
