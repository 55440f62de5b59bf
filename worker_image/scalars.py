"""Scalars for TensorBoard, without the package tensorboard, which tf.summary.scalar needs and a worker has no use for."""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import Any, Callable, Dict

from worker_image.train_errors import WrongInputError

FLUSH = 10.0  # seconds after which the next write makes all before it seen


class Scalars:
    """A file of scalars in `directory`, which may also be a bucket's address. One process only, the chief, writes.

    resumed: steps done before. Where an earlier run has gone further, its later values are no part of this training: TensorBoard leaves
    them out, because the file begins with the mark of a restart (its fast loader: those of a name once there is a new value of it).
    Raises WrongInputError for a directory that can't be written to.
    """

    def __init__(self, directory: str, resumed: int = 0) -> None:
        import tensorflow as tf

        # TensorBoard reads the files of a directory in the order of their names.
        path = os.path.join(directory, f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}")
        # A file of events is one of records. Of tf.summary's own writers one can't write the mark, the other tells failures as tracebacks.
        self._proto = tf.compat.v1
        self._flushed = time.monotonic()
        try:
            tf.io.gfile.makedirs(directory)
            self._writer: Any = tf.io.TFRecordWriter(path)
            self._add(0, file_version="brain.Event:2")
            self._add(resumed + 1, session_log=self._proto.SessionLog(status="START"))
            self._writer.flush()
        except (OSError, tf.errors.OpError) as e:
            raise WrongInputError(f"the directory {directory} for TensorBoard can't be written to ({first_line(e)}); give another") from e

    def write(self, step: int, values: Dict[str, float]) -> None:
        """The values at a step, by name. What can't be written is told once, and the training goes on without."""
        if self._writer and values:
            self._try(lambda: self._add(step, summary=_summary(values)))
        if time.monotonic() - self._flushed > FLUSH:
            self.flush()

    def flush(self) -> None:
        """Make all that was written seen."""
        self._flushed = time.monotonic()
        if self._writer:
            self._try(self._writer.flush)

    def close(self) -> None:
        """The same, for the last time; what is written later is left out."""
        if self._writer:
            self._try(self._writer.close)
        self._writer = None

    def _add(self, step: int, **what: Any) -> None:
        self._writer.write(self._proto.Event(wall_time=time.time(), step=step, **what).SerializeToString())

    def _try(self, work: Callable[[], None]) -> None:
        import tensorflow as tf

        try:
            work()
        except (OSError, tf.errors.OpError) as e:
            self._writer = None
            print(
                f"train: scalars for TensorBoard can't be written any more ({first_line(e)}); the training goes on",
                file=sys.stderr,
                flush=True,
            )


def _summary(values: Dict[str, float]) -> Any:
    """What tf.summary.scalar writes: a tensor of one float32, and which of TensorBoard's plugins it is for."""
    import tensorflow as tf

    v1 = tf.compat.v1
    metadata = v1.SummaryMetadata(plugin_data=v1.SummaryMetadata.PluginData(plugin_name="scalars"), data_class="DATA_CLASS_SCALAR")
    made = [
        v1.Summary.Value(tag=name, tensor=tf.make_tensor_proto(float(value), tf.float32), metadata=metadata)
        for name, value in values.items()
    ]
    return v1.Summary(value=made)


def first_line(error: Exception) -> str:
    """What an error of TensorFlow says, as part of a sentence."""
    return (str(getattr(error, "message", "") or error).splitlines() or [type(error).__name__])[0].rstrip(".")
