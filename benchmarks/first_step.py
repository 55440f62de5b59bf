"""Launch → first step on all workers of the same small model: `tfrun run`, and bare processes with a TF_CONFIG written by hand."""

from __future__ import annotations

import json
from contextlib import ExitStack

from benchmarks.measure import TFRUN, Limit, Peer, free_ports, in_turn, job, report, runs_wanted
from benchmarks.training import STEPS, first_steps

GROUPS = (2, 4)


def main() -> None:
    """Measure both in turn, for each size of the group."""
    runs = runs_wanted()
    for workers in GROUPS:
        ours, theirs = in_turn(runs, lambda n=workers: tfrun(n), lambda n=workers: bare(n))
        report(f"first_step: {workers} workers", "s", ours, Limit(0.3, "difference"), Peer("bare processes", theirs))


def tfrun(workers: int) -> float:
    """Seconds from the command to the last worker's first step."""
    with job((TFRUN, "run", "-n", workers, STEPS)) as run:
        steps = first_steps(run, workers)
        return max(step.at for step in steps.values()) - run.started


def bare(workers: int) -> float:
    """The same without a launcher: all started together, each with its TF_CONFIG."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(workers)]}
    with ExitStack() as stack:
        runs = []
        for i in range(workers):
            config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}})
            runs.append(stack.enter_context(job((TFRUN.with_name("python"), STEPS), {"TF_CONFIG": config})))
        ends = [first_steps(run, 1) for run in runs]
        for run in runs:
            run.process.kill()  # TensorFlow swallows the SIGTERM with which a job is stopped here
        return max(step.at for end in ends for step in end.values()) - runs[0].started


if __name__ == "__main__":
    main()
