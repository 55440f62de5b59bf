"""A worker that never joins: how long after the start deadline the job ends, and whether its index is named.

The peer is torchrun told to wait as long for a second node that never comes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import PROGRAMS, TFRUN, Limit, Peer, free_ports, in_turn, job, report, runs_wanted
from benchmarks.peer import torchrun

DEADLINE = 2.0  # seconds
ABSENT = 1
PROGRAM = PROGRAMS / "say_time.py"


def main() -> None:
    """Measure both in turn."""
    with tempfile.TemporaryDirectory(prefix="tfrun-bench-") as folder:
        python, file = _interpreter(Path(folder)), _job_file(Path(folder))
        ours, theirs = in_turn(runs_wanted(), lambda: late(python, file), torchrun_late)
    report("never_joins: end after the start deadline", "s", ours, Limit(1.0), Peer("torchrun, join_timeout", theirs), named=True)


def late(python: Path, file: Path) -> float:
    """Seconds from the command to the end, less the deadline. Fails unless exactly the absent worker is named."""
    with job((TFRUN, "run", "--python", python, file)) as run:
        code = run.finish()
        assert (code, f"worker {ABSENT} did not join" in run.errors()) == (4, True), run.errors()
    return run.ended - run.started - DEADLINE


def torchrun_late() -> float:
    """The same of torchrun, which names nobody."""
    where = f"127.0.0.1:{free_ports(1)[0]}"
    waits = ("--rdzv-conf", f"join_timeout={DEADLINE:g}")
    with job((torchrun(), "--nnodes", 2, "--rdzv-backend", "c10d", "--rdzv-endpoint", where, *waits, PROGRAM)) as run:
        code = run.finish()
        assert code != 0, run.errors()
    return run.ended - run.started - DEADLINE


def _interpreter(folder: Path) -> Path:
    """A python that never becomes the agent of one worker."""
    fake = folder / "python"
    fake.write_text(f'#!/bin/sh\ncase "$*" in *"--worker {ABSENT} "*) exec sleep 1000;; esac\nexec {sys.executable} "$@"\n')
    fake.chmod(0o755)
    return fake


def _job_file(folder: Path) -> Path:
    file = folder / "job.yaml"  # JSON is YAML
    file.write_text(json.dumps({"program": str(PROGRAM), "workers": 3, "deadlines": {"start": f"{DEADLINE:g}s"}}))
    return file


if __name__ == "__main__":
    main()
