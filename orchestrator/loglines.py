"""One pod's output, as the API sends it with a time before each line, cut into lines. Pure."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone

from orchestrator.output import LONGEST_LINE

_STAMP = 64  # bytes within which a time must end


@dataclass(frozen=True)
class Line:
    """at: when it was written, so that texts sort as times do. text: without its end; a very long line comes as several."""

    at: str
    text: bytes


class Lines:
    """Cuts chunks into lines. After a break the API begins again at a whole second: what was shown of it is left out."""

    def __init__(self) -> None:
        self._partial = b""
        self._at = ""  # of the long line that is under way
        self._last, self._repeats = "", 0  # the time of the last whole line, and how many had it
        self._to_skip = 0

    def resume(self) -> dict[str, str]:
        """What to ask the API for, first or after a break."""
        self._partial, self._at, self._to_skip = b"", "", self._repeats
        return {"sinceTime": self._last} if self._last else {}

    def feed(self, chunk: bytes) -> list[Line]:
        """The lines that a chunk completes."""
        *whole, self._partial = (self._partial + chunk).split(b"\n")
        found = [line for each in whole for line in self._line(each)]
        if len(self._partial) > LONGEST_LINE:
            at, text = self._cut(self._partial)
            self._at, self._partial = at, b""
            found.append(Line(at, text))
        return found

    def end(self) -> list[Line]:
        """What is left when a container has ended in the middle of a line."""
        rest, self._partial = self._partial, b""
        return list(self._line(rest)) if rest else []

    def _line(self, raw: bytes) -> Iterable[Line]:
        at, text = self._cut(raw)
        self._at = ""
        if at < self._last:
            return
        if at == self._last and self._to_skip:
            self._to_skip -= 1
            return
        self._repeats = self._repeats + 1 if at == self._last else 1
        self._last = at
        yield Line(at, text)

    def _cut(self, raw: bytes) -> tuple[str, bytes]:
        """(time, text); the later pieces of a long line have its time."""
        if self._at:
            return self._at, raw
        stamp, space, text = raw[:_STAMP].partition(b" ")
        return (in_utc(stamp.decode()), text + raw[_STAMP:]) if space else (self._last, raw)


def in_utc(stamp: str) -> str:
    """The same time in UTC: a node writes its own time zone."""
    if stamp.endswith("Z"):
        return stamp
    seconds, zone = stamp[:19], stamp[-6:]
    try:
        moved = datetime.fromisoformat(seconds + zone).astimezone(timezone.utc)
    except ValueError:
        return stamp
    return f"{moved:%Y-%m-%dT%H:%M:%S}{stamp[19:-6]}Z"


async def merged(streams: list[AsyncIterator[tuple[int, Line]]]) -> AsyncIterator[tuple[int, Line]]:
    """The lines of several pods in the order of their times, which is that of each pod's own lines; holds one line of each."""
    firsts = await asyncio.gather(*(anext(stream, None) for stream in streams))
    heads = [(first[1].at, number, first) for number, first in enumerate(firsts) if first]
    heapq.heapify(heads)
    while heads:
        _, number, found = heads[0]
        yield found
        following = await anext(streams[number], None)
        if following:
            heapq.heapreplace(heads, (following[1].at, number, following))
        else:
            heapq.heappop(heads)
