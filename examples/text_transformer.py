"""A small transformer that reads text: is a line of Python's own library prose (a docstring's) or code?

    tfrun run -n 2 -m worker_image.train --task examples/text_transformer.py --epochs 3

The text is on every machine with Python. It is read as bytes, so there is no vocabulary to build. Lines of every fifth module are the test.
"""

import ast
import random
import sysconfig
from pathlib import Path

import keras
import tensorflow as tf

LENGTH = 48  # bytes of a line; longer ones are cut off
WIDTH = 32  # of the vector that stands for one byte
MODULES = 120
LINES = {"train": 6000, "test": 1500}  # half prose, half code: guessing is right half of the time


def build_model():
    layers = keras.layers
    text = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(256, WIDTH)(text) + Positions()(text)
    attended = layers.MultiHeadAttention(num_heads=2, key_dim=WIDTH // 2)(layers.LayerNormalization()(x), x)
    x = x + attended
    x = x + layers.Dense(WIDTH)(layers.Dense(2 * WIDTH, activation="relu")(layers.LayerNormalization()(x)))
    answer = layers.Dense(1)(layers.GlobalMaxPooling1D()(x))
    model = keras.Model(text, answer)
    model.compile(
        optimizer=keras.optimizers.Adam(0.003),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)],
    )
    return model


class Positions(keras.layers.Layer):
    """A learned vector for each place in the line: attention alone sees a set of bytes, not their order."""

    def build(self, input_shape):
        self.vectors = self.add_weight(name="vectors", shape=(input_shape[-1], WIDTH), initializer="uniform")

    def call(self, text):
        return tf.zeros_like(text, tf.float32)[..., tf.newaxis] + self.vectors


def build_dataset(split):
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*.py"))[:MODULES]
    prose, code = set(), set()
    for number, path in enumerate(modules):
        if (number % 5 == 0) == (split == "test"):
            read(path, prose, code)
    dice = random.Random(0)  # noqa: S311 # every worker has to choose the same lines
    half = LINES[split] // 2
    lines = dice.sample(sorted(prose), half) + dice.sample(sorted(code), half)
    texts = tf.io.decode_raw([line.encode()[:LENGTH].ljust(LENGTH) for line in lines], tf.uint8)
    labels = [[1.0]] * half + [[0.0]] * half
    return tf.data.Dataset.from_tensor_slices((tf.cast(texts, tf.int32), labels))


def read(path, prose, code):
    """Adds the lines of a module's docstrings to `prose`, and all others but comments to `code`."""
    source = path.read_text(encoding="utf-8")
    documentation = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            documentation.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    for number, line in enumerate(map(str.strip, source.splitlines()), 1):
        if len(line) > 8 and not line.startswith("#"):
            (prose if number in documentation else code).add(line.strip("\"'"))
