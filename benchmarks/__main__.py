"""All the benchmarks, or those that are named: python -m benchmarks [NAME ...] [--runs N]."""

from __future__ import annotations

import argparse
import subprocess
import sys

from benchmarks.measure import RUNS
from benchmarks.peer import torchrun

NAMES = (
    *("help", "start", "first_step", "recovery_kill", "recovery_stop"),
    *("never_joins", "output", "rendezvous", "false_alarms"),
)


def main() -> int:
    """Run one after the other, each in a process of its own. Returns 1 if one of them broke."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)}; default: all")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"default: {RUNS}")
    given = parser.parse_args()
    unknown = set(given.names) - set(NAMES)
    if unknown:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    torchrun()  # installs it if need be, before anything is measured
    commands = [[sys.executable, "-m", f"benchmarks.{name}", "--runs", str(given.runs)] for name in given.names or NAMES]
    return max(subprocess.run(command, check=False).returncode != 0 for command in commands)


if __name__ == "__main__":
    sys.exit(main())
