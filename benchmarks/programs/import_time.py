"""Imports TensorFlow, then prints what time it is."""

import time

import tensorflow  # noqa: F401 # for its time

print("now", time.monotonic(), flush=True)
