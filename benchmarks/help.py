"""`tfrun --help` beside `torchrun --help`, and what the command line of a real run imports."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import PROGRAMS, TFRUN, Limit, Peer, in_turn, report, runs_wanted
from benchmarks.peer import torchrun

NEVER = ("tensorflow", "keras", "numpy", "kubernetes")
SHOWN = 10  # of the modules that cost the most


def main() -> None:
    """Measure both in turn, then look at the imports of one run."""
    ours, theirs = in_turn(runs_wanted(), lambda: seconds([TFRUN, "--help"]), lambda: seconds([torchrun(), "--help"]))
    report("help: tfrun --help", "s", ours, Limit(0.25), Peer("torchrun --help", theirs))
    with tempfile.TemporaryDirectory(prefix="tfrun-bench-") as folder:
        costs = imports(Path(folder))
    refused = sorted({name.split(".")[0] for name in costs} & set(NEVER))
    heaviest = dict(sorted(costs.items(), key=lambda item: -item[1])[:SHOWN])
    line = {"what": "imports of the command line of a local run", "value": len(costs), "unit": "modules", "of_those_refused": refused}
    print(json.dumps({**line, "target": f"none of {', '.join(NEVER)}", "met": not refused, "heaviest_ms": heaviest}))


def seconds(command: Sequence[object]) -> float:
    """How long a command takes."""
    start = time.monotonic()
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - start


def imports(folder: Path) -> dict[str, float]:
    """Every module that the tfrun process of a TensorFlow job imports, with its own milliseconds."""
    command = [sys.executable, "-X", "importtime", TFRUN, "run", "-n", "2", PROGRAMS / "steps.py", "--steps", "2"]
    done = subprocess.run([str(word) for word in command], cwd=folder, check=True, capture_output=True, text=True)
    rows = [line.removeprefix("import time:").split("|") for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {name.strip(): int(own) / 1000 for own, _, name in rows if own.strip().isdigit()}


if __name__ == "__main__":
    main()
