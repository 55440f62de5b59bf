"""Small synchronous training under TensorFlow: a dense layer and a variable that is summed over all workers. steps.py [--steps N]

Prints "step WORKER ATTEMPT PID TIME" after the first step of each attempt; the time is the machine's monotonic clock, the same for all.
"""

import argparse
import json
import os
import sys
import time

import tensorflow as tf

from worker_image import report

PAUSE = 0.02  # seconds between two steps: a step of this model alone would leave no processor to anyone else

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=sys.maxsize)
steps = parser.parse_args().steps
worker, attempt = json.loads(os.environ["TF_CONFIG"])["task"]["index"], int(os.environ.get("TFRUN_ATTEMPT", "0"))

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    weights = tf.Variable(tf.ones([16, 4]))
    total = tf.Variable(0.0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)


def replica():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.ones([8, 16]) @ weights))
    context = tf.distribute.get_replica_context()
    gradient = context.all_reduce(tf.distribute.ReduceOp.MEAN, tape.gradient(loss, weights))
    weights.assign_sub(0.01 * gradient)
    total.assign_add(context.all_reduce(tf.distribute.ReduceOp.SUM, 1.0))


step = tf.function(lambda: strategy.run(replica))
for number in range(steps):
    step()
    if number == 0:
        print("step", worker, attempt, os.getpid(), time.monotonic(), flush=True)
    report.progress(attempt * 1_000_000 + number + 1)  # further in each attempt, so that no back-off is in the way
    time.sleep(PAUSE)
