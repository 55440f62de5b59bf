"""Where examples come from: each function returns what a task's build_dataset(split) has to return.

    from worker_image import datasets

    def build_dataset(split):
        return datasets.npz("points.npz", split)

Each gives a tf.data.Dataset of single pairs (x, y) for the split "train" or "test", in an order that is the same on every worker. The
entrypoint shuffles, batches, caches and shares them out. What can't work raises WrongInputError, which the user sees as one sentence.
"""

from __future__ import annotations

import importlib
import os
import re
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np
import tensorflow as tf

from worker_image import dataset_files, downloads
from worker_image.train_errors import WrongInputError

READ_AT_ONCE = 8  # files
Pair = Tuple[Any, Any]

_MNIST = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
_MNIST_SHA256 = "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"
_CIFAR = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
_CIFAR_SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"


def mnist(split: str) -> Any:
    """Handwritten digits: float32 [28, 28] in 0..1 and an int64 label 0..9; 60,000 for training and 10,000 for the test.

    The file is Keras's mnist.npz, in its cache ($KERAS_HOME or ~/.keras, in "datasets") or else downloaded there, once for all workers.
    """
    dataset_files.check_split(split)
    x, y = dataset_files.npz_arrays(downloads.cached(["mnist.npz"], _MNIST, _MNIST_SHA256), split)
    return _scaled(x, y)


def cifar10(split: str) -> Any:
    """Small photographs: float32 [32, 32, 3] in 0..1 and an int64 label 0..9; 50,000 for training and 10,000 for the test.

    The file is cifar-10-python.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html (162 MB), in Keras's cache or downloaded there.
    """
    dataset_files.check_split(split)
    x, y = dataset_files.cifar_arrays(downloads.cached(dataset_files.CIFAR_NAMES, _CIFAR, _CIFAR_SHA256), split)
    return _scaled(x, y)


def tfds(name: str, split: str) -> Any:
    """A dataset of the package tensorflow-datasets, as its pairs (input, label), of the shapes and types that its catalogue tells.

    It is read where that package keeps it (TFDS_DATA_DIR), and else downloaded and prepared, once for all workers of a machine.
    """
    try:
        library = importlib.import_module("tensorflow_datasets")
    except ModuleNotFoundError as e:
        raise WrongInputError(f"tfds({name!r}) needs {e.name}, which is not installed: pip install tensorflow-datasets") from e
    try:
        with downloads.alone(f"tfds-{name}"):
            return library.load(name, split=split, as_supervised=True)
    except Exception as e:  # what it raises has no common class: no such name, no such split, no pairs, no network
        reason = (str(e).strip().splitlines() or ["no reason given"])[0]
        raise WrongInputError(
            f"tfds({name!r}, {split!r}) can't be loaded ({type(e).__name__}: {reason:.200}); check the name in its catalogue, or "
            "prepare it where there is a network and set TFDS_DATA_DIR to that folder"
        ) from e


def npz(path: str, split: str) -> Any:
    """The rows of arrays in a local .npz file (numpy.savez), of the shapes and types that they have there.

    The arrays are x_train, y_train, x_test and y_test; or x and y, of which a fifth, chosen by a fixed shuffle, is for the test.
    Pickled objects are not read, since they can run any code.
    """
    dataset_files.check_split(split)
    return tf.data.Dataset.from_tensor_slices(dataset_files.npz_arrays(path, split))


def tfrecords(pattern: str, parse: Callable[[Any], Pair], features: Optional[Dict[str, Any]] = None) -> Any:
    """The records of all files that a glob pattern names ("data/train-*.tfrecord", also "gs://…"); gzip where the name ends in .gz.

    parse: makes a pair (x, y) of one record: of its bytes (a string scalar), or with `features` of the tensors by name that
    tf.io.parse_single_example gives for them. The files are read 8 at once, in an order that is always the same. Workers share out the
    files where there are enough of them: write at least as many as workers, of about the same size.
    """
    files = sorted(tf.io.gfile.glob(pattern))
    if not files:
        raise WrongInputError(f"no file matches {pattern}, seen from {os.getcwd()}; check the folder and the pattern")
    compression = dataset_files.compression(pattern, files)
    if not compression:
        dataset_files.check_framing([path for path in files if os.path.isfile(path)])

    def pair(record: Any) -> Pair:
        return parse(tf.io.parse_single_example(record, features) if features else record)

    records = tf.data.Dataset.from_tensor_slices(files).interleave(
        lambda path: tf.data.TFRecordDataset(path, compression_type=compression),
        cycle_length=min(READ_AT_ONCE, len(files)),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    pairs = records.map(pair, num_parallel_calls=tf.data.AUTOTUNE)
    _check_first(pairs, files[0])
    return pairs


def images(folder: str, split: str, size: Tuple[int, int], channels: int = 3) -> Any:
    """Image files in one folder for each class: float32 [*size, channels] in 0..1, and an int64 label, the class's place in `classes`.

    folder: holds train/CLASS/*.png and test/CLASS/*.png; or CLASS/*.png, of which a fifth of each class, chosen by the files' names, is
    for the test. size: (height, width) in pixels, to which all are scaled. channels: 1 (grey) or 3 (RGB). JPEG, PNG, GIF (its first
    picture) and BMP are read, also from gs://.
    """
    dataset_files.check_split(split)
    paths, labels = dataset_files.image_files(folder, split)
    dataset_files.check_images(paths)

    def decoded(path: Any, label: Any) -> Pair:
        image = tf.io.decode_image(tf.io.read_file(path), channels=channels, expand_animations=False)
        image = tf.ensure_shape(image, (None, None, channels))
        return tf.image.resize(image, size) / 255.0, label

    dataset = tf.data.Dataset.from_tensor_slices((paths, np.array(labels, "int64")))
    return dataset.map(decoded, num_parallel_calls=tf.data.AUTOTUNE)


def classes(folder: str) -> List[str]:
    """The names of the classes in a folder for `images`, sorted."""
    return dataset_files.classes(folder)


def _scaled(x: Any, y: Any) -> Any:
    """Scaled one by one, so that only bytes are held in memory."""
    pairs = tf.data.Dataset.from_tensor_slices((x, y.reshape(-1).astype("int64")))
    return pairs.map(lambda image, label: (tf.cast(image, tf.float32) / 255.0, label), num_parallel_calls=tf.data.AUTOTUNE)


def _check_first(pairs: Any, path: str) -> None:
    """Raises WrongInputError where the first record can't be made a pair: what is wrong with one is mostly wrong with all."""
    try:
        next(iter(pairs.take(1)), None)
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as e:
        reason = re.sub(r"{{.*?}}|\[Op:.*", "", e.message.splitlines()[0]).strip()  # where in TensorFlow it happened
        raise WrongInputError(f"the first record of {path} can't be read ({reason:.200}); check features and parse, and the file") from e
