"""Steps per second of the training entrypoint beside what a user would write: two workers on two cores, and one process alone."""

from __future__ import annotations

import json

from benchmarks.measure import PROGRAMS, TFRUN, Limit, Peer, in_turn, job, report, runs_wanted

PROGRAM = PROGRAMS / "train_speed.py"
SHORT, LONG = 400, 3000  # steps: of a slow contender, and of a fast one, which has calls of a quarter of a second
ALONE = 10_000  # steps of one process, of which two differ by little


def main() -> None:
    """Measure all in turn, medians of 5."""
    runs = runs_wanted(5)
    together(runs)
    alone(runs)


def together(runs: int) -> None:
    """Two workers, 64 examples each."""
    ways = {"entrypoint": LONG, "naive": SHORT, "tutorial": SHORT, "fit": SHORT}
    found = in_turn(runs, *(lambda way=way, steps=steps: speed(way, steps, workers=2) for way, steps in ways.items()))  # type: ignore[misc]
    ours, naive, tutorial, fit = ([value for value, _ in each] for each in found)
    report("train_speed: 2 workers, a step", "ms", ours, Limit(1 / 4, "ratio"), Peer("strategy.run, strategy.reduce, print", naive))
    report("train_speed: 2 workers, a step", "ms", ours, None, Peer("the same, reduced in the graph", tutorial))
    report("train_speed: 2 workers, a step", "ms", ours, Limit(1 / 1.5, "ratio"), Peer("Keras fit", fit))
    first = [[at for _, at in each] for each in found]
    report("train_speed: 2 workers, command to first step", "s", first[0], Limit(1.0, "ratio"), Peer("reduced in the graph", first[2]))


def alone(runs: int) -> None:
    """One process with both cores, without tfrun; and one worker of tfrun, which reports its steps or keeps them to itself."""
    ours, tuned, reported, silent = in_turn(
        runs,
        lambda: speed("entrypoint", ALONE)[0],
        lambda: speed("tuned", ALONE)[0],
        lambda: speed("entrypoint", ALONE, workers=1)[0],
        lambda: speed("silent", ALONE, workers=1)[0],
    )
    report("train_speed: 1 process, a step", "ms", ours, Limit(1.02, "ratio"), Peer("a tuned script", tuned))
    report("train_speed: 1 worker, reporting on, a step", "ms", reported, Limit(1.01, "ratio"), Peer("off", silent))


def speed(way: str, steps: int, workers: int = 0) -> tuple[float, float]:
    """(milliseconds a step, seconds until the first one is made) of the slowest worker; 0 workers: without tfrun."""
    command = (TFRUN, "run", "--no-standby", "-n", workers, PROGRAM) if workers else (TFRUN.with_name("python"), PROGRAM)
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(PROGRAM.parents[2])}
    with job((*command, way, steps), environment) as run:
        speeds: list[float] = []
        first = 0.0
        while len(speeds) < max(workers, 1):
            at, line = run.line()
            if '{"event"' in line:
                said = json.loads(line[line.index("{") :])
                if said["event"] == "first":
                    first = max(first, at - run.started)
                else:
                    speeds.append(1000 / said["steps_per_s"])
        run.finish()
        return max(speeds), first


if __name__ == "__main__":
    main()
