"""The workers' output on this terminal: their log files followed, each line with its worker's name, plus one status line.

One thread, apart from the controller: a slow terminal holds up neither training nor recovery, since the workers write to files.
Everything is bytes, so whatever a program prints comes through as it is.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

CHUNK = 1 << 18  # bytes read from one log at a time: bounds the memory
LONGEST_LINE = 1 << 16  # bytes; a longer line is shown in pieces, the log has it whole
POLL = 0.02  # seconds between two looks at quiet logs
STATUS_EVERY = 0.25  # seconds
UNKNOWN_WIDTH = 80  # columns of a terminal that doesn't know

_COLOURS = (36, 32, 33, 35, 34, 31)  # cyan, green, yellow, magenta, blue, red
_CLEAR_LINE = b"\r\x1b[K"


@dataclass
class _Followed:
    file: int
    prefix: bytes
    partial: bytes = b""
    ended: bool = False


class Printer:
    """Follows log files and prints them; `say` prints lines of tfrun's own, to stderr."""

    def __init__(self, quiet: bool, status: Callable[[], str]) -> None:
        """quiet: nothing of the workers is shown. status: the text of the status line, which only a terminal gets."""
        self._quiet = quiet
        self._status = status
        self._terminal = sys.stdout.isatty()
        self._out: int | None = sys.stdout.fileno()
        self._followed: list[_Followed] = []
        self._said: deque[str] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._status_shown = False
        self._status_due = 0.0
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self._thread.start()

    def follow(self, worker: int, path: Path, most: int) -> None:
        """Show this file from its beginning; `most` is the number of workers, for the width of the prefix."""
        if self._quiet:
            return
        self._followed.append(_Followed(os.open(path, os.O_RDONLY | os.O_CLOEXEC), prefix(worker, most, self._terminal)))
        self._wake.set()

    def say(self, text: str) -> None:
        """Print a line of our own."""
        self._said.append(text)
        self._wake.set()

    def close(self) -> None:
        """Print everything that is still there, then end."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            closing = self._closing  # read before the logs: what was written before close() is shown
            moved = self._pass()
            if not moved and closing:
                break
            if not moved:
                self._show_status()
                self._wake.wait(POLL)
                self._wake.clear()
        for followed in self._followed:
            self._write(_lines(followed, b"", end=True))
            os.close(followed.file)
        self._clear_status()

    def _pass(self) -> bool:
        """One look at everything. Returns whether there was anything."""
        moved = False
        for followed in list(self._followed):
            chunk = os.read(followed.file, CHUNK)
            moved = moved or bool(chunk)
            if chunk:
                self._write(_lines(followed, chunk))
        while self._said:
            moved = True
            self._clear_status()
            with contextlib.suppress(OSError):
                os.write(sys.stderr.fileno(), f"tfrun: {self._said.popleft()}\n".encode())
        return moved

    def _write(self, data: bytes) -> None:
        if not data or self._out is None:
            return
        self._clear_status()
        try:
            write(self._out, data)
        except OSError:  # the reader went away (`tfrun run … | head`): the training goes on, and the logs have it all
            self._out = None

    def _show_status(self) -> None:
        now = time.monotonic()
        if not self._terminal or (self._status_shown and now < self._status_due):
            return
        text, self._status_due = self._status(), now + STATUS_EVERY
        if text and self._out is not None:
            width = os.get_terminal_size(self._out).columns or UNKNOWN_WIDTH
            os.write(self._out, _CLEAR_LINE + text[: width - 1].encode())
            self._status_shown = True

    def _clear_status(self) -> None:
        if self._status_shown and self._out is not None:
            os.write(self._out, _CLEAR_LINE)
        self._status_shown = False


def prefix(worker: int, most: int, coloured: bool) -> bytes:
    """What stands before each line of a worker; `most` is the number of workers, for the width."""
    name = f"[{worker:>{len(str(most - 1))}}] "
    return (f"\x1b[{_COLOURS[worker % len(_COLOURS)]}m{name}\x1b[0m" if coloured else name).encode()


def write(file: int, data: bytes) -> None:
    """Write everything, also where whoever started us shares a terminal or pipe that does not block."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(file, view) :]
        except BlockingIOError:
            select.select([], [file], [])


def _lines(followed: _Followed, chunk: bytes, end: bool = False) -> bytes:
    """The whole lines that a chunk completes, each with the prefix; what is left waits for the next chunk."""
    data = followed.partial + chunk
    cut = data.rfind(b"\n") + 1
    if end or (not cut and len(data) > LONGEST_LINE):
        cut = len(data)
    body, followed.partial = data[:cut], data[cut:]
    if not body:
        return b""
    body = body[:-1] if body.endswith(b"\n") else body
    return followed.prefix + body.replace(b"\n", b"\n" + followed.prefix) + b"\n"
