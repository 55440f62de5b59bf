"""A task of one's own: is a point inside the circle?

tfrun run -n 2 -m worker_image.train --task examples/my_task.py
"""

import keras
import tensorflow as tf


def build_model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1)])
    model.compile(
        optimizer=keras.optimizers.Adam(0.01),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)],
    )
    return model


def build_dataset(split):
    seed = 1 if split == "train" else 2
    points = tf.random.stateless_uniform([4000 if split == "train" else 1000, 2], [seed, 0], -1.0, 1.0)
    inside = tf.cast(tf.norm(points, axis=1) < 0.8, tf.float32)[:, tf.newaxis]
    return tf.data.Dataset.from_tensor_slices((points, inside))
