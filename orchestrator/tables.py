"""Tables for people, and the same as JSON or YAML for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


def table(columns: Sequence[str], rows: list[Row], terminal: bool) -> str:
    """With lines and colours on a terminal; else aligned text, one row a line however long: what `awk` and `grep` expect."""
    cells = [[str(row[column]) for column in columns] for row in rows]
    return _rich(columns, cells) if terminal else _plain([[column.upper() for column in columns], *cells])


def dumped(document: Any, output: str) -> str:
    """As `json` or `yaml`."""
    if output == "json":
        return json.dumps(document, indent=2) + "\n"
    from orchestrator import submit  # late: YAML is slow to import

    return submit.text([document])


def is_terminal() -> bool:
    """Whether someone reads along."""
    return sys.stdout.isatty()


def _plain(lines: list[list[str]]) -> str:
    filled = [[cell or "-" for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*filled, strict=True)]
    return "".join("   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in filled)


def _rich(columns: Sequence[str], cells: list[list[str]]) -> str:
    from rich import box  # late: only a terminal needs it
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, header_style="bold")
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for line in cells:
        drawn.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in line))  # Text: a "[…]" in a name is no markup
    console = Console()
    with console.capture() as captured:
        console.print(drawn)
    return captured.get()


_STYLES = {
    **dict.fromkeys(("running", "done", "succeeded"), "green"),
    **dict.fromkeys(("failed", "ended", "lost", "unschedulable", "deadline", "not_launched", "ErrImagePull", "ImagePullBackOff"), "red"),
}
