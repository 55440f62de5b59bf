"""The child's end of its connection to the agent: pulses, progress, and the coordinated save.

One thread reads and pulses; the program's own thread only leaves values here, so that reporting a step costs about a microsecond.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from typing import Dict, Iterator, Optional

from worker_image import protocol
from worker_image.protocol import Beat, Message

PULSE = 1.0  # seconds between two reports
SAVE_AGREEMENT = 10.0  # seconds until a save that not everyone has noted is called off


class Link:
    """The connection of this process to its agent. `current` is the one of this process, None outside tfrun."""

    current: Optional[Link] = None

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._pid = os.getpid()
        self._sending = threading.Lock()
        self._wake_read, self._wake_write = os.pipe()
        self._save = _Save(self)
        self._step: Optional[int] = None
        self._total: Optional[int] = None
        self._metrics: Dict[str, float] = {}
        self._stepped_at = 0.0
        self._longest = 0.0
        self._activity = ""

    @classmethod
    def here(cls) -> Optional[Link]:
        """The link of this very process: a fork of the program is not the program."""
        link = cls.current
        return link if link is not None and link._pid == os.getpid() else None

    def send(self, message: Message) -> None:
        """Send a message; an agent that is gone ends this process elsewhere (see _watch)."""
        with self._sending, contextlib.suppress(OSError):
            self._sock.sendall(protocol.encode(message))

    def start(self) -> None:
        """Begin to pulse and to listen."""
        Link.current = self
        threading.Thread(target=self._watch, name="tfrun", daemon=True).start()

    def progress(self, step: int, total: Optional[int], metrics: Dict[str, float]) -> None:
        """Note the progress; see report.progress."""
        now = time.monotonic()
        first = self._step is None
        if not first and not self._activity:
            self._longest = max(self._longest, now - self._stepped_at)
        self._step, self._total, self._stepped_at = step, total, now
        self._metrics.update(metrics)
        if first:
            self.wake()

    @contextlib.contextmanager
    def activity(self, name: str) -> Iterator[None]:
        """While this lasts, no step is expected."""
        before, self._activity = self._activity, name
        self.wake()
        try:
            yield
        finally:
            self._activity = before
            self._stepped_at = time.monotonic()
            self.wake()

    def wake(self) -> None:
        """Report now, not at the next pulse."""
        os.write(self._wake_write, b"!")

    def boundary(self) -> bool:
        """See report.save_due."""
        return self._save.boundary()

    def saved(self, step: int) -> None:
        """See report.saved."""
        self.send(protocol.Saved(step))

    def _watch(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are the program's thread's
        received = b""
        while True:
            readable, _, _ = select.select([self._sock.fileno(), self._wake_read], [], [], PULSE)
            if self._wake_read in readable:
                os.read(self._wake_read, 4096)
            if self._sock.fileno() in readable:
                chunk = self._sock.recv(65536)
                if not chunk:
                    os.killpg(os.getpgid(0), signal.SIGKILL)  # the agent is gone: nothing of this worker may stay
                *lines, received = (received + chunk).split(b"\n")
                orders = [protocol.decode(line) for line in lines]
                for order in orders:
                    self._save.handle(order)
                if not any(isinstance(order, protocol.AskBeat) for order in orders):
                    continue
            self._pulse()

    def _pulse(self) -> None:
        handler = signal.getsignal(signal.SIGTERM)
        self.send(
            Beat(
                step=self._step,
                total=self._total,
                metrics=dict(self._metrics),
                longest=self._longest,
                activity=self._activity,
                saver=self._save.offered,
                handles_sigterm=handler not in (signal.SIG_DFL, signal.SIG_IGN, None),
            )
        )


class _Save:
    """This worker's part in agreeing on the boundary at which all save (protocol.py tells how)."""

    def __init__(self, link: Link) -> None:
        self.offered = False
        self._link = link
        self._count = 0
        self._asked = False
        self._target: Optional[int] = None
        self._go = threading.Event()
        self._lock = threading.Lock()

    def handle(self, message: Message) -> None:
        with self._lock:
            if isinstance(message, protocol.AskSave):
                self._asked = True
            elif isinstance(message, protocol.SaveAt):
                ok = message.boundary > self._count
                if ok:
                    self._target = message.boundary
                self._link.send(protocol.SaveNoted(ok))
            elif isinstance(message, protocol.SaveGo):
                if not message.ok:
                    self._target = None
                self._go.set()

    def boundary(self) -> bool:
        if not self.offered:
            self.offered = True
            self._link.wake()
        with self._lock:
            self._count += 1
            asked, self._asked = self._asked, False
            if asked:
                self._target = self._count + 2
                self._go.clear()
                self._link.send(protocol.SaveTarget(self._target))
        if asked and not self._go.wait(SAVE_AGREEMENT):
            self._target = None
        with self._lock:
            due = self._target is not None and self._count >= self._target
            if due:
                self._target = None
            return due
