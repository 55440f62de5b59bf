"""MNIST with dense layers, the network of every tutorial.

    tfrun run -n 2 -m worker_image.train --task examples/mnist_dense.py --epochs 5

MNIST is downloaded once. Where there is no network, put mnist.npz into ~/.keras/datasets first.
"""

import keras

from worker_image import datasets


def build_model():
    model = keras.Sequential(
        [
            keras.Input((28, 28)),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer="adam",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def build_dataset(split):
    return datasets.mnist(split)
