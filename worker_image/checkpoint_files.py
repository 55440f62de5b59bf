"""The folders of checkpoints: complete, damaged or unfinished, told apart after a death at any moment. No TensorFlow here.

DIRECTORY/step-00000120/weights.*
DIRECTORY/step-00000120/complete.json   written last, by a rename, with the size and the SHA-256 of every file
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from typing import Any, Dict, List, Set

from worker_image.train_errors import WrongInputError

MARKER = "complete.json"


def prepare_directory(directory: str) -> None:
    """Make the directory and try to write into it, before any time is spent on training. Raises WrongInputError."""
    if "://" in directory:
        raise WrongInputError(f"--checkpoint-dir is {directory}, and only mounted directories can be used; mount it and give its path")
    probe = os.path.join(directory, f".probe-{os.getpid()}")
    try:
        os.makedirs(directory, exist_ok=True)
        with open(probe, "w"):
            pass
        os.remove(probe)
    except OSError as e:
        raise WrongInputError(f"--checkpoint-dir {directory} can't be written to ({e.strerror}); choose another directory") from e


def folder_of(directory: str, step: int) -> str:
    """Where the checkpoint of a step is."""
    return os.path.join(directory, f"step-{step:08d}")


def complete_steps(directory: str) -> List[int]:
    """The steps of the complete checkpoints, newest first; damage is not looked for."""
    steps = (step for step in _steps(directory) if os.path.exists(os.path.join(folder_of(directory, step), MARKER)))
    return sorted(steps, reverse=True)


def complete(folder: str, step: int, meaning: Dict[str, int]) -> None:
    """Declare the checkpoint complete: its files are brought to the disk, then the marker."""
    files = {}
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        _sync(path)
        files[name] = {"size": os.path.getsize(path), "sha256": _sha256(path)}
    temporary = os.path.join(folder, MARKER + ".tmp")
    with open(temporary, "w") as f:
        json.dump({"step": step, "meaning": meaning, "files": files}, f, indent=1)
    _sync(temporary)
    os.rename(temporary, os.path.join(folder, MARKER))
    _sync(folder)
    _sync(os.path.dirname(folder))


def prune(directory: str, keep: int) -> None:
    """Remove what is unfinished, and all but the newest complete checkpoints. Only while nothing is being written."""
    kept = complete_steps(directory)[:keep]
    for step in _steps(directory).difference(kept):
        remove(folder_of(directory, step))


def remove(folder: str) -> None:
    """Remove a checkpoint, its marker first: one that is half removed must not count."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(os.path.join(folder, MARKER))
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def damage(folder: str) -> str:
    """What is wrong with a checkpoint that claims to be complete; empty if nothing."""
    try:
        for name, expected in read_marker(folder)["files"].items():
            path = os.path.join(folder, name)
            if os.path.getsize(path) != expected["size"]:
                return f"{name} has {os.path.getsize(path)} bytes instead of {expected['size']}"
            if _sha256(path) != expected["sha256"]:
                return f"the content of {name} has changed"
    except OSError as e:
        return f"{os.path.basename(str(e.filename))}: {e.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MARKER} can't be read"
    return ""


def read_marker(folder: str) -> Dict[str, Any]:
    """What `complete` wrote. Raises OSError and ValueError."""
    with open(os.path.join(folder, MARKER)) as f:
        marker: Dict[str, Any] = json.load(f)
    return marker


def _steps(directory: str) -> Set[int]:
    matches = (re.fullmatch(r"step-(\d+)", name) for name in os.listdir(directory))
    return {int(match[1]) for match in matches if match}


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
