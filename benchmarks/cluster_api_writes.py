"""Requests to the API server, from its audit log: writes until training runs, and what a job asks while nothing happens.

For 2 and 8 workers, sent with `tfrun submit` and with `kubectl apply`. Counted are the user's and the job's own; what the control plane and
the nodes do themselves is not.
"""

from __future__ import annotations

import time
from collections import Counter
from itertools import product

from benchmarks.cluster import IDLE, apply, job_file, namespace, render, submit
from benchmarks.measure import Limit, report, runs_wanted
from benchmarks.pods import Lines
from tests.cluster import layout
from tests.cluster.objects import Entry, Namespace

RUNS = 1  # they are counts
GROUPS = (2, 8)  # workers
WATCHED = 120.0  # seconds of training without news
WRITES = ("create", "update", "patch", "delete", "deletecollection")
USER = f"{layout.NAME}-admin"  # who kubectl is here
_MINUTE = 60.0
Requests = Counter[tuple[str, str, str]]  # by user, verb, resource


def main() -> None:
    """Count for each size of the group."""
    for workers, way in product(GROUPS, ("submit", "apply")):
        launches, quiet = zip(*(requests(workers, way) for _ in range(runs_wanted(RUNS))), strict=True)
        what, minutes = f"cluster_api_writes: {workers} workers, {way}", WATCHED / _MINUTE
        report(f"{what}, writes until training", "writes", [_writes(each) for each in launches], Limit(14), requests=_told(launches[0]))
        writes, reads = [_writes(each) / minutes for each in quiet], [(each.total() - _writes(each)) / minutes for each in quiet]
        report(f"{what}, writes while nothing happens", "writes/minute", writes, Limit(2), requests=_told(quiet[0]))
        report(f"{what}, reads while nothing happens", "reads/minute", reads)


def requests(workers: int, way: str) -> tuple[Requests, Requests]:
    """Those from the command until training runs, and those while it goes on."""
    part = {"program": IDLE, "workers": workers, "resources": {"cpu": "200m", "memory": "256Mi"}}
    with namespace() as where, job_file(where, **part) as file:
        text = render(where, **part)
        before = len(_of_the_job(where))
        start = submit(file) if way == "submit" else apply(text)
        Lines(where).first_steps(start, workers)
        time.sleep(1.0)  # a status that follows
        launched = len(_of_the_job(where))
        time.sleep(WATCHED)
        found = [(each.user.rpartition(":")[2], each.verb, each.resource) for each in _of_the_job(where)]
    return Counter(found[before:launched]), Counter(found[launched:])


def _of_the_job(where: Namespace) -> list[Entry]:
    mine = (f"system:serviceaccount:{where.name}:", USER)
    return [each for each in where.audit() if each.user.startswith(mine) and each.resource != "namespaces"]


def _writes(counts: Requests) -> int:
    return sum(count for (_, verb, _), count in counts.items() if verb in WRITES)


def _told(counts: Requests) -> dict[str, int]:
    return {" ".join(key): count for key, count in sorted(counts.items())}


if __name__ == "__main__":
    main()
