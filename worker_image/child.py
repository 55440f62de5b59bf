"""One child process of an agent: the user's program, or a standby that waits to become it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Callable, Dict, Iterable, List, Optional, Tuple

from worker_image import machine, protocol
from worker_image.protocol import Beat, Loaded, Message, Note, Outcome, Raised, Run, Saved

ORDERLY_EXIT = 2.0  # seconds that a program has to end after its exception: its exit handlers may wait for peers that are gone
STACKS_TIME = 0.3  # seconds in which a stalled child writes its stacks
GONE_DEADLINE = 10.0  # seconds until a process that SIGKILL was sent to must be gone; longer means that it hangs in the kernel
HEARD_OUT = 0.5  # seconds to read what an ended child said; a process that it forked may hold the connection open
LEFTOVER_TIME = 0.2  # seconds in which what a finished program started may end by itself

_LAUNCHER = os.path.dirname(os.path.abspath(__file__))

MEANINGS = {
    signal.SIGSEGV: "segmentation fault",
    signal.SIGABRT: "the program or a library gave up",
    signal.SIGBUS: "bad memory access, often a full /dev/shm or a truncated file",
    signal.SIGILL: "an instruction that this processor does not have",
    signal.SIGFPE: "arithmetic error",
    signal.SIGKILL: "killed from outside",
    signal.SIGTERM: "told to end from outside",
}


@dataclass(frozen=True)
class Program:
    """How to start the program: kind "script" or "module", and the options of `launch`."""

    kind: str
    target: str
    arguments: List[str]
    compat: bool = True


class Child:
    """A started process; `hear` gets what it says, `loaded` is set when it waits for the start."""

    def __init__(self, program: Program, output: Optional[str], standby: bool, hear: Callable[[Child, Message], None]) -> None:
        """Start it, with its output in the file `output`, or where this process' own goes."""
        self.output = output
        self.reservation: Optional[socket.socket] = None
        self.report = Beat()
        self.news = False  # whether the last report was more than a pulse: a first step, another activity, another ability
        self.saved = False
        self.loaded: Optional[Loaded] = None
        self.exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._raised: Optional[Raised] = None
        self._beaten = asyncio.Event()
        self._ordered = False
        self._heard_at = time.monotonic()
        self._kills_before = machine.memory_kills()
        self._hear = hear
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as stack:
            stack.callback(theirs.close)
            out = stack.enter_context(open(output, "ab", opener=_private)) if output else None
            self.process = subprocess.Popen(
                _command(program, theirs.fileno(), standby),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT if out else None,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._sock = ours
        self._reading = asyncio.ensure_future(self._read())

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def reserve_port(self, host: str) -> str:
        """Keep a free port for this child's TensorFlow server until the child is gone; returns host:port, each time the same."""
        self.reservation = self.reservation or reserved_port()
        return f"{host}:{self.reservation.getsockname()[1]}"

    def run(self, orders: Run) -> None:
        """Give the start."""
        self._heard_at = time.monotonic()
        self.send(orders)

    def send(self, message: Message) -> None:
        """Send a message; a child that is gone is noticed by its exit."""
        with contextlib.suppress(OSError):
            self._sock.sendall(protocol.encode(message))

    def vitals(self) -> Beat:
        """What the child reported last, and what the kernel says of it."""
        seen = machine.activity(self.pid)
        fields = {**vars(self.report), "stopped": seen.stopped, "busy": seen.busy}
        return Beat(**{**fields, "pulse": time.monotonic() - self._heard_at})

    async def end(self, grace: float, stacks: bool) -> None:
        """End it and everything that it started; returns when that is gone."""
        self._ordered = self._raised is None
        if stacks:
            await self._write_stacks()
        if grace > 0 and await self._handles_sigterm():
            self._signal(signal.SIGTERM)
            await self._exited(grace)
        self.kill()
        await self._exited(GONE_DEADLINE)

    def kill(self) -> None:
        """SIGKILL to its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    async def heard_out(self) -> None:
        """Wait until all that it said before its exit is read."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._reading), HEARD_OUT)

    def close(self) -> None:
        """Give back the port and the connection."""
        self._reading.cancel()
        self._sock.close()
        if self.reservation:
            self.reservation.close()

    def outcome(self) -> Outcome:
        """How it ended, once `exit` is set."""
        code, step = self.exit.result(), self.report.step
        number = -code if code < 0 else code - 128 if code - 128 in _NAMED else 0
        if self._ordered:
            return Outcome("left" if self.saved else "ended", "was ended", exit_code=code, step=step)
        if code == 0:
            return Outcome("done", "ended", exit_code=0, step=step)
        if self.saved and code == protocol.LEFT_AFTER_SAVE:
            return Outcome("left", "saved and left as asked", exit_code=code, step=step)
        if self._raised:
            kind = "peer" if self._raised.peer else "error"
            return Outcome(kind, f"raised {self._raised.text}", self._raised.place, code, step)
        if number:
            return self._by_signal(signal.Signals(number), code)
        return Outcome("error", f"exited with code {code}", f"exit code {code}", code, step)

    def _by_signal(self, number: signal.Signals, code: int) -> Outcome:
        step = self.report.step
        if number == signal.SIGKILL and machine.memory_kills() > self._kills_before:
            text = "was killed by the kernel for want of memory; give it more, or use smaller batches"
            return Outcome("memory", text, "out of memory", code, step)
        meaning = f" ({MEANINGS[number]})" if number in MEANINGS else ""
        how = f"was killed by {number.name}" if code < 0 else f"exited with code {code}, a shell's way to say {number.name}"
        if number == signal.SIGTERM:
            return Outcome("preempted", how + meaning, exit_code=code, step=step)
        return Outcome("signal", how + meaning, "" if number == signal.SIGKILL else number.name, code, step)

    async def _read(self) -> None:
        reader, writer = await asyncio.open_connection(sock=self._sock, limit=protocol.MAX_LINE)
        try:
            while True:
                line = await reader.readline()
                if not line:
                    return
                self._heard(protocol.decode(line))
        except (OSError, ValueError, protocol.ProtocolError) as e:
            self._hear(self, Note(f"the program wrote to tfrun's own connection ({e})"))
        finally:
            writer.close()

    def _heard(self, message: Message) -> None:
        self._heard_at = time.monotonic()
        if isinstance(message, Beat):
            before, self.report = self.report, message
            self.news = _signs(before) != _signs(message)
            self._beaten.set()
        elif isinstance(message, Loaded):
            self.loaded = message
        elif isinstance(message, Saved):
            self.saved = True
        elif isinstance(message, Raised):
            self._raised = message
            asyncio.get_running_loop().call_later(ORDERLY_EXIT, self._kill_unless_gone)
        self._hear(self, message)

    async def _handles_sigterm(self) -> bool:
        """Whether the program would do anything of its own at SIGTERM. TensorFlow's handler only swallows it (docs/design.md)."""
        self._beaten.clear()
        self.send(protocol.AskBeat())
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._beaten.wait(), HEARD_OUT)
        return self.report.handles_sigterm

    def _kill_unless_gone(self) -> None:
        if not self.exit.done():
            self._signal(signal.SIGKILL)

    async def _write_stacks(self) -> None:
        from worker_image.launch import STACKS_SIGNAL

        self._signal(STACKS_SIGNAL)
        self._signal(signal.SIGCONT)
        await self._exited(STACKS_TIME)

    async def _exited(self, within: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(self.exit), within)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


_NAMED = {int(number) for number in MEANINGS} | {int(signal.SIGINT), int(signal.SIGHUP), int(signal.SIGPIPE)}


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def reserved_port() -> socket.socket:
    """A socket that keeps a free port for someone else.

    It is bound on all interfaces, as TensorFlow's server will be, and never listens: while it is open the kernel gives the port to nobody
    else, but lets a server that sets SO_REUSEADDR (gRPC's does) bind and listen there.
    """
    dual = socket.has_dualstack_ipv6()
    kept = socket.socket(socket.AF_INET6 if dual else socket.AF_INET, socket.SOCK_STREAM)
    if dual:
        kept.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("", 0))
    return kept


def _signs(report: Beat) -> Tuple[object, ...]:
    """What makes a report worth passing on at once."""
    return report.step is None, report.activity, report.saver


def _command(program: Program, link_fd: int, standby: bool) -> List[str]:
    flags: Dict[str, bool] = {"--standby": standby, "--no-compat": not program.compat}
    return [
        *(sys.executable, _LAUNCHER, "launch", "--link", str(link_fd)),
        *(flag for flag, wanted in flags.items() if wanted),
        *(program.kind, program.target, *program.arguments),
    ]


def reap(children: Iterable[Child]) -> List[Child]:
    """Take note of every process that ended, of these children and of what was left to us; returns the children among them."""
    ended: List[Child] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        for child in children:
            if child.pid == pid:
                child.process.returncode = code = os.waitstatus_to_exitcode(status)
                child.exit.set_result(code)
                ended.append(child)


async def end_leftovers(keep: List[int], at_once: bool) -> List[str]:
    """End every process that ended children left behind; returns the names of those that did not end by themselves.

    The agent is the subreaper of everything below it, so they are its own children now. `keep` are the pids of living children.
    """
    loop = asyncio.get_running_loop()
    kind_until = loop.time() + (0.0 if at_once else LEFTOVER_TIME)
    deadline = loop.time() + GONE_DEADLINE
    ended: Dict[int, str] = {}
    # One look can miss a process that changes its parent meanwhile. A dead parent counts until it is waited for, and by then the kernel
    # has given us its children: so two looks in a row that find nothing at all are the end.
    empty_looks = 0
    while empty_looks < 2 and loop.time() < deadline:
        kept = {process for pid in keep for process in (pid, *machine.descendants(pid))}
        left = [pid for pid in machine.descendants(os.getpid()) if pid not in kept]
        empty_looks = 0 if left else empty_looks + 1
        for pid in left:
            if loop.time() >= kind_until and machine.alive(pid):
                ended.setdefault(pid, machine.name(pid))
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.005 if left else 0)
    return list(ended.values())
