"""SIGKILL of one worker's program → first step of the next attempt on all workers, with and without standby, torchrun beside it.

Several kills in one job, each worker in turn. With standby a kill waits until every standby has imported TensorFlow.
"""

from __future__ import annotations

import math
import signal

from benchmarks.measure import Limit, Peer, report, runs_wanted
from benchmarks.training import import_time, recoveries, tfrun_job, torchrun_job

KILLS = 2  # in one job
WITH_STANDBY = {2: 0.5, 4: 1.5}  # workers → seconds allowed
WITHOUT = 0.5  # seconds allowed beyond the import


def main() -> None:
    """Measure all in turn."""
    values: dict[str, list[float]] = {}
    for _ in range(math.ceil(runs_wanted() / KILLS)):
        for workers in WITH_STANDBY:
            values.setdefault(f"standby {workers}", []).extend(tfrun_kills(workers, standby=True))
            values.setdefault(f"torchrun {workers}", []).extend(torchrun_kills(workers))
        values.setdefault("fresh 2", []).extend(tfrun_kills(2, standby=False))
        values.setdefault("import 2", []).extend(import_time(2) for _ in range(KILLS))
        values.setdefault("import 1", []).extend(import_time(1) for _ in range(KILLS))
    for workers, allowed in WITH_STANDBY.items():
        peer = Peer("torchrun", values[f"torchrun {workers}"])
        report(f"recovery_kill: {workers} workers, standby", "s", values[f"standby {workers}"], Limit(allowed), peer)
    fresh, limit = values["fresh 2"], Limit(WITHOUT, "difference")
    report("recovery_kill: 2 workers, --no-standby", "s", fresh, limit, Peer("import tensorflow in 2 processes", values["import 2"]))
    report("recovery_kill: 2 workers, --no-standby", "s", fresh, limit, Peer("import tensorflow in 1 process", values["import 1"]))
    report("recovery_kill: 2 workers, --no-standby", "s", fresh, None, Peer("torchrun", values["torchrun 2"]))


def tfrun_kills(workers: int, standby: bool) -> list[float]:
    """Some recoveries of tfrun."""
    with tfrun_job(workers, standby) as run:
        return recoveries(run, workers, signal.SIGKILL, KILLS, standby)


def torchrun_kills(workers: int) -> list[float]:
    """Some recoveries of torchrun."""
    with torchrun_job(workers) as run:
        return recoveries(run, workers, signal.SIGKILL, KILLS, standby=False)


if __name__ == "__main__":
    main()
