"""Control groups of both kinds (v1 has a tree for each controller, v2 has one), as far as the cluster needs them."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
DEADLINE = 10.0  # seconds until what was asked of the kernel must be done
POLL = 0.02  # seconds


def folders(group: str) -> list[Path]:
    """The folder of a group in each tree."""
    trees = [ROOT] if _unified() else [tree for tree in ROOT.iterdir() if (tree / "cgroup.procs").exists() and not tree.is_symlink()]
    return [tree / group.lstrip("/") for tree in trees]


def freezer_tree() -> Path:
    """The tree whose groups can be frozen."""
    return ROOT if _unified() else ROOT / "freezer"


def processes(folder: Path) -> set[int]:
    """Every process in a group and the groups below it."""
    found: set[int] = set()
    for group in groups(folder):
        with suppress(OSError):  # the group is gone
            found.update(int(line) for line in (group / "cgroup.procs").read_text().split())
    return found


def groups(folder: Path) -> list[Path]:
    """A group and those below it, the deepest first; os.walk, since groups vanish while one looks."""
    return [Path(path) for path, _, _ in os.walk(folder, topdown=False)]


def end(group: str) -> None:
    """Kill what is in a group, frozen or not, and remove it."""
    trees = [folder for folder in folders(group) if folder.exists()]
    deadline = time.monotonic() + DEADLINE
    while pids := set().union(*map(processes, trees)):
        for folder in trees:
            for each in groups(folder):
                with suppress(OSError):  # the group is gone, or the root of a tree that has no freezer
                    freeze(each, False)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {sorted(pids)} of {group} don't end")
        time.sleep(POLL)
    for folder in trees:
        for each in groups(folder):
            with suppress(FileNotFoundError):
                each.rmdir()


def freeze(folder: Path, frozen: bool) -> None:
    """Stop or wake up everything in a group; returns when that is done."""
    if _unified():
        (folder / "cgroup.freeze").write_text(str(int(frozen)))
        _await(folder / "cgroup.events", f"frozen {int(frozen)}")
    else:
        state = "FROZEN" if frozen else "THAWED"
        (folder / "freezer.state").write_text(state)
        _await(folder / "freezer.state", state)


def _unified() -> bool:
    return (ROOT / "cgroup.controllers").exists()


def _await(file: Path, text: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while text not in file.read_text().splitlines():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{file} does not say {text!r} after {DEADLINE:g} s")
        time.sleep(POLL)
