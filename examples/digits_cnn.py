"""A convolutional network on scikit-learn's 1,797 real handwritten digits of 8 by 8 pixels, which come with that package.

tfrun run -n 2 -m worker_image.train --task examples/digits_cnn.py
"""

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def build_model():
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, activation="relu", padding="same"),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(0.003),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def build_dataset(split):
    digits = load_digits()
    images = (digits.images[..., None] / 16.0).astype("float32")
    train_x, test_x, train_y, test_y = train_test_split(images, digits.target, test_size=0.2, random_state=0)
    return tf.data.Dataset.from_tensor_slices((train_x, train_y) if split == "train" else (test_x, test_y))
