"""Workers as processes of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path

import worker_image
from orchestrator import names
from orchestrator.backends.base import Meeting, Watcher

JOIN_DEADLINE = 30.0  # seconds: the controller listens before it starts anyone, so this is for a machine that is very busy
GONE_DEADLINE = 10.0  # seconds until a process that SIGKILL was sent to must be gone
REASON_BYTES = 4096  # of the agent's own log, whose last line says why it ended
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_WORKER_IMAGE = Path(worker_image.__file__).parent


@dataclass(frozen=True)
class LocalProgram:
    """What every worker runs: `command` is kind, target and arguments; python is the interpreter of the workers."""

    command: tuple[str, ...]
    python: str = sys.executable
    environ: tuple[tuple[str, str], ...] = ()
    standby: bool = True
    compat: bool = True


class LocalBackend:
    """Starts agents as child processes, each in a session of its own, so that the terminal's Ctrl-C reaches only the controller."""

    def __init__(self, program: LocalProgram, workers: int, folder: Path) -> None:
        self._program = program
        self._workers = workers
        self._folder = folder
        self._agents: dict[tuple[int, int], asyncio.subprocess.Process] = {}
        self._watching: set[asyncio.Task[None]] = set()
        self._known = asyncio.Lock()  # held while a process of ours exists that _agents does not know yet
        # What an agent that was killed leaves behind becomes this process' child, and is ended in _end_leftovers.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    async def launch(self, worker: int, incarnation: int, meeting: Meeting, watcher: Watcher) -> None:
        """Start the agent of a worker."""
        folder = self._folder / names.worker_folder(worker)
        folder.mkdir(mode=0o700, exist_ok=True)
        read_end, write_end = os.pipe()
        try:
            os.write(write_end, meeting.secret)
            async with self._known:
                process = await self._spawn(self._command(worker, incarnation, meeting.address, read_end, folder), read_end, folder)
                self._agents[worker, incarnation] = process
        except OSError as e:
            watcher.gone(worker, incarnation, f"its agent could not be started ({self._program.python}: {e.strerror})")
            return
        finally:
            os.close(read_end)
            os.close(write_end)
        self._watch(self._gone(worker, incarnation, process, watcher))

    async def _spawn(self, command: list[str], secret_fd: int, folder: Path) -> asyncio.subprocess.Process:
        with open(folder / "agent.log", "ab", opener=_private) as log:  # Path.open takes no opener
            return await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[secret_fd],
                start_new_session=True,
                env=self._environment(),
            )

    async def remove(self, worker: int, incarnation: int) -> None:
        """Kill the agent; the rest of the worker goes with it."""
        process = self._agents.get((worker, incarnation))
        if process:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)  # not process.kill(), which may take the exit status from asyncio's own watcher

    async def close(self, patience: float) -> None:
        """Wait for the agents, then kill what is left."""
        if self._watching and patience:
            await asyncio.wait(self._watching, timeout=patience)
        for worker, incarnation in list(self._agents):
            await self.remove(worker, incarnation)
        if self._watching:
            await asyncio.wait(self._watching, timeout=GONE_DEADLINE)
        await self._end_leftovers()

    def _watch(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    async def _gone(self, worker: int, incarnation: int, process: asyncio.subprocess.Process, watcher: Watcher) -> None:
        code = await process.wait()
        del self._agents[worker, incarnation]
        if code != 0:  # an agent that ends in order has left nothing
            await self._end_leftovers()
        watcher.gone(worker, incarnation, self._why(worker, code))

    def _why(self, worker: int, code: int) -> str:
        if code < 0:
            return f"its agent was killed by {signal.Signals(-code).name}"
        with (self._folder / names.worker_folder(worker) / "agent.log").open("rb") as f:
            f.seek(0, os.SEEK_END)
            f.seek(max(0, f.tell() - REASON_BYTES))
            last = f.read().decode(errors="replace").strip().rpartition("\n")[2]
        return f"its agent ended with code {code}" + (f" ({last})" if last else "")

    def _command(self, worker: int, incarnation: int, address: str, secret_fd: int, folder: Path) -> list[str]:
        program = self._program
        return [
            *(program.python, str(_WORKER_IMAGE), "agent"),
            *("--controller", address, "--worker", str(worker), "--incarnation", str(incarnation)),
            *("--secret-file", f"/dev/fd/{secret_fd}", "--host", names.LOOPBACK, "--join-deadline", str(JOIN_DEADLINE)),
            *("--share", str(self._workers), "--log-dir", str(folder.resolve())),
            *(() if program.standby else ("--no-standby",)),
            *(() if program.compat else ("--no-compat",)),
            *program.command,
        ]

    def _environment(self) -> dict[str, str]:
        """The user's own environment, the job's variables, and each worker's share of the processors."""
        threads = str(max(1, (os.cpu_count() or 1) // self._workers))
        return {"TF_NUM_INTRAOP_THREADS": threads, "TFRUN_WORKERS": str(self._workers), **os.environ, **dict(self._program.environ)}

    async def _end_leftovers(self) -> None:
        """End every process below this one that no living agent is responsible for."""
        import psutil  # late: only a worker that did not end in order needs it

        async with self._known:
            deadline = asyncio.get_running_loop().time() + GONE_DEADLINE
            empty_looks = 0  # one look can miss a process that changes its parent meanwhile
            while empty_looks < 2 and asyncio.get_running_loop().time() < deadline:
                agents = {process.pid for process in self._agents.values()}
                left = [child for child in psutil.Process().children() if child.pid not in agents]
                empty_looks = 0 if left else empty_looks + 1
                for child in left:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        child.kill()
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(child.pid, os.WNOHANG)
                await asyncio.sleep(0.005 if left else 0)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
