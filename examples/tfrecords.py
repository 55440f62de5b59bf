"""Training from TFRecord files: write them once, then let every worker read its share of the files.

    python examples/tfrecords.py /tmp/digits
    DIGITS=/tmp/digits tfrun run -n 2 -m worker_image.train --task examples/tfrecords.py

The first command writes 8 files for training and 2 for the test, of scikit-learn's handwritten digits.
"""

import os
import sys
from pathlib import Path

import keras
import tensorflow as tf

FILES = {"train": 8, "test": 2}  # for training at least as many as workers, all of about the same size
FEATURES = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}


def build_model():
    layers = keras.layers
    model = keras.Sequential([keras.Input((8, 8)), layers.Flatten(), layers.Dense(64, activation="relu"), layers.Dense(10)])
    model.compile(
        optimizer=keras.optimizers.Adam(0.005),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def build_dataset(split):
    from worker_image import datasets  # not at the top: to write the files, nothing of tfrun is needed

    return datasets.tfrecords(f"{os.environ['DIGITS']}/{split}-*.tfrecord", to_pair, FEATURES)


def to_pair(example):
    image = tf.reshape(tf.io.decode_raw(example["image"], tf.uint8), (8, 8))
    return tf.cast(image, tf.float32) / 16.0, example["label"]


def write(folder):
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = digits.images.astype("uint8")
    train_x, test_x, train_y, test_y = train_test_split(images, digits.target, test_size=0.2, random_state=0)
    Path(folder).mkdir(parents=True, exist_ok=True)
    for split, x, y in (("train", train_x, train_y), ("test", test_x, test_y)):
        count = FILES[split]
        for number in range(count):
            with tf.io.TFRecordWriter(f"{folder}/{split}-{number}-of-{count}.tfrecord") as file:
                for i in range(number, len(x), count):
                    file.write(record(x[i], y[i]))


def record(image, label):
    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


if __name__ == "__main__":
    write(sys.argv[1])
