"""Small synchronous training on a cluster: the model is a counter, to which every replica adds 1 in every step.

Prints JSON lines: "first" after the first step of each process, "done" at the end, with the machine's monotonic clock. With --directory,
which all workers share, it keeps checkpoints there, saves when it is asked to, and says how many steps were lost: made by the processes
before, but not in the checkpoint that it begins with.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import tensorflow as tf

try:
    from worker_image import report
except ImportError:  # the peer's
    report = None

PAUSE = 0.02  # seconds between two steps: a step of this model alone would leave no processor to anyone else
SAVED = 42  # the exit code by which tfrun knows that this worker left as asked


def main():
    options = arguments()
    config = json.loads(os.environ["TF_CONFIG"])
    worker, workers = config["task"]["index"], len(config["cluster"]["worker"])
    steps_made = StepsMade(options.directory, worker)
    before = steps_made.by_anyone()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        counter = tf.Variable(0, dtype=tf.int64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    checkpoints = Checkpoints(options.directory, counter, chief=worker == 0)
    start = checkpoints.restore()
    say = Say(worker=worker, attempt=int(os.environ.get("TFRUN_ATTEMPT", "0")), start=start, lost=max(before - start, 0))
    train(strategy, counter, checkpoints, steps_made, say, options)
    found = int(counter.numpy())
    say("done", counter=found, exact=found == workers * options.steps)


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=sys.maxsize)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--every", type=int, default=50, help="steps between two checkpoints")
    parser.add_argument("--pause", type=float, default=PAUSE)
    return parser.parse_args()


def train(strategy, counter, checkpoints, steps_made, say, options):
    def replica():
        context = tf.distribute.get_replica_context()
        counter.assign_add(context.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(1, tf.int64)))

    step = tf.function(lambda: strategy.run(replica))
    # Without checkpoints each attempt counts from a higher number, so that no back-off is in the way.
    offset = 0 if options.directory else say.known["attempt"] * 1_000_000
    for done in range(say.known["start"] + 1, options.steps + 1):
        step()
        steps_made.note(done)
        if done == say.known["start"] + 1:
            say("first")
        time.sleep(options.pause)
        asked = report.save_due() if report and options.directory else False
        if report:
            report.progress(offset + done)
        if asked or done % options.every == 0 or done == options.steps:
            checkpoints.save(done)
        if asked:
            report.saved(done)
            say("saved", step=done)
            sys.exit(SAVED)


class Say:
    """Prints what happened, with what is known of this process."""

    def __init__(self, **known):
        self.known = {**known, "pid": os.getpid()}

    def __call__(self, event, **more):
        print(json.dumps({"event": event, **self.known, "at": time.monotonic(), **more}), flush=True)


class Checkpoints:
    """Of the counter, by step; the first worker writes them. Without a directory there are none."""

    def __init__(self, directory, counter, chief):
        self.chief = chief
        self.content = tf.train.Checkpoint(counter=counter)
        self.manager = tf.train.CheckpointManager(self.content, str(directory), max_to_keep=3) if directory else None

    def restore(self):
        newest = self.manager.latest_checkpoint if self.manager else None
        if newest is None:
            return 0
        self.content.restore(newest).expect_partial()
        return int(newest.rpartition("-")[2])

    def save(self, step):
        if self.manager and self.chief:
            self.manager.save(checkpoint_number=step)


class StepsMade:
    """How far each worker came, in a file that survives it."""

    def __init__(self, directory, worker):
        self.directory = directory
        self.file = os.open(directory / f"made-{worker}", os.O_RDWR | os.O_CREAT) if directory else None

    def by_anyone(self):
        files = self.directory.glob("made-*") if self.directory else ()
        return max((int(file.read_text() or 0) for file in files), default=0)

    def note(self, step):
        if self.file is not None:
            os.pwrite(self.file, b"%020d" % step, 0)


if __name__ == "__main__":
    main()
