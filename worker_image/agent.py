"""The first process of a worker: joins the controller, keeps one child running and one ready, and does only what it is told.

agent --controller HOST:PORT --worker I --incarnation K --secret-file PATH --host ADDRESS --join-deadline SECONDS
      [--code ZIP] [--share N] [--log-dir DIR] [--no-standby] [--no-compat] script PATH|module NAME [ARGS…]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import traceback
from dataclasses import dataclass
from typing import Any, Coroutine, List, NoReturn, Optional

from worker_image import machine, protocol
from worker_image.child import Child, Program, end_leftovers
from worker_image.protocol import Message

RETRY = 0.1  # seconds between two tries
LEAVE_DEADLINE = 30.0  # seconds after SIGTERM in which the controller must let this agent go; then it goes by itself
STANDBY_AFTER = 5.0  # seconds of running after which a standby is started for a program that reports no steps
STANDBY_FACTOR = 1.5  # a standby may take this many times the memory of an imported child
STANDBY_TRIES = 2  # standbys that may die by themselves
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


@dataclass(frozen=True)
class Options:
    """Who this agent is.

    host: the address at which the other workers reach this one. join_deadline: seconds to reach the controller. share: how many agents
    share this machine's memory.
    """

    controller: str
    worker: int
    incarnation: int
    secret: bytes
    host: str
    join_deadline: float
    share: int
    log_dir: Optional[str]
    standby: bool


class RefusedError(Exception):
    """The controller does not want this agent, or is not the one that it says it is."""


class Agent:
    """Carries out the controller's orders; `run` returns the exit code."""

    def __init__(self, options: Options, program: Program) -> None:
        self._options = options
        self._program = program
        self._writer: Optional[asyncio.StreamWriter] = None
        self._attempt = -1
        self._current: Optional[Child] = None  # prepared or running
        self._running = False
        self._standby: Optional[Child] = None
        self._children: List[Child] = []  # every child that is not gone yet
        self._serial = 0
        self._standby_deaths = 0
        self._beat = 1.0
        self._leaving = False
        self._exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._tasks: List[asyncio.Task[None]] = []

    async def run(self) -> int:
        """Join, serve, and leave nothing behind."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        loop.add_signal_handler(signal.SIGTERM, self._terminated)
        self._standby = self._spawn(standby=False)  # imports while this agent finds the controller
        self._start(self._serve())
        try:
            return await self._exit
        finally:
            for task in list(self._tasks):
                task.cancel()
            await self._leave_nothing()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.append(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.remove(task)
        error = None if task.cancelled() else task.exception()
        if error:  # a bug of ours: better a lost worker, which is replaced, than one that never answers
            traceback.print_exception(type(error), error, error.__traceback__)
            self._finish(1)

    # ---- the connection ----

    async def _serve(self) -> None:
        try:
            reader = await asyncio.wait_for(self._join(), self._options.join_deadline)
            self._start(self._beats())
            while True:
                line = await reader.readline()
                if not line:
                    raise ConnectionError("the controller is gone")
                self._obey(protocol.decode(line))
        except (OSError, RefusedError, protocol.ProtocolError, asyncio.TimeoutError, asyncio.IncompleteReadError) as e:
            print(f"agent of worker {self._options.worker}: {str(e) or type(e).__name__}", file=sys.stderr)
            self._finish(1)

    async def _join(self) -> asyncio.StreamReader:
        reader, writer = await self._connect()
        me = self._options
        challenge = protocol.expect(await reader.readline(), protocol.Challenge)
        nonces = (challenge.nonce, os.urandom(16).hex())
        proof = protocol.proof(me.secret, "agent", me.worker, me.incarnation, nonces)
        writer.write(protocol.encode(protocol.Join(me.worker, me.incarnation, nonces[1], proof)))
        answer = protocol.decode(await reader.readline() or b"")
        if isinstance(answer, protocol.Refused):
            raise RefusedError(f"the controller refused this agent: {answer.reason}")
        wanted = protocol.proof(me.secret, "controller", me.worker, me.incarnation, nonces)
        if not isinstance(answer, protocol.Welcome) or not protocol.proven(answer.proof, wanted):
            raise RefusedError("what answers at the controller's address does not know this run's secret")
        self._beat, self._writer = answer.beat, writer
        return reader

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self._options.controller.rpartition(":")
        while True:
            try:
                return await asyncio.open_connection(host, int(port), limit=protocol.MAX_LINE)
            except OSError:
                await asyncio.sleep(RETRY)

    def _send(self, message: Message) -> None:
        if self._writer:
            self._writer.write(protocol.encode(message))

    async def _beats(self) -> None:
        while True:
            self._send(self._current.vitals() if self._current and self._running else protocol.Beat())
            await asyncio.sleep(self._beat)

    # ---- orders ----

    def _obey(self, order: Message) -> None:
        if isinstance(order, protocol.Prepare):
            self._prepare(order.attempt)
        elif isinstance(order, protocol.Begin):
            self._begin(order)
        elif isinstance(order, protocol.End):
            if self._current and order.attempt == self._attempt:
                self._start(self._current.end(order.grace, order.stacks))
        elif isinstance(order, protocol.Dismiss):
            self._finish(0)
        elif self._current and isinstance(order, (protocol.AskSave, protocol.SaveAt, protocol.SaveGo)):
            self._current.send(order)

    def _prepare(self, attempt: int) -> None:
        self._attempt, self._running = attempt, False
        if self._current is None:
            self._current, self._standby = self._standby or self._spawn(standby=False), None
        self._open_log(self._current)
        if self._current.loaded:
            self._ready()

    def _ready(self) -> None:
        if self._current and not self._current.reservation:
            address = self._current.reserve_port(self._options.host)
            self._send(protocol.Ready(self._attempt, address))

    def _begin(self, order: protocol.Begin) -> None:
        if self._current is None or order.attempt != self._attempt:
            return  # it ended in the meantime, and the controller hears of that
        me = self._options
        task = {"type": "worker", "index": me.worker}
        environ = {"TFRUN_WORKER": str(me.worker), "TFRUN_ATTEMPT": str(order.attempt)}
        self._running = True
        self._current.run(protocol.Run({"cluster": order.cluster, "task": task}, environ))
        asyncio.get_running_loop().call_later(STANDBY_AFTER, self._keep_standby, order.attempt)

    # ---- children ----

    def _spawn(self, standby: bool) -> Child:
        self._serial += 1
        output = os.path.join(self._options.log_dir, f".waiting-{self._serial}") if self._options.log_dir else None
        child = Child(self._program, output, standby, self._heard)
        self._children.append(child)
        return child

    def _heard(self, child: Child, message: Message) -> None:
        if isinstance(message, protocol.Note):
            self._send(message)
        if child is not self._current:
            return
        if isinstance(message, protocol.Loaded) and not self._running and self._attempt >= 0:
            self._ready()
        elif isinstance(message, (protocol.SaveTarget, protocol.SaveNoted, protocol.Saved)):
            self._send(message)
        elif isinstance(message, protocol.Beat) and self._running:
            if child.news:
                self._send(child.vitals())
            if message.step is not None:
                self._keep_standby(self._attempt)

    def _keep_standby(self, attempt: int) -> None:
        """Start a standby beside a child that runs, where that saves anything and there is memory for it."""
        running = self._current if self._running and attempt == self._attempt else None
        if not running or self._standby or not running.loaded or not running.loaded.tensorflow:
            return
        if not self._options.standby or self._standby_deaths >= STANDBY_TRIES or self._leaving:
            return
        wanted = STANDBY_FACTOR * running.loaded.memory
        free = machine.memory_free() / self._options.share
        if free < wanted:
            self._standby_deaths = STANDBY_TRIES
            text = f"no standby process: one wants {wanted / 2**30:.1f} GB and {free / 2**30:.1f} GB is free for it"
            self._send(protocol.Note(text + "; a restart takes as long as a start", topic="standby"))
        else:
            self._standby = self._spawn(standby=True)

    def _open_log(self, child: Child) -> None:
        """Give the child's output the name of its attempt."""
        if not child.output or not self._options.log_dir:
            return
        name, again = f"attempt-{self._attempt}.log", 0
        while os.path.exists(os.path.join(self._options.log_dir, name)):  # an agent before this one got as far as that
            again += 1
            name = f"attempt-{self._attempt}.{again}.log"
        os.rename(child.output, os.path.join(self._options.log_dir, name))
        child.output = None
        self._send(protocol.Opened(self._attempt, name))

    def _reap(self) -> None:
        """Take note of every process that ended: children, and what they left to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in list(self._children):
                if child.pid == pid:
                    child.process.returncode = code = os.waitstatus_to_exitcode(status)
                    child.exit.set_result(code)
                    self._start(self._gone(child))

    async def _gone(self, child: Child) -> None:
        child.kill()  # what is left of its process group
        await child.heard_out()
        current = child is self._current
        outcome = child.outcome()
        self._children.remove(child)
        leftovers = await end_leftovers([c.pid for c in self._children], at_once=outcome.kind != "done")
        child.close()
        if child.output:
            with contextlib.suppress(OSError):
                os.unlink(child.output)
        if current:
            self._current, self._running = None, False
            if leftovers and outcome.kind == "done":
                names = ", ".join(sorted(set(leftovers)))
                text = f"worker {self._options.worker}'s program left processes behind ({names}); they were ended"
                self._send(protocol.Note(text))
            self._send(protocol.Ended(**vars(outcome), attempt=self._attempt))
        elif child is self._standby:
            self._standby = None
            self._standby_deaths += 1

    # ---- the end ----

    def _terminated(self) -> None:
        if self._leaving or not self._writer:
            self._finish(143)
        self._leaving = True
        self._send(protocol.Leaving())
        asyncio.get_running_loop().call_later(LEAVE_DEADLINE, self._finish, 143)

    def _finish(self, code: int) -> None:
        if not self._exit.done():
            self._exit.set_result(code)

    async def _leave_nothing(self) -> None:
        for child in self._children:
            child.kill()
        await end_leftovers([], at_once=True)
        for child in list(self._children):
            child.close()
            if child.output:
                with contextlib.suppress(OSError):
                    os.unlink(child.output)
        if self._writer:
            self._writer.close()


def _unpacked(code: str) -> str:
    """A folder with the user's files, which the program finds as its current one."""
    import tempfile  # late: a local run has no archive
    import zipfile

    folder = tempfile.mkdtemp(prefix="code-")
    with zipfile.ZipFile(code) as archive:
        archive.extractall(folder)
    return folder


def main(argv: List[str]) -> NoReturn:
    """Run one agent until it is dismissed."""
    split = next(i for i, word in enumerate(argv) if word in ("script", "module"))
    parser = argparse.ArgumentParser(prog="agent")
    parser.add_argument("--controller", required=True)
    parser.add_argument("--worker", type=int, required=True)
    parser.add_argument("--incarnation", type=int, required=True)
    parser.add_argument("--secret-file", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--join-deadline", type=float, required=True)
    parser.add_argument("--code")
    parser.add_argument("--share", type=int, default=1)
    parser.add_argument("--log-dir")
    parser.add_argument("--no-standby", action="store_true")
    parser.add_argument("--no-compat", action="store_true")
    given = parser.parse_args(argv[:split])
    with open(given.secret_file, "rb") as f:
        secret = f.read()
    if given.code:
        os.chdir(_unpacked(given.code))
    options = Options(
        controller=given.controller,
        worker=given.worker,
        incarnation=given.incarnation,
        secret=secret,
        host=given.host,
        join_deadline=given.join_deadline,
        share=given.share,
        log_dir=given.log_dir,
        standby=not given.no_standby,
    )
    kind, target, *arguments = argv[split:]
    program = Program(kind, target, arguments, compat=not given.no_compat)
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # An agent that is stopped when its controller dies must wake up, see the closed connection, and clean up.
    prctl(_PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)
    signal.signal(signal.SIGINT, _nothing)  # the terminal's Ctrl-C is the controller's to handle; SIG_IGN would pass on to the program
    sys.exit(asyncio.run(_run(options, program)))


def _nothing(_number: int, _frame: object) -> None:
    pass


async def _run(options: Options, program: Program) -> int:
    return await Agent(options, program).run()
