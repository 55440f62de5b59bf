"""The folder of one run: the job as understood, every worker's log per attempt, what happened, and the result."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from orchestrator import names
from orchestrator.errors import InvalidJobError


class RunFolder:
    """Files that only this user may read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, base: Path | None, name: str) -> RunFolder:
        """A new folder below `base`, or below .tfrun here. Raises InvalidJobError where that can't be."""
        folder = base or names.RUNS
        if folder.is_symlink():
            raise InvalidJobError(f"{folder} is a symbolic link; give the folder itself, so that the logs go where you think")
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if base is None:
                _write(folder / ".gitignore", "*\n")
            path = _fresh(folder / names.run_folder(name, time.localtime()))
            _point(folder / names.LATEST, path.name)
        except OSError as e:
            raise InvalidJobError(f"the logs can't be written to {folder} ({e.strerror}); choose another folder with --log-dir") from e
        return cls(path)

    def write(self, name: str, text: str) -> None:
        """Write a whole file."""
        _write(self.path / name, text)

    def event(self, kind: str, **fields: Any) -> None:
        """Add a line to events.jsonl, with the time of day in seconds since 1970."""
        line = json.dumps({"time": round(time.time(), 3), "event": kind, **fields})
        with _private(self.path / "events.jsonl", os.O_APPEND) as f:
            f.write(line + "\n")

    def log(self, worker: int, name: str) -> Path:
        """A log of a worker."""
        return self.path / names.worker_folder(worker) / name


def _fresh(path: Path) -> Path:
    again = 1
    while True:
        candidate = path if again == 1 else path.with_name(f"{path.name}-{again}")
        try:
            candidate.mkdir(mode=0o700)
        except FileExistsError:
            again += 1
        else:
            return candidate


def _point(link: Path, target: str) -> None:
    """Let `latest` name the newest run; a convenience, so never in anyone's way."""
    fresh = link.with_name(f".{link.name}-{os.getpid()}")
    if link.exists() and not link.is_symlink():
        return
    fresh.symlink_to(target)
    fresh.replace(link)


def _write(path: Path, text: str) -> None:
    with _private(path, os.O_TRUNC) as f:
        f.write(text)


def _private(path: Path, how: int) -> Any:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o600), "w", encoding="utf-8")
