"""The output of pods, cut into lines and put in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.loglines import Line, Lines, in_utc, merged
from orchestrator.output import LONGEST_LINE


def stamp(number: int) -> str:
    return f"2026-11-21T12:00:{number:02}.000000000Z"


def raw(*numbers: int) -> bytes:
    return b"".join(f"{stamp(number)} line {number}\n".encode() for number in numbers)


@given(st.lists(st.integers(1, 60)))
def test_lines_are_whole_however_the_chunks_fall(cuts: list[int]) -> None:
    """No line is torn, and none is lost."""
    data, lines, found = raw(1, 2, 3), Lines(), list[Line]()
    while data:
        size = cuts.pop() if cuts else 7
        found += lines.feed(data[:size])
        data = data[size:]
    assert [line.text for line in found] == [b"line 1", b"line 2", b"line 3"]
    assert [line.at for line in found] == [stamp(1), stamp(2), stamp(3)]


def test_after_a_break_nothing_is_shown_twice_or_left_out() -> None:
    """The API begins again at a whole second: lines of the same time are counted, and half a line is read again."""
    lines = Lines()
    assert lines.resume() == {}
    two = f"{stamp(2)} a\n{stamp(2)} b\n".encode()
    assert [line.text for line in lines.feed(raw(1) + two + stamp(2).encode() + b" ha")] == [b"line 1", b"a", b"b"]
    assert lines.resume() == {"sinceTime": stamp(2)}
    assert [line.text for line in lines.feed(raw(1) + two + f"{stamp(2)} half\n".encode() + raw(3))] == [b"half", b"line 3"]


def test_a_line_without_end_comes_in_pieces() -> None:
    """A program that prints megabytes without a newline does not fill the memory."""
    lines, text = Lines(), b"x" * (3 * LONGEST_LINE)
    data = stamp(1).encode() + b" " + text + b"\n" + raw(2)
    found = [line for start in range(0, len(data), 50_000) for line in lines.feed(data[start : start + 50_000])]
    assert b"".join(line.text for line in found[:-1]) == text
    assert {line.at for line in found[:-1]} == {stamp(1)}
    assert len(found) > 2
    assert found[-1].text == b"line 2"


def test_the_last_line_needs_no_end() -> None:
    """What a killed program had begun to print is shown."""
    lines = Lines()
    assert lines.feed(raw(1)[:-1]) == []
    assert [line.text for line in lines.end()] == [b"line 1"]
    assert lines.end() == []


def test_times_are_compared_in_utc() -> None:
    """Nodes write their own time zone."""
    assert in_utc("2026-11-21T13:00:01.500000000+01:00") == "2026-11-21T12:00:01.500000000Z"
    assert in_utc("no time") == "no time"


def test_several_pods_are_merged_by_time() -> None:
    """The order is that of the times, and each pod's own lines stay in theirs."""

    async def of(number: int, *numbers: int) -> AsyncIterator[tuple[int, Line]]:
        for each in numbers:
            yield number, Line(stamp(each), b"")

    async def order() -> list[tuple[int, str]]:
        return [(number, line.at) async for number, line in merged([of(0, 1, 4, 5), of(1), of(2, 2, 3, 6)])]

    found = [(0, 1), (2, 2), (2, 3), (0, 4), (0, 5), (2, 6)]
    assert asyncio.run(order()) == [(number, stamp(at)) for number, at in found]
