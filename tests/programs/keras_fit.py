"""Train a small model and write what came out: `keras_fit.py FOLDER [OPTION…] SCENARIO…`, the scenarios being functions of this file.

Under TF_CONFIG it is one worker of MultiWorkerMirroredStrategy, else one process that trains on the same global batches. Then
FOLDER/<index>.json (or alone.json) has the versions, what keras_compat told, and for each scenario its results or its error.
tests/matrix.py runs it with every TensorFlow from 2.15, so it is Python 3.9 and speaks Keras 2 as well as 3.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pathlib
import sys

import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("scenarios", nargs="+")
parser.add_argument("--compat", choices=["before", "after"], help="install keras_compat before or after Keras is imported")
parser.add_argument("--keras", default="keras", choices=["keras", "tf_keras"])
parser.add_argument("--keras-version", help="let Keras say that it is this one")
parser.add_argument("--fixed", action="store_true", help="let Keras be as it will be once upstream has fixed it")
parser.add_argument("--mirrored", action="store_true", help="MirroredStrategy over two devices of one process")
options = parser.parse_args()


def install_compat():
    sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
    from worker_image import keras_compat

    keras_compat.install(notes.append)


notes: list = []
if options.compat == "before":
    install_compat()
keras = importlib.import_module(options.keras)
import tensorflow as tf  # noqa: E402 # after Keras, as a program may

if options.compat == "after":
    install_compat()
if options.keras_version:
    keras.__version__ = options.keras_version

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"] if "TF_CONFIG" in os.environ else None
if index is not None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
elif options.mirrored:
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
else:
    strategy = tf.distribute.get_strategy()

BATCH = 16  # of all workers together
random = np.random.default_rng(0)
X = random.normal(size=(6 * BATCH, 5)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int32")
WEIGHT = random.uniform(0.2, 2, size=len(X)).astype("float32")


def batches(*arrays):
    return tf.data.Dataset.from_tensor_slices(arrays).batch(BATCH)


def model(kind=None, compiled=True, **settings):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        given = keras.Input((5,))
        hidden = keras.layers.Dense(8, activation="relu")(given)
        made = (kind or keras.Model)(given, keras.layers.Dense(2)(hidden))
        if compiled:
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            made.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"], **settings)
    return made


def weights(trained):
    return [w.tolist() for w in trained.get_weights()]


def fit():
    """`fit` with validation, then `evaluate`."""
    m = model()
    history = m.fit(batches(X, Y), epochs=2, validation_data=batches(X[:64], Y[:64]), verbose=0).history
    return {"weights": weights(m), "metrics": [history, m.evaluate(batches(X, Y), verbose=0)]}


def more():
    """The other ways into Keras's loops; sample_weight, class_weight, steps_per_execution and callbacks on the way."""
    m = model(steps_per_execution=4)  # of 6 steps: the second execution is a partial one
    stop = keras.callbacks.EarlyStopping("loss", patience=0, baseline=0.0)
    best = keras.callbacks.ModelCheckpoint(str(options.folder / f"best-{index}.weights.h5"), save_weights_only=True)
    metrics = [m.fit(batches(X, Y, WEIGHT), epochs=9, callbacks=[stop, best], verbose=0).history]
    metrics.append(m.fit(X, Y, batch_size=BATCH, class_weight={0: 0.3, 1: 2.0}, shuffle=False, verbose=0).history)
    metrics.append(m.evaluate(batches(X, Y, WEIGHT), return_dict=True, verbose=0))
    metrics.append(m.predict(X[:-5], batch_size=BATCH, verbose=0).tolist())
    mine = slice(0, BATCH) if index is None else slice(BATCH // 2 * index, BATCH // 2 * (index + 1))
    metrics.append([float(value) for value in m.train_on_batch(X[mine], Y[mine])])
    eager = model(run_eagerly=True)
    metrics.append(eager.fit(batches(X, Y), verbose=0).history)
    return {"weights": [weights(m), weights(eager)], "metrics": metrics}


def custom():
    """A loop of the program's own."""
    m = model(compiled=False)
    with strategy.scope():
        optimizer = keras.optimizers.SGD(0.1)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    @tf.function
    def step(iterator):
        def one(x, y):
            with tf.GradientTape() as tape:
                value = tf.reduce_sum(loss(y, m(x, training=True))) / BATCH
            optimizer.apply_gradients(zip(tape.gradient(value, m.trainable_variables), m.trainable_variables))
            return value

        return strategy.reduce("SUM", strategy.run(one, args=next(iterator)), axis=None)

    iterator = iter(strategy.experimental_distribute_dataset(batches(X, Y)))
    losses = [float(step(iterator)) for _ in range(6)]
    return {"weights": weights(m), "metrics": losses}


def own_error():
    """A program's own ValueError that has the words of Keras's."""

    class Wrong(keras.Model):
        def train_step(self, data):
            raise ValueError("Invalid reduction dimension: PerReplica")

    model(kind=Wrong).fit(batches(X, Y), verbose=0)


def own_error_while_building():
    """The same in a model that Keras builds from the first batch."""

    class Wrong(keras.layers.Layer):
        def build(self, shape):
            raise ValueError("Attempt to convert a value (PerReplica) to a Tensor")

        def call(self, x):
            return x

    with strategy.scope():
        m = keras.Sequential([Wrong()])
        m.compile("sgd", "mse")
    m.fit(batches(X, Y), verbose=0)


def fix_upstream():
    from keras.src.backend.tensorflow import trainer

    reduce_per_replica = trainer.reduce_per_replica

    def reduce(values, strategy, reduction):
        if reduction != "auto":
            return reduce_per_replica(values, strategy, reduction)
        return tf.nest.map_structure(lambda v: strategy.reduce("MEAN", v, axis=None), values)

    def build(self, iterator=None, data_batch=None):
        first = next(next(iter(iterator))[-1])
        data_batch = tf.nest.map_structure(lambda v: strategy.experimental_local_results(v)[0], first)
        with self.distribute_strategy.scope():
            self._symbolic_build(data_batch=data_batch)

    trainer.reduce_per_replica = reduce
    trainer.TensorFlowTrainer._maybe_symbolic_build = build


if options.fixed:
    fix_upstream()
    install_compat()
outcome = {"tensorflow": tf.__version__, "keras": keras.__version__, "notes": notes}
for scenario in options.scenarios:
    try:
        outcome[scenario] = globals()[scenario]()
    except Exception as e:  # the error is the result
        outcome[scenario] = {"error": f"{type(e).__name__}: {e}"}
name = "alone" if index is None else str(index)
(options.folder / f"{name}.json").write_text(json.dumps(outcome, default=float))
