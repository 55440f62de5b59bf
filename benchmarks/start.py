"""From the command to the user's first line: `tfrun run -n 2` and `torchrun --nproc-per-node 2` of a program that prints the time.

A line counts when it can be read from the launcher's own stdout, so tfrun's prefixing is in its time.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.measure import PROGRAMS, TFRUN, Limit, Peer, in_turn, job, report, runs_wanted
from benchmarks.peer import torchrun

WORKERS = 2
PROGRAM = PROGRAMS / "say_time.py"


def main() -> None:
    """Measure both in turn."""
    ours = (TFRUN, "run", "-n", WORKERS, PROGRAM)
    theirs = (torchrun(), "--nproc-per-node", WORKERS, PROGRAM)
    last: dict[Sequence[object], list[float]] = {ours: [], theirs: []}

    def first_line(command: Sequence[object]) -> float:
        with job(command) as run:
            times = [run.line()[0] - run.started for _ in range(WORKERS)]
            assert run.finish() == 0, run.errors()
        last[command].append(times[-1])
        return times[0]

    values = in_turn(runs_wanted(), lambda: first_line(ours), lambda: first_line(theirs))
    report("start: command to the first worker's line", "s", values[0], Limit(0.4, "ratio"), Peer("torchrun", values[1]))
    report("start: command to the last worker's line", "s", last[ours], Limit(0.4, "ratio"), Peer("torchrun", last[theirs]))


if __name__ == "__main__":
    main()
