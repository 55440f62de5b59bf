"""One contender of train_speed: `train_speed.py naive|tutorial|fit|tuned|entrypoint|silent STEPS`. Each makes so many steps of train_task.

Prints JSON lines: "first" after the first step, and "speed" with the steps per second from then on (the entrypoint's and the tuned loop's
without their first calls, whose graphs are traced).
"""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import tensorflow as tf


def main():
    way, steps = sys.argv[1], int(sys.argv[2])
    {"naive": naive, "tutorial": tutorial, "fit": fit, "tuned": tuned, "entrypoint": entrypoint, "silent": silent}[way](steps)


def say(event, **more):
    print(json.dumps({"event": event, "at": time.monotonic(), **more}), flush=True)


class Clock:
    """Notes the steps done; the speed is measured from the second note on, or from the fifth where a pace is found first."""

    def __init__(self, warm=2):
        self.warm = warm
        self.notes = []

    def note(self, step):
        self.notes.append((time.monotonic(), step))
        if len(self.notes) == 1:
            say("first")

    def tell(self):
        (begin, first), (end, last) = self.notes[self.warm - 1], self.notes[-1]
        say("speed", steps_per_s=(last - first) / (end - begin))


def naive(steps):
    """A loop that calls the strategy for a step, reduces what the replicas return, and prints it."""
    by_hand(steps, reduced_in_graph=False)


def tutorial(steps):
    """The same as TensorFlow's guide to distributed training has it: the reduction is in the graph too."""
    by_hand(steps, reduced_in_graph=True)


def by_hand(steps, reduced_in_graph):
    import train_task

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = train_task.build_model()
        optimizer, compute = model.optimizer, model.loss
        compute.reduction = "none"
    size = train_task.BATCH * strategy.num_replicas_in_sync
    dataset = train_task.build_dataset("train").shuffle(train_task.EXAMPLES).batch(size).prefetch(2)
    batches = strategy.experimental_distribute_dataset(dataset)

    def replica(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(compute(y, model(x, training=True)), global_batch_size=size)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        return loss

    def reduced(losses):
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    step = tf.function(lambda batch: strategy.run(replica, args=(batch,)))
    whole_step = tf.function(lambda batch: reduced(strategy.run(replica, args=(batch,))))
    clock, done = Clock(), 0
    while done < steps:
        for batch in batches:
            done += 1
            loss = whole_step(batch) if reduced_in_graph else reduced(step(batch))
            print(f"step {done}: loss {float(loss):.4f}", flush=True)
            clock.note(done)
    clock.tell()


def fit(steps):
    """Keras as everybody writes it."""
    import keras
    import train_task

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = train_task.build_model()
    size = train_task.BATCH * strategy.num_replicas_in_sync
    dataset = train_task.build_dataset("train").shuffle(train_task.EXAMPLES).repeat().batch(size).prefetch(2)
    clock = Clock()

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):  # noqa: ARG002
            clock.note(batch + 1)

    model.fit(dataset, steps_per_epoch=steps, epochs=1, verbose=2, callbacks=[Note()])
    clock.tell()


def tuned(steps):
    """One process, as fast as it can be written by hand: the iterator in the graph, a hundred steps a call, Keras's own train_step."""
    import train_task

    model = train_task.build_model()
    model.optimizer.build(model.trainable_variables)
    batch = next(iter(train_task.build_dataset("train").batch(1)))
    model.test_step(batch)  # its metrics' variables, which a graph can't make
    dataset = train_task.build_dataset("train").cache().shuffle(10_000).repeat().batch(train_task.BATCH, drop_remainder=True).prefetch(-1)

    @tf.function
    def several(iterator, number):
        loss = tf.constant(0.0)
        for _ in tf.range(number):
            loss = model.train_step(next(iterator))["loss"]
        return loss

    clock, iterator, done = Clock(), iter(dataset), 0
    while done < steps:
        float(several(iterator, tf.constant(1 if not done else 100)))
        done += 1 if not done else 100
        clock.note(done)
    clock.tell()


def entrypoint(steps):
    """Ours, with its own clock's notes."""
    import train_task

    from worker_image import train, training

    clock = Clock(warm=4)
    done = training.Training.done

    def noted(self, step, metrics):
        done(self, step, metrics)
        clock.note(step)

    training.Training.done = noted
    per_epoch = train_task.EXAMPLES // train_task.BATCH
    task = str(Path(__file__).with_name("train_task.py"))
    try:
        train.main(["--task", task, "--batch-size", str(train_task.BATCH), "--epochs", str(-(-steps // per_epoch)), *sys.argv[3:]])
    finally:
        clock.tell()


def silent(steps):
    """The same, and nobody is told of its steps."""
    from worker_image import report

    report.progress = lambda *_, **__: None
    entrypoint(steps)


if __name__ == "__main__":
    main()
