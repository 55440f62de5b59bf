"""`tfrun render` for 2 and for 1,000 workers: size of what it prints, time in the process, time of the whole command."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import PROGRAMS, TFRUN, Limit, Peer, in_turn, report, runs_wanted
from orchestrator import jobfile, submit

SMALL, LARGE = 2, 1000  # workers
PROGRAM = PROGRAMS / "cluster_steps.py"


def main() -> None:
    """Measure both sizes in turn; the small one stands as the peer of the large one."""
    runs = runs_wanted()
    with TemporaryDirectory(prefix="tfrun-bench-") as name:
        os.chdir(name)  # where the job files find the program
        (Path(name) / PROGRAM.name).write_bytes(PROGRAM.read_bytes())
        small, large = (_job_file(workers) for workers in (SMALL, LARGE))
        peer = f"{SMALL} workers"
        sizes = [[float(len(printed(file)))] for file in (large, small)]
        report(f"render: {LARGE} workers", "bytes", sizes[0], Limit(300_000), Peer(peer, sizes[1]))
        report(f"render: {LARGE} workers, size", "bytes", sizes[0], Limit(1.01, "ratio"), Peer(peer, sizes[1]))
        inside = in_turn(runs, lambda: seconds(lambda: in_process(large)), lambda: seconds(lambda: in_process(small)))
        report(f"render: {LARGE} workers, in the process", "s", inside[0], Limit(0.1), Peer(peer, inside[1]))
        whole = in_turn(runs, lambda: seconds(lambda: printed(large)), lambda: seconds(lambda: printed(small)))
        report(f"render: {LARGE} workers, the command", "s", whole[0], None, Peer(peer, whole[1]))
        static = float(len(printed(large, "--static")))
        report(f"render --static: {LARGE} workers", "bytes", [static], Limit(3_000_000), Peer("without --static", sizes[0]))


def in_process(file: Path) -> str:
    """What render does when everything is imported."""
    return submit.text(submit.objects(jobfile.load(file)))


def printed(file: Path, *options: str) -> bytes:
    """What the command prints."""
    return subprocess.run([TFRUN, "render", *options, file], check=True, stdout=subprocess.PIPE).stdout


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    start = time.monotonic()
    work()
    return time.monotonic() - start


def _job_file(workers: int) -> Path:
    image = "registry.example/team"
    kubernetes = {"image": f"{image}/train:1", "controller": {"image": f"{image}/tfrun-controller:1"}, "resources": {"memory": "8Gi"}}
    file = Path(f"job-{workers}.yaml")
    file.write_text(json.dumps({"name": "bench", "program": PROGRAM.name, "workers": workers, "kubernetes": kubernetes}))  # JSON is YAML
    return file


if __name__ == "__main__":
    main()
