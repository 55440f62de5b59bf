"""Files that are downloaded once for a machine, into the folder where Keras keeps its datasets, however many workers ask for them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import os
import shutil
import tempfile
import threading
import time
import urllib.request
from typing import Any, Iterator, List, Sequence

from worker_image.train_errors import WrongInputError

ANSWER_SECONDS = 12.0  # for the name, the connection and the first byte, all together
READ_SECONDS = 30.0  # without a byte, in the middle of a download
LOCK_SECONDS = 900.0  # another process may be downloading 170 MB over a slow line
_FAILURES = (OSError, http.client.HTTPException)


def cached(names: Sequence[str], url: str, sha256: str) -> str:
    """The path of a file in Keras's cache, downloaded where it is not there yet.

    names: the file's name there, and others that it may have. A file that is there is taken as it is: it may be one's own.
    Raises WrongInputError where it is not there and can't be had.
    """
    path = _find(names)
    if path:
        return path
    with alone(names[0]):
        return _find(names) or _download(url, sha256, os.path.join(_folder(), names[0]))


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """While this context lasts, no other process that shares the cache (of this machine, or on NFS) is in one of the same name.

    Raises WrongInputError where another one stays in it for too long.
    """
    path = os.path.join(_folder(), f".{name.replace(os.sep, '-')}.lock")
    with open(path, "a") as file:
        _lock(file, path)
        yield  # closing the file lets go of the lock, and so does the end of the process


def folders() -> List[str]:
    """Where files are looked for: Keras's own cache, then what Keras takes where that can't be written to."""
    home = os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    return [os.path.join(base, "datasets") for base in (home, os.path.join(tempfile.gettempdir(), ".keras"))]


def _folder() -> str:
    """The first of them that can be written to."""
    for folder in folders():
        with contextlib.suppress(OSError):
            os.makedirs(folder, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    raise WrongInputError(f"datasets can't be kept in {' or '.join(folders())}; set KERAS_HOME to a folder that can be written to")


def _find(names: Sequence[str]) -> str:
    paths = (os.path.join(folder, name) for folder in folders() for name in names)
    return next((path for path in paths if os.path.isfile(path)), "")


def _lock(file: Any, path: str) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise WrongInputError(
                    f"another process has held {path} for {LOCK_SECONDS:.0f} s; end it, or put the file there by hand"
                ) from None
        time.sleep(0.1)  # flock itself waits without a deadline


def _download(url: str, sha256: str, path: str) -> str:
    """The file gets its name only when it is whole, so a process that is killed here leaves nothing that looks like it."""
    temporary = f"{path}.{os.getpid()}.part"
    print(f"downloading {url} to {path}", flush=True)
    try:
        with _answer(url) as answer, open(temporary, "wb") as file:
            shutil.copyfileobj(answer, file)
        found = _sha256(temporary)
        if found != sha256:
            raise OSError(f"what came has SHA-256 {found[:12]}…, not {sha256[:12]}…")
        os.replace(temporary, path)
    except _FAILURES as e:
        raise WrongInputError(
            f"{os.path.basename(path)} is not in {folders()[0]} and can't be downloaded from {url} ({getattr(e, 'reason', e)}); "
            "put it there from a machine that can (KERAS_HOME chooses another folder), or train with data that is here"
        ) from e
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
    return path


def _answer(url: str) -> Any:
    """The open answer of a server. In a thread, because nothing else limits the search for a name (minutes, in a pod without network)."""
    got: List[Any] = []

    def ask() -> None:
        try:
            got.append(urllib.request.urlopen(url, timeout=READ_SECONDS))  # noqa: S310 # our own https addresses
        except _FAILURES as e:
            got.append(e)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    if not got:
        raise OSError(f"no answer within {ANSWER_SECONDS:.0f} s")
    if isinstance(got[0], _FAILURES):
        raise got[0]
    return got[0]


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
