"""The folders of checkpoints: complete, damaged or unfinished, told apart after a death at any moment.

DIRECTORY/step-00000120/weights.*
DIRECTORY/step-00000120/complete.json   written last and at once, with the size of every file and what the caller has to say of it

The directory is on a file system, or in an object store ("gs://BUCKET/FOLDER") that TensorFlow knows; only the latter imports TensorFlow.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import shutil
import threading
from typing import Any, Callable, Dict, Iterator, List, Optional, Union

from worker_image.train_errors import WrongInputError

MARKER = "complete.json"
ANSWER_TIME = 30.0  # seconds that an object store has for the first answer; TensorFlow by itself would try for minutes


def prepare_directory(directory: str, option: str = "--checkpoint-dir") -> None:
    """Make the directory and try to write into it, before any time is spent on training. Raises WrongInputError, which names the option."""
    probe = join(directory, f".probe-{os.getpid()}")

    def attempt() -> None:
        store = _storage(directory)
        store.make(directory)
        store.write(probe, "tfrun tried whether it can write here\n")
        store.remove_file(probe)

    try:
        _within(ANSWER_TIME, attempt) if _is_remote(directory) else attempt()
    except OSError as e:
        raise WrongInputError(f"{option} {directory} can't be written to ({reason(e)}); choose another directory") from e


def folder_of(directory: str, step: int) -> str:
    """Where the checkpoint of a step is."""
    return join(directory, f"step-{step:08d}")


def join(directory: str, name: str) -> str:
    """A path in a directory, also in an object store's."""
    return directory.rstrip("/") + "/" + name if _is_remote(directory) else os.path.join(directory, name)


def begin(folder: str) -> None:
    """Make the folder for a checkpoint, without what an earlier attempt left in it. Raises OSError."""
    remove(folder)
    _storage(folder).make(folder)


def complete(folder: str, marker: Dict[str, Any]) -> None:
    """Declare the checkpoint complete, once its files are safe on the disk; `marker` is told by read_marker. Raises OSError."""
    store = _storage(folder)
    sizes = {}
    for name in sorted(store.names(folder)):
        store.sync(join(folder, name))
        sizes[name] = store.size(join(folder, name))
    store.write(join(folder, MARKER), json.dumps({**marker, "files": sizes}, indent=1))
    store.sync(os.path.dirname(folder))


def complete_steps(directory: str) -> List[int]:
    """The steps of the complete checkpoints, newest first; damage is not looked for. Raises OSError."""
    store = _storage(directory)
    return sorted((step for step in _steps(directory) if store.exists(join(folder_of(directory, step), MARKER))), reverse=True)


def prune(directory: str, newest: int, keep: int, best: str = "") -> None:
    """Remove what is unfinished, and all complete checkpoints up to `newest` but the last `keep` and the best.

    Those after it were damaged when the training was resumed before them: it writes them anew when it comes there. best: a metric's name,
    as for best_step. Only while nothing is being written. Raises OSError.
    """
    complete_ones = complete_steps(directory)
    former = [step for step in complete_ones if step <= newest]
    later = [step for step in complete_ones if step > newest]
    kept = {*later, *former[:keep], best_step(directory, best) if best else None}
    for step in _steps(directory):
        if step not in kept:
            remove(folder_of(directory, step))


def best_step(directory: str, metric: str) -> Optional[int]:
    """The complete checkpoint with the best value of a metric, the newest of equals; None where none has it. Raises OSError.

    Lower is better if the metric has "loss" or "error" in its name.
    """
    values = {}
    for step in complete_steps(directory):
        with contextlib.suppress(ValueError, KeyError, TypeError, FileNotFoundError):  # damaged
            value = float(read_marker(folder_of(directory, step))["metrics"][metric])
            if math.isfinite(value):
                values[step] = value
    sign = -1 if "loss" in metric or "error" in metric else 1
    return max(values, key=lambda step: (sign * values[step], step), default=None)


def remove(folder: str) -> None:
    """Remove a checkpoint, its marker first: one that is half removed must not count. Raises OSError."""
    store = _storage(folder)
    for action, path in ((store.remove_file, join(folder, MARKER)), (store.remove_folder, folder)):
        with contextlib.suppress(FileNotFoundError):
            action(path)


def damage(folder: str) -> str:
    """What is wrong with the files of a checkpoint that claims to be complete; empty if nothing. Their content checks itself when read."""
    store = _storage(folder)
    try:
        for name, size in read_marker(folder)["files"].items():
            found = store.size(join(folder, name))
            if found != size:
                return f"{name} has {found} bytes instead of {size}"
    except OSError as e:
        return f"{os.path.basename(str(e.filename))}: {e.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MARKER} can't be read"
    return ""


def read_marker(folder: str) -> Dict[str, Any]:
    """What `complete` wrote, and "files", the size of each in bytes. Raises OSError and ValueError."""
    marker: Dict[str, Any] = json.loads(_storage(folder).read(join(folder, MARKER)))
    return marker


def reason(e: BaseException) -> str:
    """The cause alone: TensorFlow says "{{function_node …}} PATH; No space left on device [Op:SaveV2]"."""
    text = " ".join(str(getattr(e, "strerror", None) or e).split())
    return re.sub(r"\{\{.*?\}\}+ ?| \[Op:.*", "", text).split("; ")[-1][:200] or type(e).__name__


def sync(path: str) -> None:
    """Bring a local file, or a folder and all that is in it, to the disk. Raises OSError."""
    for folder, _, names in os.walk(path):
        for name in names:
            _Disk().sync(os.path.join(folder, name))
    _Disk().sync(path)


class _Disk:
    """A mounted directory: what is renamed is there whole, and what is synchronised stays."""

    def make(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)

    def names(self, folder: str) -> List[str]:
        return os.listdir(folder)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.path.getsize(path)

    def read(self, path: str) -> str:
        with open(path, encoding="utf-8") as f:
            return f.read()

    def write(self, path: str, text: str) -> None:
        """At once, or not at all."""
        temporary = path + ".tmp"
        with open(temporary, "w", encoding="utf-8") as f:
            f.write(text)
        self.sync(temporary)
        os.rename(temporary, path)
        self.sync(os.path.dirname(path))

    def sync(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove_file(self, path: str) -> None:
        os.remove(path)

    def remove_folder(self, folder: str) -> None:
        shutil.rmtree(folder)


class _ObjectStore:
    """What tf.io.gfile reaches: an object appears whole when its writer closes it, and stays. TensorFlow's errors become OSErrors."""

    def make(self, folder: str) -> None:
        with _errors_of(folder) as gfile:
            gfile.makedirs(folder)

    def names(self, folder: str) -> List[str]:
        with _errors_of(folder) as gfile:
            return [name.rstrip("/") for name in gfile.listdir(folder)]

    def exists(self, path: str) -> bool:
        with _errors_of(path) as gfile:
            return bool(gfile.exists(path))

    def size(self, path: str) -> int:
        with _errors_of(path) as gfile:
            return int(gfile.stat(path).length)

    def read(self, path: str) -> str:
        with _errors_of(path) as gfile, gfile.GFile(path, "rb") as f:
            return bytes(f.read()).decode()

    def write(self, path: str, text: str) -> None:
        with _errors_of(path) as gfile, gfile.GFile(path, "w") as f:
            f.write(text)

    def sync(self, path: str) -> None:
        """Nothing is left to do."""

    def remove_file(self, path: str) -> None:
        with _errors_of(path) as gfile:
            gfile.remove(path)

    def remove_folder(self, folder: str) -> None:
        with _errors_of(folder) as gfile:
            gfile.rmtree(folder)


@contextlib.contextmanager
def _errors_of(path: str) -> Iterator[Any]:
    import tensorflow as tf

    try:
        yield tf.io.gfile
    except tf.errors.NotFoundError as e:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from e
    except tf.errors.OpError as e:
        raise OSError(errno.EIO, reason(e), path) from e


def _storage(path: str) -> Union[_Disk, _ObjectStore]:
    return _ObjectStore() if _is_remote(path) else _Disk()


def _is_remote(path: str) -> bool:
    return "://" in path


def _steps(directory: str) -> List[int]:
    matches = (re.fullmatch(r"step-(\d+)", name) for name in _storage(directory).names(directory))
    return [int(match[1]) for match in matches if match]


def _within(seconds: float, action: Callable[[], None]) -> None:
    """Run it, and give up on it after a time: what hangs in TensorFlow can't be ended. Raises what it raises, and OSError."""
    problems: List[Exception] = []

    def run() -> None:
        try:
            action()
        except Exception as e:
            problems.append(e)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise OSError(errno.ETIMEDOUT, f"no answer within {seconds:g} s")
    if problems:
        raise problems[0]
