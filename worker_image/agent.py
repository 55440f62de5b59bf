"""The first process of a worker: joins the controller, keeps one child running and one ready, and does only what it is told.

agent --controller HOST:PORT --worker I --incarnation K --secret-file PATH --host ADDRESS --join-deadline SECONDS
      [--rejoin SECONDS] [--code ZIP|FOLDER] [--share N] [--log-dir DIR] [--no-standby] [--no-compat] script PATH|module NAME [ARGS…]
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
from typing import Any, Coroutine, List, NoReturn, Optional, Tuple

from worker_image import joining, machine, protocol
from worker_image.child import Child, Program, end_leftovers, reap
from worker_image.joining import Options
from worker_image.protocol import Message
from worker_image.usercode import enter

LEAD = 0.15  # seconds that the first worker's program may be ahead of the others; its server listens after about 0.05
LOOK = 0.01  # seconds between two looks for that server
LEAVE_DEADLINE = 28.0  # seconds after SIGTERM in which the controller must let this agent go; a pod is killed after 30
STANDBY_AFTER = 5.0  # seconds of running after which a standby is started for a program that reports no steps
STANDBY_FACTOR = 1.5  # a standby may take this many times the memory of an imported child
STANDBY_TRIES = 2  # standbys that may die by themselves
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


class Agent:
    """Carries out the controller's orders; `run` returns the exit code."""

    def __init__(self, options: Options, program: Program) -> None:
        self._options = options
        self._program = program
        self._writer: Optional[asyncio.StreamWriter] = None
        self._attempt = self._begun = -1
        self._current: Optional[Child] = None  # prepared or running
        self._running = False
        self._last: Optional[protocol.Ended] = None  # how the child of this attempt ended, for a controller that did not hear it
        self._standby: Optional[Child] = None
        self._children: List[Child] = []  # every child that is not gone yet
        self._serial = 0
        self._standby_deaths = 0
        self._beat = 1.0
        self._leaving = False
        self._joined = False
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

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.append(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.remove(task)
        error = None if task.cancelled() else task.exception()
        if error:  # a bug of ours: better a lost worker, which is replaced, than one that never answers
            traceback.print_exception(type(error), error, error.__traceback__)
            self._finish(1)

    # ---- the connection ----

    async def _serve(self) -> None:
        deadline = self._options.join_deadline
        try:
            while True:
                joined = await joining.join(self._options, self._held, deadline)
                self._beat, self._writer, self._joined = joined.beat, joined.writer, True
                self._catch_up()
                await self._listen(joined.reader)
                deadline = self._options.rejoin
                if not deadline:
                    raise ConnectionError("the controller is gone")
                print(f"agent of worker {self._options.worker}: the controller is gone; waiting for the next one", file=sys.stderr)
        except (OSError, joining.RefusedError, protocol.ProtocolError) as e:
            print(f"agent of worker {self._options.worker}: {str(e) or type(e).__name__}", file=sys.stderr)
            self._finish(1)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Obey until the connection ends."""
        beats = self._start(self._beats())
        try:
            while True:
                line = await reader.readline()
                if not line:
                    return
                self._obey(protocol.decode(line))
        except OSError:
            return
        finally:
            beats.cancel()
            if self._writer:
                self._writer.close()
            self._writer = None

    def _catch_up(self) -> None:
        """Tell a new controller what the one before it may have taken along."""
        if self._last and not self._current:
            self._send(self._last)
        if self._leaving:
            self._send(protocol.Leaving())

    def _held(self) -> Tuple[int, str]:
        """The newest attempt that began, and what there is of it: see protocol.Join."""
        if self._running:
            return self._attempt, "running"
        return (self._attempt, "ended") if self._last else (self._begun, "")

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
            self._finish(order.code)
        elif self._current and isinstance(order, (protocol.AskSave, protocol.SaveAt, protocol.SaveGo)):
            self._current.send(order)

    def _prepare(self, attempt: int) -> None:
        self._attempt, self._running, self._last = attempt, False, None
        if self._current is None:
            self._current, self._standby = self._standby or self._spawn(standby=False), None
        self._open_log(self._current)
        if self._current.loaded:
            self._ready()

    def _ready(self) -> None:
        if self._current:
            self._send(protocol.Ready(self._attempt, self._current.reserve_port(self._options.host)))

    def _begin(self, order: protocol.Begin) -> None:
        if self._current is None or order.attempt != self._attempt:
            return  # it ended in the meantime, and the controller hears of that
        me = self._options
        task = {"type": "worker", "index": me.worker}
        environ = {"TFRUN_WORKER": str(me.worker), "TFRUN_ATTEMPT": str(order.attempt)}
        self._running, self._begun = True, order.attempt
        self._start(self._run_after_the_first(self._current, protocol.Run({"cluster": order.cluster, "task": task}, environ)))
        asyncio.get_running_loop().call_later(STANDBY_AFTER, self._keep_standby, order.attempt)

    async def _run_after_the_first(self, child: Child, run: protocol.Run) -> None:
        """Give the start. Who asks for the first worker's server before that listens meets gRPC's back-off of a second."""
        host, _, port = run.tf_config["cluster"]["worker"][0].rpartition(":")
        loop = asyncio.get_running_loop()
        until = loop.time() + (LEAD if self._options.worker and child.loaded and child.loaded.tensorflow else 0.0)
        while loop.time() < until:
            try:
                _, writer = await asyncio.wait_for(asyncio.open_connection(host, int(port)), LEAD)
                writer.close()
                break
            except (OSError, asyncio.TimeoutError):
                await asyncio.sleep(LOOK)
        child.run(run)

    # ---- children ----

    def _spawn(self, standby: bool) -> Child:
        self._serial += 1
        name = f".waiting-{self._options.incarnation}-{self._serial}"  # the one before this agent may still be there
        output = os.path.join(self._options.log_dir, name) if self._options.log_dir else None
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
        for child in reap(self._children):
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
            self._last = protocol.Ended(**vars(outcome), attempt=self._attempt)
            self._send(self._last)
        elif child is self._standby:
            self._standby = None
            self._standby_deaths += 1

    # ---- the end ----

    def _terminated(self) -> None:
        if self._leaving or not self._joined:
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
    parser.add_argument("--rejoin", type=float, default=0.0)
    parser.add_argument("--code")
    parser.add_argument("--share", type=int, default=1)
    parser.add_argument("--log-dir")
    parser.add_argument("--no-standby", action="store_true")
    parser.add_argument("--no-compat", action="store_true")
    given = parser.parse_args(argv[:split])
    with open(given.secret_file, "rb") as f:
        secret = f.read()
    if given.code:
        enter(given.code)
    options = Options(
        controller=given.controller,
        worker=given.worker,
        incarnation=given.incarnation,
        secret=secret,
        host=given.host,
        join_deadline=given.join_deadline,
        rejoin=given.rejoin,
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
