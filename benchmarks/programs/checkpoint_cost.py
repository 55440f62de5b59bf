"""What a checkpoint of 200 MB costs a training loop, ours and tf.train.Checkpoint.write in turn. checkpoint_cost.py FOLDER ROUNDS

Prints a line of JSON for each round: milliseconds.
"""

import json
import sys
import time
from pathlib import Path

import tensorflow as tf

from worker_image import checkpoint_files
from worker_image.checkpoint import Checkpoints, Place
from worker_image.strategies import Group

SIZE = 200e6  # bytes
LAYERS = 5
STEPS = 40  # after a save: longer than its writing takes
LAYOUT = {"workers": 1}

folder, rounds = Path(sys.argv[1]), int(sys.argv[2])
width = int((SIZE / 4 / LAYERS) ** 0.5)
model = tf.keras.Sequential([tf.keras.Input((width,)), *(tf.keras.layers.Dense(width) for _ in range(LAYERS))])
model.compile(optimizer=tf.keras.optimizers.SGD(1e-6), loss="mse")
model.optimizer.build(model.trainable_variables)
batch = (tf.ones([8, width]), tf.ones([8, width]))
step = tf.function(lambda: model.train_step(batch)["loss"])
for name in ("ours", "theirs"):
    checkpoint_files.prepare_directory(str(folder / name))
ours = Checkpoints(str(folder / "ours"), Group(tf.distribute.get_strategy()), model, {}, keep=2)
theirs = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
done = 0


def timed(action):
    """Milliseconds that it takes."""
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1e3


def steps():
    for _ in range(STEPS):
        step().numpy()


def save():
    global done
    done += 1
    ours.save(Place(done, 0, done), LAYOUT, {})


def cost(action):
    """(time in the call, how much longer the loop takes with it, while the writing goes on too)."""
    without = timed(steps)
    call = timed(action)
    after = timed(steps)
    without = (without + timed(steps)) / 2
    return call, call + after - without


def resume():
    assert Checkpoints(str(folder / "ours"), Group(tf.distribute.get_strategy()), model, {}).restore()


def read():
    newest = checkpoint_files.folder_of(str(folder / "ours"), done)
    assert sum(len(path.read_bytes()) for path in Path(newest).iterdir()) > SIZE


step()
for _ in range(rounds):
    call, loop = cost(save)
    finish = timed(ours.close)  # as good as nothing, if the writing was over
    their_call, their_loop = cost(lambda: theirs.write(str(folder / "theirs" / f"weights-{done % 2}")))
    found = {"call": call, "loop": loop, "finish": finish, "their_call": their_call, "their_loop": their_loop}
    print(json.dumps({**found, "resume": timed(resume), "read": timed(read)}), flush=True)
