"""A worker without a controller: waits for the others' addresses, runs the program, and starts it again when it or another worker fails.

static FILE [--code ZIP] script PATH|module NAME [ARGS…]

FILE is JSON: `cluster` as in TF_CONFIG, `service` (the name that has the addresses of all workers), `start` (seconds to wait for them) and
`restarts` (max, within). Which worker this is, JOB_COMPLETION_INDEX says.

Workers that just start their process again after the loss of one meet again without a rendezvous: TensorFlow's coordination service is one.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import itertools
import json
import math
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any, Dict, List, NoReturn, Optional, Set, Union

from worker_image import machine, protocol
from worker_image.child import Child, Program, end_leftovers, reap
from worker_image.protocol import Message, Note, Outcome
from worker_image.usercode import enter

FAILED, DEADLINE, TERMINATED = 1, 4, 143  # exit codes
LOOK_EVERY = 1.0  # seconds between two looks for the others
TELL_AFTER = 5.0  # seconds of waiting until the log says who is missing
NAMES_ASKED = 100  # workers of a group that is small enough to ask for every name
SAVE_TIME = 18.0  # of the 30 seconds that a pod has after SIGTERM
SETTLED = 60.0  # seconds: a program that ran for so long did not fail at its start
LONGEST_PAUSE = 30.0  # seconds
WATCH_EVERY = 10.0  # seconds
ANSWER_TIME = 3.0  # seconds
IDLE = 0.05  # processor seconds in a second: TensorFlow uses less while it waits for others
_FREE = ("peer", "preempted", "left")  # nobody's mistake here: they never use up the budget
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


@dataclass(frozen=True)
class Group:
    """What FILE says, and who this worker is."""

    cluster: Dict[str, List[str]]
    service: str
    start: float
    max_restarts: int
    within: float
    worker: int

    @property
    def addresses(self) -> List[str]:
        """Of all workers, by index."""
        return self.cluster["worker"]


class Judge:
    """Whether a failure is worth another start: the same place twice with no progress is final, and so is a budget that is used up."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._place = ""
        self._furthest = -1
        self._spent: List[float] = []
        self._fruitless = 0

    def objection(self, outcome: Outcome, at: float, ran: float) -> str:
        """Why there is no other start; empty if there is. at: now; ran: how long the program did. Both in seconds."""
        step = -1 if outcome.step is None else outcome.step
        advanced, self._furthest = step > self._furthest, max(step, self._furthest)
        self._fruitless = 0 if advanced or ran > SETTLED else self._fruitless + 1
        if outcome.kind in _FREE:
            return ""
        if outcome.place and outcome.place == self._place and not advanced:
            return "twice at the same place with no progress between"
        self._place = outcome.place
        self._spent = [*(then for then in self._spent if then > at - self._group.within), at]
        if len(self._spent) > self._group.max_restarts:
            return f"and all {self._group.max_restarts} restarts within {self._group.within:.0f} s are used up (restarts.max)"
        return ""

    def pause(self) -> float:
        """Seconds until the next start: more for each failure in a row that came no further."""
        return float(min(LONGEST_PAUSE, 2 ** (self._fruitless - 2))) if self._fruitless > 1 else 0.0


class Worker:
    """Runs the program until it is done; `run` returns the exit code."""

    def __init__(self, group: Group, program: Program) -> None:
        self._group = group
        self._program = program
        self._child: Optional[Child] = None
        self._doubtful: Set[str] = set()  # names that were asked for and not known, which is remembered on the way for up to 30 s

    async def run(self) -> int:
        """Until the program is done, failed for good, or SIGTERM; leaves nothing behind."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        attempts = asyncio.ensure_future(self._attempts())
        loop.add_signal_handler(signal.SIGTERM, attempts.cancel)
        code = TERMINATED
        try:
            code = await attempts
        except asyncio.CancelledError:
            self._say("told to end from outside")
        if self._child:
            await self._child.end(SAVE_TIME if code == TERMINATED else 0.0, stacks=False)
        await end_leftovers([], at_once=True)
        return code

    async def _attempts(self) -> int:
        judge, attempt = Judge(self._group), 0
        while True:
            child = self._child = Child(self._program, None, False, self._heard)
            await self._loaded(child)  # not before: whoever is asked for too early stays unknown for a while
            if not child.exit.done() and not await self._gathered():
                return DEADLINE
            began = time.monotonic()
            outcome = await self._outcome(child, attempt)
            if isinstance(outcome, int):
                self._say(f"worker {outcome} has not answered, and the program been idle, for {self._group.start:.0f} s (deadlines.start)")
                return DEADLINE
            if outcome.kind == "done":
                return 0
            now = time.monotonic()
            objection = judge.objection(outcome, now, now - began)
            if objection:
                self._say(f"the program {outcome.text}, {objection}")
                return FAILED
            self._say(f"the program {outcome.text}; starting it again" + (f" in {judge.pause():.0f} s" if judge.pause() else ""))
            await asyncio.sleep(judge.pause())
            attempt += 1

    async def _loaded(self, child: Child) -> None:
        while not child.loaded and not child.exit.done():
            await asyncio.sleep(0.05)

    async def _outcome(self, child: Child, attempt: int) -> Union[Outcome, int]:
        """Give the start; how the program ended, or the worker that it waits for in vain."""
        task = {"type": "worker", "index": self._group.worker}
        environ = {"TFRUN_WORKER": str(self._group.worker), "TFRUN_ATTEMPT": str(attempt)}
        child.run(protocol.Run({"cluster": self._group.cluster, "task": task}, environ))
        forsaken = asyncio.ensure_future(self._forsaken(child))
        ends: List[asyncio.Future[Any]] = [child.exit, forsaken]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not child.exit.done():
            return forsaken.result()
        forsaken.cancel()
        child.kill()  # what is left of its process group
        await child.heard_out()
        outcome = child.outcome()
        await end_leftovers([], at_once=outcome.kind != "done")
        child.close()
        self._child = None
        return outcome

    async def _forsaken(self, child: Child) -> int:
        """Return a worker that has not answered, while the program is idle, for as long as a start may take.

        TensorFlow waits for it without end and without a word. Workers that are merely done are no reason: then this program is busy.
        Each is asked at least twice in that time.
        """
        others = [worker for worker in range(len(self._group.addresses)) if worker != self._group.worker]
        share = min(len(others), math.ceil(2 * len(others) * WATCH_EVERY / self._group.start))
        silent: Dict[int, float] = {}  # since when
        busy = machine.activity(child.pid).busy
        for turn in itertools.count():
            await asyncio.sleep(WATCH_EVERY)
            before, busy = busy, machine.activity(child.pid).busy
            if busy - before > IDLE * WATCH_EVERY:
                silent = {}
                continue
            asked = [others[(turn * share + i) % len(others)] for i in range(share)]
            for worker, answers in zip(asked, await asyncio.gather(*map(self._answers, asked))):
                if answers:
                    silent.pop(worker, None)
                elif time.monotonic() >= silent.setdefault(worker, time.monotonic()) + self._group.start:
                    return worker
        raise AssertionError("counting has no end")

    async def _answers(self, worker: int) -> bool:
        """Whether there is a TensorFlow server. That the name has an address says nothing: a pod that has ended may keep its own."""
        host, _, port = self._group.addresses[worker].rpartition(":")
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(host, int(port)), ANSWER_TIME)
        except (OSError, asyncio.TimeoutError):
            return False
        writer.close()
        return True

    # ---- the others ----

    async def _gathered(self) -> bool:
        """Wait until every worker has an address; False when that takes too long."""
        began, told = time.monotonic(), False
        while await self._absent() or not await self._known(self._doubtful):
            waited = time.monotonic() - began
            if waited > self._group.start:
                self._say(f"{await self._who()} after {self._group.start:.0f} s (deadlines.start)")
                return False
            if waited > TELL_AFTER and not told:
                told = True
                self._say(f"waiting: {await self._who()}")
            await asyncio.sleep(LOOK_EVERY)
        if told:
            self._say("every worker is there")
        return True

    async def _absent(self) -> int:
        """How many workers have no address. One question, for the name that they share, whose answer never is that a name is missing."""
        return max(0, len(self._group.addresses) - len(await _addresses(self._group.service)))

    async def _known(self, names: Set[str]) -> bool:
        for name in list(names):
            if await _addresses(name):
                names.discard(name)
        return not names

    async def _who(self) -> str:
        """Who is missing, as a sentence's beginning."""
        every = [address.rpartition(":")[0] for address in self._group.addresses]
        absent = await self._absent()
        if len(every) > NAMES_ASKED:
            return f"{absent} of {len(every)} workers have no pod that runs"
        self._doubtful = {name for name in every if not await _addresses(name)}
        missing = ", ".join(str(worker) for worker, name in enumerate(every) if name in self._doubtful)
        return f"no pod of worker {missing} runs" if missing else f"{absent} of {len(every)} workers have no pod that runs"

    # ---- the child ----

    def _heard(self, _child: Child, message: Message) -> None:
        if isinstance(message, Note):
            self._say(message.text)

    def _reap(self) -> None:
        reap([self._child] if self._child else [])

    def _say(self, text: str) -> None:
        print(f"tfrun: worker {self._group.worker}: {text}", file=sys.stderr, flush=True)


async def _addresses(name: str) -> Set[Any]:
    """The addresses of a name; none if it is not known, or nobody answers."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {address[0] for *_, address in found}


def main(argv: List[str]) -> NoReturn:
    """Run one worker of a static set to its end."""
    split = next(i for i, word in enumerate(argv) if word in ("script", "module"))
    parser = argparse.ArgumentParser(prog="static")
    parser.add_argument("file")
    parser.add_argument("--code")
    given = parser.parse_args(argv[:split])
    with open(given.file) as f:
        said = json.load(f)
    restarts = said["restarts"]
    worker = int(os.environ["JOB_COMPLETION_INDEX"])
    group = Group(said["cluster"], said["service"], said["start"], restarts["max"], restarts["within"], worker)
    if given.code:
        enter(given.code)
    kind, target, *arguments = argv[split:]
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    asyncio.run(_run(group, Program(kind, target, arguments)))
    raise AssertionError("_run ends the process")


async def _run(group: Group, program: Program) -> None:
    code = await Worker(group, program).run()
    sys.stdout.flush()
    os._exit(code)  # a question to a name server that does not answer must not hold up the end
