"""`kubectl apply` of a rendered job, images cached → the first step on both workers.

Beside it a plain Indexed Job with static names, once with workers that wait for the names first, once with TensorFlow asking.
"""

from __future__ import annotations

from benchmarks import plain_job
from benchmarks.cluster import apply, namespace, render
from benchmarks.measure import Limit, Peer, in_turn, report, runs_wanted
from benchmarks.pods import Lines


def main() -> None:
    """Measure all in turn."""
    values = in_turn(runs_wanted(), tfrun, lambda: indexed(wait=True), lambda: indexed(wait=False))
    for name, theirs in (("plain Indexed Job, names waited for", values[1]), ("plain Indexed Job, TensorFlow asks for names", values[2])):
        report("cluster_start: apply to first step, 2 workers", "s", values[0], Limit(3.8), Peer(name, theirs))


def tfrun() -> float:
    """Seconds of a job of tfrun."""
    with namespace() as where:
        text = render(where)
        start = apply(text)
        return max(step.at for step in Lines(where).first_steps(start).values()) - start


def indexed(wait: bool) -> float:
    """Seconds of a plain Indexed Job with a headless Service."""
    with namespace() as where:
        start = apply(plain_job.objects(where, wait=wait))
        return max(step.at for step in Lines(where).first_steps(start).values()) - start


if __name__ == "__main__":
    main()
