"""Steps that jitter between 1 ms and 3 s, on workers that sleep in between and so look idle: how often is the training started again?

false_alarms [--minutes 10]
"""

from __future__ import annotations

import argparse
import json

from benchmarks.measure import PROGRAMS, TFRUN, job

WORKERS = 2


def main() -> None:
    """One run; nobody else watches for steps, so there is no peer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--runs", type=int, help="taken for the sake of `python -m benchmarks --runs`; it is always one")
    minutes = parser.parse_args().minutes
    with job((TFRUN, "run", "-n", WORKERS, PROGRAMS / "jitter.py", minutes)) as run:
        steps = [int(run.line(60 * minutes + 60)[1].split()[-1]) for _ in range(WORKERS)]
        assert run.finish() == 0, run.errors()
    restarts = run.errors().count("starting again")
    line = {"what": f"false_alarms: restarts in {minutes:g} minutes of steps from 1 ms to 3 s", "value": restarts, "unit": "restarts"}
    print(json.dumps({**line, "runs": 1, "steps": sum(steps), "target": "value <= 0", "met": restarts == 0}))


if __name__ == "__main__":
    main()
