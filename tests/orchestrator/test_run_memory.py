"""Want of memory, for real: in a control group with a limit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import REPO, Start

Limit = Callable[[int], Path]
MB = 1_000_000


def test_a_program_killed_for_want_of_memory_is_told_so(memory_limit: Limit, start: Start, tmp_path: Path) -> None:
    """The kernel's own kill is told apart from anyone else's, with advice; twice without progress is final."""
    (tmp_path / "hungry.py").write_text("kept = [bytearray(10_000_000) for _ in range(100)]\n")
    run = start("hungry.py", within=memory_limit(300 * MB))
    assert run.wait() == 1, run.report()
    assert "worker 0 was killed by the kernel for want of memory; give it more, or use smaller batches, twice in a row" in run.errors()
    assert run.result()["failures"][0]["kind"] == "memory"


@pytest.mark.tensorflow
def test_no_standby_where_the_limit_leaves_no_room(memory_limit: Limit, start: Start) -> None:
    """The limit of the control group counts, not the machine's memory: training goes on, without a standby, and that is said."""
    run = start(REPO / "examples" / "counter.py", "--steps", "100", "--pause", "0.02", within=memory_limit(900 * MB))
    assert run.wait() == 0, run.report()
    assert "no standby process: one wants 0." in run.errors()
    assert run.result()["attempts"] == 1
