"""SIGSTOP of one worker's program → noticed, and the first step of the next attempt on all workers. torchrun is watched for 30 s."""

from __future__ import annotations

import math
import os
import signal

from benchmarks.measure import Limit, report, runs_wanted
from benchmarks.training import first_steps, recoveries, tfrun_job, torchrun_job

STOPS = 2  # in one job
WATCHED = 30.0  # seconds


def main() -> None:
    """Measure."""
    values: list[float] = []
    for _ in range(math.ceil(runs_wanted() / STOPS)):
        with tfrun_job(2) as run:
            values += recoveries(run, 2, signal.SIGSTOP, STOPS, standby=True)
    seen = f"torchrun: {'recovered' if torchrun_recovers() else 'nothing'} within {WATCHED:g} s (1 run)"
    report("recovery_stop: 2 workers, standby", "s", values, Limit(5.0), peer_seen=seen)


def torchrun_recovers() -> bool:
    """Whether torchrun notices at all; one observation, since it waits for as long as one lets it."""
    with torchrun_job(2) as run:
        stopped = first_steps(run, 2)[1].pid
        os.kill(stopped, signal.SIGSTOP)
        try:
            run.line(WATCHED)
        except RuntimeError:
            os.kill(stopped, signal.SIGKILL)  # torchrun itself would leave it behind
            return False
        return True


if __name__ == "__main__":
    main()
