"""Prints numbered lines: lines.py COUNT. `line_of` is also what they are checked with."""

import os
import sys


def line_of(worker: int, number: int) -> str:
    """A line as a training prints it."""
    return f"worker {worker} step {number} loss 0.693147 accuracy 0.912109 42.0 examples/s"


if __name__ == "__main__":
    me = int(os.environ.get("TFRUN_WORKER") or os.environ["RANK"])
    for i in range(int(sys.argv[1])):
        print(line_of(me, i))
