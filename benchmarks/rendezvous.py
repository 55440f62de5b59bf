"""2,000 agents join the real controller: until the last has its TF_CONFIG, until all know of a lost one, and the memory it takes.

Over real sockets, with the real handshake; only the backend launches nothing, and one process plays all the agents. Its work (it proves,
checks and parses as 2,000 agents on their own machines would) is in the time. Beside it, the same with a server that trusts everyone,
keeps no state and only broadcasts: what asyncio and the sockets alone cost here.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from typing import Any

from benchmarks.measure import Limit, Peer, report, runs_wanted

AGENTS = 2000
FILES = 8192  # a socket for each agent, in the server and in the clients' process


def main() -> None:
    """Measure both in turn."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, FILES), hard), hard))
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    for _ in range(runs_wanted()):
        ours.append(gather("controller"))
        theirs.append(gather("broadcast"))
    for key, what, unit, limit in (
        ("begun", f"rendezvous: {AGENTS} agents have their TF_CONFIG", "s", 2.0),
        ("told", "rendezvous: one lost agent is told to all", "s", 0.3),
        ("memory", "rendezvous: controller's peak memory", "MB", 200.0),
    ):
        peer = Peer("broadcast server, no authentication", [run[key] for run in theirs])
        report(what, unit, [run[key] for run in ours], Limit(limit), peer)


def gather(server: str) -> dict[str, float]:
    """One group from the first connection to the end of its first attempt."""
    serving = _start("rendezvous_server", server, str(AGENTS))
    try:
        address = _line(serving)
        clients = _start("rendezvous_clients", server, str(AGENTS), json.dumps(address))
        found = _line(clients)
        clients.wait()
        assert serving.stdin
        serving.stdin.write(b"\n")  # asks for its memory
        serving.stdin.flush()
        return {**found, **_line(serving)}
    finally:
        serving.kill()
        serving.wait()


def _start(module: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", f"benchmarks.programs.{module}", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ)


def _line(process: subprocess.Popen[bytes]) -> Any:
    assert process.stdout
    return json.loads(process.stdout.readline())


if __name__ == "__main__":
    main()
