"""A controller that dies after a write: mortal_controller.py N controller JOB_FILE KEY_FILE kills itself when the Nth one is answered."""

import os
import signal
import sys
from typing import Any

import coverage

from orchestrator import client
from orchestrator.cli import main

LIMIT, MADE = int(sys.argv.pop(1)), 0
send = client.Connection._send


async def counted(self: client.Connection, method: str, *rest: Any) -> Any:
    """As it is, and then death."""
    global MADE
    answer = await send(self, method, *rest)
    MADE += method != "GET"
    if MADE == LIMIT:
        measured = coverage.Coverage.current()
        if measured:  # what it did counts, though it can't say so any more
            measured.stop()
            measured.save()
        os.kill(os.getpid(), signal.SIGKILL)
    return answer


client.Connection._send = counted  # type: ignore[method-assign]
main()
