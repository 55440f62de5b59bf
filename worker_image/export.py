"""The trained model as files that plain Keras and plain TensorFlow load: DIRECTORY/model.keras and DIRECTORY/saved_model."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from typing import Any, Iterator

from worker_image import checkpoint_files as files
from worker_image.strategies import Group
from worker_image.train_errors import TrainError

KERAS_FILE = "model.keras"
SAVED_MODEL = "saved_model"
_DOOR = "saved_model.pb"  # without this file there is no SavedModel, whatever else is in the folder


def export(model: Any, keras: Any, group: Group, directory: str) -> None:
    """Write both, or neither of them new. Every worker calls it, since metrics and the like are read together; the first one's are kept.

    keras: the package that the model is made with. directory: prepared by checkpoint_files.prepare_directory; a former export is replaced.
    Raises TrainError, on every worker.
    """
    with _scratch(group, directory) as scratch:
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # Keras describes every input there
                keras.saving.save_model(model, os.path.join(scratch, KERAS_FILE))
                model.export(os.path.join(scratch, SAVED_MODEL))
        except Exception as e:  # told at once: the others would wait in a read, not for an answer
            raise TrainError(f"the model could not be exported ({type(e).__name__}: {files.reason(e)}); see what Keras says of it") from e
        problem = ""
        if group.chief:
            try:
                _publish(scratch, directory)
            except Exception as e:
                problem = f"the model could not be exported to {directory}: {files.reason(e)}; see to that and start again"
        if max(group.gather(int(bool(problem)))):
            raise TrainError(problem or f"the model was not exported to {directory}; the first worker's output says why")


@contextlib.contextmanager
def _scratch(group: Group, directory: str) -> Iterator[str]:
    """Where to write first: for the chief beside the result, which a rename then puts into its place."""
    if group.chief and "://" not in directory:
        beside = files.join(directory, ".export")
        files.begin(beside)  # with what a killed export left there
        try:
            yield beside
        finally:
            files.remove(beside)
    else:
        with tempfile.TemporaryDirectory(prefix="tfrun-export-") as elsewhere:
            yield elsewhere


def _publish(scratch: str, directory: str) -> None:
    if "://" in directory:
        _upload(scratch, directory)
        return
    for name in (KERAS_FILE, SAVED_MODEL):
        files.sync(os.path.join(scratch, name))
    saved_model = os.path.join(directory, SAVED_MODEL)
    with contextlib.suppress(FileNotFoundError):
        os.rename(saved_model, os.path.join(scratch, "former"))  # no rename replaces a folder
    os.rename(os.path.join(scratch, SAVED_MODEL), saved_model)
    os.rename(os.path.join(scratch, KERAS_FILE), os.path.join(directory, KERAS_FILE))


def _upload(scratch: str, directory: str) -> None:
    """Each object appears whole; the one that makes a SavedModel of the others comes last."""
    import tensorflow as tf

    target = files.join(directory, SAVED_MODEL)
    files.remove(target)
    paths = [os.path.relpath(os.path.join(folder, name), scratch) for folder, _, names in os.walk(scratch) for name in names]
    for path in sorted(paths, key=lambda path: os.path.basename(path) == _DOOR):
        place = files.join(directory, path)
        tf.io.gfile.makedirs(os.path.dirname(place))
        tf.io.gfile.copy(os.path.join(scratch, path), place, overwrite=True)
