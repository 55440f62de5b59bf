"""Where torchrun is: .venv-bench, made here if it is missing, or whatever TFRUN_BENCH_TORCHRUN points to."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

ENVIRONMENT = Path(__file__).parents[1] / ".venv-bench"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")


@cache
def torchrun() -> str:
    """The path of torchrun; the first call may install torch, outside every measured time."""
    given = os.environ.get("TFRUN_BENCH_TORCHRUN")
    if given:
        return given
    found = ENVIRONMENT / "bin" / "torchrun"
    if not found.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", ENVIRONMENT], check=True)
        subprocess.run([ENVIRONMENT / "bin" / "pip", "install", "--quiet", "--requirement", REQUIREMENTS], check=True)
    return str(found)


if __name__ == "__main__":
    print(torchrun())
