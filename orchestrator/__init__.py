"""Start, watch and restart a group of TensorFlow workers."""

__version__ = "0.1.0"
