"""Does training lose or repeat a step when workers die? Its model is one counter, to which every replica adds 1 in every step.

    tfrun run -n 2 examples/counter.py --steps 200 --checkpoint-dir /tmp/counter

However often the run is killed and resumed, the counter ends at replicas times steps, or the program says what it is instead and fails.
It needs nothing of tfrun: `report` tells it of the progress, and lets it ask for a checkpoint before a worker leaves.
"""

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

import tensorflow as tf

try:
    from worker_image import report
except ImportError:
    report = None

LEFT_AFTER_SAVE = 42  # the exit code by which tfrun knows that this worker left as asked


def main():
    options = arguments()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        counter = tf.Variable(0, dtype=tf.int64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    checkpoints = Checkpoints(options.checkpoint_dir, counter, strategy.cluster_resolver)
    first = checkpoints.restore()
    print(f"starting after step {first}", flush=True)
    train(strategy, counter, checkpoints, range(first, options.steps), options)
    replicas, found = strategy.num_replicas_in_sync, int(counter.numpy())
    if found != replicas * options.steps:
        sys.exit(f"counter {found} is not replicas {replicas} × steps {options.steps} = {replicas * options.steps}")
    print(f"counter {found} = replicas {replicas} × steps {options.steps}", flush=True)


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint-dir", default=os.environ.get("TFRUN_CHECKPOINT_DIR", "counter-checkpoints"))
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that a step takes longer")
    return parser.parse_args()


def train(strategy, counter, checkpoints, steps, options):
    def replica():
        context = tf.distribute.get_replica_context()
        counter.assign_add(context.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(1, tf.int64)))

    one_step = tf.function(lambda: strategy.run(replica))
    for step in steps:
        one_step()
        time.sleep(options.pause)
        done = step + 1
        asked = report.save_due() if report else False
        if report:
            report.progress(done, options.steps, counter=float(counter.numpy()))
        if asked or done % options.every == 0 or done == options.steps:
            checkpoints.save(done)
        if asked:
            report.saved(done)
            sys.exit(LEFT_AFTER_SAVE)


class Checkpoints:
    """Each in a folder that gets its final name, step-N, only when everything in it is on the disk.

    All workers take part, as they must with variables that differ by replica, and the first one's files are kept.
    """

    def __init__(self, directory, counter, resolver):
        role, index = resolver.task_type or "worker", resolver.task_id or 0
        first_role = "chief" if "chief" in resolver.cluster_spec().jobs else "worker"
        self.chief = (role, index) == (first_role, 0)
        self.content = tf.train.Checkpoint(counter=counter)
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.temporary = self.directory / f".{role}-{index}"  # what a killed worker left, its successor removes

    def restore(self):
        """Load the newest; returns its step. The strategy exists, so all workers of this attempt do, and nobody writes."""
        steps = self.steps()
        if steps:
            self.content.read(str(self.folder(steps[-1]) / "variables")).assert_consumed()
        return steps[-1] if steps else 0

    def save(self, step):
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir()
        self.content.write(str(self.temporary / "variables"))
        if not self.chief:
            shutil.rmtree(self.temporary)
            return
        for path in [*self.temporary.iterdir(), self.temporary]:
            sync(path)
        self.temporary.rename(self.folder(step))
        sync(self.directory)
        print(f"checkpoint at step {step}", flush=True)
        for old in self.steps()[:-3]:
            shutil.rmtree(self.folder(old))

    def steps(self):
        return sorted(int(path.name[5:]) for path in self.directory.glob("step-*"))

    def folder(self, step):
        return self.directory / f"step-{step}"


def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


if __name__ == "__main__":
    main()
