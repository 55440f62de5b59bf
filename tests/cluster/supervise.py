"""Components as processes that outlive the command that started them: started once, repaired after a crash, restarted when changed."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

POLL = 0.05  # seconds
END_DEADLINE = 10.0  # seconds until a killed process must be gone
LAST_WORDS = 300  # characters of a log line that are shown


class ClusterError(Exception):
    """What the person at the terminal is told, in one sentence."""


@dataclass(frozen=True)
class Component:
    """One program of the cluster.

    files: what is written before the start, path → text. ready: whether it works, asked until `patience` seconds have passed.
    """

    name: str
    command: tuple[str, ...]
    ready: Callable[[], bool]
    files: Mapping[Path, str] = field(default_factory=dict)
    patience: float = 60.0


class Supervisor:
    """Starts and ends components. What it must remember is in the folder `run` of the cluster's state, the logs are in `log`."""

    def __init__(self, state: Path) -> None:
        self._run = state / "run"
        self._log = state / "log"

    def start(self, component: Component) -> bool:
        """Make it run as described; returns whether it had to be started. Raises ClusterError if it does not get ready."""
        fingerprint = _fingerprint(component)
        process = self.process(component.name)
        started = process is None or self._record(component.name).get("fingerprint") != fingerprint
        if started:
            self.end(component.name)
            self._spawn(component, fingerprint)
        self._await(component)
        return started

    def end(self, name: str) -> None:
        """SIGKILL: whatever a component has to keep, it keeps in files that survive that."""
        deadline = time.monotonic() + END_DEADLINE
        while process := self.process(name):
            with suppress(psutil.NoSuchProcess):
                process.kill()
            if time.monotonic() > deadline:
                raise ClusterError(f"{name} (process {process.pid}) does not end {END_DEADLINE:g} s after SIGKILL; look what holds it")
            time.sleep(POLL)
        self._path(name).unlink(missing_ok=True)

    def process(self, name: str) -> psutil.Process | None:
        """The living process of a component."""
        record = self._record(name)
        with suppress(psutil.NoSuchProcess, KeyError):
            process = psutil.Process(record["pid"])
            if process.create_time() == record["created"] and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None

    def names(self) -> list[str]:
        """Every component that was started and not ended, alive or not."""
        return sorted(path.stem for path in self._run.glob("*.process"))

    def log(self, name: str) -> Path:
        """Where a component's output goes."""
        return self._log / f"{name}.log"

    def _spawn(self, component: Component, fingerprint: str) -> None:
        for folder in (self._run, self._log):
            folder.mkdir(parents=True, exist_ok=True)
        for path, text in component.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        output = (os.POSIX_SPAWN_OPEN, 1, str(self.log(component.name)), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), output, (os.POSIX_SPAWN_DUP2, 1, 2)]
        # Not subprocess.Popen, which wants to see its children end.
        pid = os.posix_spawn(component.command[0], component.command, os.environ, file_actions=actions, setsid=True)
        with suppress(psutil.NoSuchProcess):  # it ended at once, which _await tells
            record = {"pid": pid, "created": psutil.Process(pid).create_time(), "fingerprint": fingerprint}
            self._path(component.name).write_text(json.dumps(record))

    def _await(self, component: Component) -> None:
        deadline = time.monotonic() + component.patience
        while not component.ready():
            log = self.log(component.name)
            if not self.process(component.name):
                raise ClusterError(f"{component.name} ended: {_last_words(log)} (more in {log})")
            if time.monotonic() > deadline:
                raise ClusterError(f"{component.name} is not ready after {component.patience:g} s; see {log}")
            time.sleep(POLL)

    def _path(self, name: str) -> Path:
        return self._run / f"{name}.process"

    def _record(self, name: str) -> dict[str, object]:
        with suppress(OSError, ValueError):
            return dict(json.loads(self._path(name).read_text()))
        return {}


def _fingerprint(component: Component) -> str:
    program = Path(component.command[0]).stat()
    files = sorted((str(path), text) for path, text in component.files.items())
    return hashlib.sha256(repr((component.command, files, program.st_mtime_ns, program.st_size)).encode()).hexdigest()


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:LAST_WORDS] if lines else "it said nothing"
