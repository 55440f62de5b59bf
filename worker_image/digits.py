"""The built-in task: scikit-learn's 1,797 real handwritten digits of 8 by 8 pixels, which come with that package."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

TEST_EXAMPLES = 360  # a fifth, as is usual; chosen by a fixed shuffle, because the file goes writer by writer


def build_model() -> Any:
    """A small convolutional network, compiled."""
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, activation="relu", padding="same"),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=tf.keras.optimizers.Adam(0.003),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def build_dataset(split: str) -> Any:
    """Pairs of a float32 image [8, 8, 1] in 0..1 and an int64 label; split is "train" (1,437) or "test" (360)."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    chosen = order[:TEST_EXAMPLES] if split == "test" else order[TEST_EXAMPLES:]
    images = digits.images[chosen].astype("uint8")
    dataset = tf.data.Dataset.from_tensor_slices((images, digits.target[chosen].astype("int64")))
    return dataset.map(_scaled, num_parallel_calls=tf.data.AUTOTUNE)


def _scaled(image: Any, label: Any) -> Any:
    return tf.cast(image, tf.float32)[..., tf.newaxis] / 16.0, label
