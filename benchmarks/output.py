"""2 workers print 1,000,000 lines each, to a file and to a pipe that is read: time, lost or torn lines, memory of the launcher.

torchrun beside it with --tee 3, which also writes logs and prefixes. Every line of both is compared with what it must be.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import PROGRAMS, TFRUN, Limit, Peer, high_water, report, runs_wanted
from benchmarks.peer import torchrun
from benchmarks.programs.lines import line_of

WORKERS = 2
LINES = 1_000_000
PROGRAM = (PROGRAMS / "lines.py", LINES)
LINE = re.compile(rb"(?:\[(?P<tfrun>\d)\] |\[default(?P<torchrun>\d)\]:)(?P<text>worker \d step (?P<number>\d+) .*)\n")
LOOK = 0.02  # seconds between two looks at the launcher's memory


def main() -> None:
    """Measure both in turn, with each kind of stdout."""
    runs = runs_wanted()
    for sink in ("file", "pipe"):
        found: dict[str, list[tuple[float, float, int]]] = {"tfrun": [], "torchrun": []}
        for _ in range(runs):
            found["tfrun"].append(run((TFRUN, "run", "-n", WORKERS, *PROGRAM), sink))
            tee = ("--nproc-per-node", WORKERS, "--tee", 3, "--log-dir", "logs")
            found["torchrun"].append(run((torchrun(), *tee, *PROGRAM), sink))
        seconds, memory, wrong = ({name: [values[i] for values in rows] for name, rows in found.items()} for i in range(3))
        what = f"output: {WORKERS} x {LINES} lines to a {sink}"
        report(what, "s", seconds["tfrun"], Limit(1.0, "ratio"), Peer("torchrun --tee 3", seconds["torchrun"]))
        report(f"{what}, lost or torn", "lines", wrong["tfrun"], Limit(0), Peer("torchrun --tee 3", wrong["torchrun"]))
        report(f"{what}, launcher's peak memory", "MB", memory["tfrun"], Limit(80), Peer("torchrun --tee 3", memory["torchrun"]))


def run(command: Sequence[object], sink: str) -> tuple[float, float, int]:
    """Returns seconds, the launcher's most memory in MB, and how many lines are not as they must be."""
    with TemporaryDirectory(prefix="tfrun-bench-") as folder:
        captured = Path(folder) / "captured"
        start = time.monotonic()
        with captured.open("wb") as file, (Path(folder) / "errors").open("wb") as errors:
            out = subprocess.PIPE if sink == "pipe" else file
            launcher = subprocess.Popen([str(word) for word in command], cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=errors)
            reader = subprocess.Popen(["cat"], stdin=launcher.stdout, stdout=file) if sink == "pipe" else None
            if launcher.stdout:
                launcher.stdout.close()  # the reader's now
            memory = _follow_memory(launcher)
            if reader:
                reader.wait()
        seconds = time.monotonic() - start
        assert launcher.returncode == 0, (Path(folder) / "errors").read_text()[-2000:]
        return seconds, memory, wrong_lines(captured)


def wrong_lines(captured: Path) -> int:
    """How many lines of the workers are not there whole, with their worker's prefix, and after the line before."""
    last = [-1] * WORKERS
    right = 0
    with captured.open("rb") as file:
        for line in file:
            match = LINE.match(line)
            if not match:
                continue
            worker, number = int(match["tfrun"] or match["torchrun"]), int(match["number"])
            if number > last[worker] and match["text"] == line_of(worker, number).encode():
                last[worker] = number
                right += 1
    return WORKERS * LINES - right


def _follow_memory(launcher: subprocess.Popen[bytes]) -> float:
    most = 0.0
    while launcher.poll() is None:
        with suppress(OSError, RuntimeError):  # it ends just now
            most = high_water(launcher.pid)
        time.sleep(LOOK)
    return most


if __name__ == "__main__":
    main()
