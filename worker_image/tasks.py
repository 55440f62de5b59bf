"""What to train: a module with `build_model()` and `build_dataset(split)`, by name, by path, or one of ours."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any, Tuple

from worker_image.train_errors import WrongInputError

BUILT_IN = {"digits": "worker_image.digits"}
_RULE = "a task is a module with build_model() and build_dataset(split)"


def find(task: str) -> str:
    """The module's name, or the path of its file; without importing it, since it may use TensorFlow at its top.

    Raises WrongInputError where there is none.
    """
    if task in BUILT_IN:
        return BUILT_IN[task]
    if task.endswith(".py") or os.sep in task:
        if not (task.endswith(".py") and os.path.isfile(task)):
            raise WrongInputError(f"--task {task} is no Python file, seen from {os.getcwd()}; give the path of one ({_RULE})")
        return task
    top = task.split(".")[0]
    if not all(part.isidentifier() for part in task.split(".")) or not importlib.util.find_spec(top):
        raise WrongInputError(f"--task {task} is neither {', '.join(BUILT_IN)}, nor a .py file, nor a module that is installed ({_RULE})")
    return task


def load(found: str) -> ModuleType:
    """Import what `find` found. Raises WrongInputError for a module that is no task."""
    try:
        module = _from_file(found) if found.endswith(".py") else importlib.import_module(found)
    except SyntaxError as e:
        raise WrongInputError(f"the task can't be read: {e.msg} ({e.filename}, line {e.lineno})") from e
    except ModuleNotFoundError as e:
        if (e.name or "").split(".")[0] == "sklearn":
            raise WrongInputError(f"the task {found} needs scikit-learn, which is not installed: pip install scikit-learn") from e
        if e.name is None or not (found + ".").startswith(e.name + "."):
            raise
        raise WrongInputError(f"--task {found}: there is no module {e.name} ({_RULE})") from e
    for name in ("build_model", "build_dataset"):
        if not callable(getattr(module, name, None)):
            raise WrongInputError(f"the task {found} has no function {name} ({_RULE}); add it")
    return module


def model_of(task: ModuleType) -> Tuple[Any, Any]:
    """(the compiled model, the Keras package that it is made with). Raises WrongInputError for anything else."""
    model = task.build_model()
    roots = (kind.__module__.split(".")[0] for kind in type(model).__mro__)
    root = next((name for name in roots if name in ("keras", "tf_keras")), "")
    if not root or not hasattr(model, "train_step"):
        raise WrongInputError(f"build_model() returned {kind(model)}, not a Keras model; return the compiled model")
    if getattr(model, "optimizer", None) is None:
        raise WrongInputError("build_model() returned a model without an optimizer; call model.compile(...) before returning it")
    return model, importlib.import_module(root)


def _from_file(path: str) -> ModuleType:
    """As a script's directory is, the task's is searched for what it imports."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    name = "task_" + os.path.splitext(os.path.basename(path))[0]  # never the name of a module that others import
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def is_keras_2(keras: Any) -> bool:
    """Whether a Keras package, as model_of returns it, is Keras 2 (tf_keras too)."""
    return bool(keras.__version__.startswith("2."))


def kind(value: object) -> str:
    """What a function of the user's returned, for a sentence."""
    return "nothing" if value is None else f"a {type(value).__module__}.{type(value).__name__}"
