"""Make Keras 3's `fit` and `evaluate` work under MultiWorkerMirroredStrategy with several workers (keras-team/keras#20585).

Two places of keras/src/backend/tensorflow/trainer.py fail there. `_maybe_symbolic_build` reduces a whole batch, a structure of
per-replica values, of which `Strategy.reduce` takes one at a time. `reduce_per_replica` takes the mean of scalars along axis 0, which a
scalar does not have. Both are wrapped, not replaced: the first runs Keras's own code and steps in when that fails at this very place;
the second asks Keras's own code once how it treats a scalar. A Keras without the fault is left as it is, and so is one that is too old:
docs/compatibility.md has what was measured.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import re
import sys
from types import ModuleType
from typing import Any, Callable, Optional, Sequence

TRAINER = "keras.src.backend.tensorflow.trainer"  # Keras 3 alone has a module of this name; Keras 2 and tf_keras need no fix
# With older ones the replicas drift apart (to 3.4), the steps are too large (to 3.7) or the metrics are wrong (to 3.9): better to fail.
FIRST_RIGHT = (3, 10)

Note = Callable[[str], None]


def install(note: Note) -> None:
    """Fix Keras 3 as soon as the program imports it, or at once if it is imported already; Keras is never imported from here.

    note: called with one line for the user, once, when the fix acts for the first time (or would, in a Keras that is too old for it).
    """
    fix = _Fix(note)
    trainer = sys.modules.get(TRAINER)
    if trainer is None:
        sys.meta_path.insert(0, _Finder(fix.apply))
    else:
        fix.apply(trainer)


class _Finder:
    """Sees every import of the process, so it does nothing but compare a name until that one module comes."""

    def __init__(self, then: Callable[[ModuleType], None]) -> None:
        self._then = then

    def find_spec(
        self,
        name: str,
        path: Optional[Sequence[str]] = None,  # noqa: ARG002 # the signature is the import system's
        target: Optional[ModuleType] = None,  # noqa: ARG002
    ) -> Optional[importlib.machinery.ModuleSpec]:
        if name != TRAINER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._then)
        return spec


class _Loader(importlib.abc.Loader):
    """A module's own loader, and a call after it."""

    def __init__(self, own: importlib.abc.Loader, then: Callable[[ModuleType], None]) -> None:
        self._own = own
        self._then = then

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Optional[ModuleType]:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self._own  # whoever asks later for the source meets no stranger
        self._own.exec_module(module)
        self._then(module)


class _Fix:
    """What this process knows of its Keras, and whether the user was told."""

    def __init__(self, note: Note) -> None:
        self._note = note
        self._told = False
        self._refuses_scalars: Optional[bool] = None

    def apply(self, trainer: Any) -> None:
        if hasattr(trainer, "reduce_per_replica"):
            trainer.reduce_per_replica = self._reducing(trainer.reduce_per_replica)
        model = getattr(trainer, "TensorFlowTrainer", None)
        if model is not None and hasattr(model, "_maybe_symbolic_build"):  # since Keras 3.5
            model._maybe_symbolic_build = self._building(model._maybe_symbolic_build)

    def _building(self, own: Any) -> Any:
        """`_maybe_symbolic_build`, which builds the model from the shapes of a first batch: those of a local replica do."""

        @functools.wraps(own)
        def _maybe_symbolic_build(model: Any, *args: Any, **kwargs: Any) -> Any:
            strategy = model._distribute_strategy
            if not self._concerns(strategy):
                return own(model, *args, **kwargs)
            if model.steps_per_execution > 1:
                _let_loops_call_functions(self._acts)
            try:
                return own(model, *args, **kwargs)
            except ValueError as e:
                batch = _refused_batch(e, own, strategy)
                if batch is None:
                    raise
            self._acts()
            local = _tensorflow().nest.map_structure(lambda v: strategy.experimental_local_results(v)[0], batch)
            return own(model, data_batch=local)

        return _maybe_symbolic_build

    def _reducing(self, own: Any) -> Any:
        """`reduce_per_replica`, which makes one value of the replicas' results of a step."""

        @functools.wraps(own)
        def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
            if reduction != "auto" or not self._concerns(strategy):  # what fit and evaluate ask for: the mean
                return own(values, strategy, reduction)
            if self._refuses_scalars is None:
                self._refuses_scalars = _refuses_scalar(own, strategy)
            if not self._refuses_scalars:
                return own(values, strategy, reduction)
            self._acts()

            def reduce(value: Any) -> Any:
                return strategy.reduce("MEAN", value, axis=None) if _is_scalar(value, strategy) else own(value, strategy, reduction)

            return _tensorflow().nest.map_structure(reduce, values)

        return reduce_per_replica

    def _concerns(self, strategy: Any) -> bool:
        """Whether this is a strategy of several workers, and a Keras that is right but for the fault; says so if it is too old for that."""
        if not _several_workers(strategy):
            return False
        if tuple(int(number) for number in re.findall(r"\d+", _keras_version())[:2]) >= FIRST_RIGHT:
            return True
        self._tell(
            "fit under MultiWorkerMirroredStrategy fails or trains wrongly in this version, and tfrun's fix is for keras 3.10 and newer: "
            "install that, or use tf_keras"
        )
        return False

    def _acts(self) -> None:
        self._tell(
            "fit under MultiWorkerMirroredStrategy fails in this version (keras-team/keras#20585); "
            "tfrun's fix is applied, --no-compat turns it off"
        )

    def _tell(self, text: str) -> None:
        if not self._told:
            self._told = True
            self._note(f"keras {_keras_version()}: {text}")


def _refused_batch(e: ValueError, builder: Any, strategy: Any) -> Optional[Any]:
    """The structure that `builder` itself gave to `strategy.reduce` and that was refused; None if the error comes from anywhere else.

    Read from the traceback: an error of the user's own model is known by its place, not by its words, and no second batch is taken
    from a source that may give each only once.
    """
    tb = e.__traceback__
    while tb and tb.tb_frame.f_code is not builder.__code__:
        tb = tb.tb_next
    inner = tb.tb_next if tb else None
    if inner is None or inner.tb_frame.f_code is not type(strategy).reduce.__code__:
        return None
    batch = inner.tb_frame.f_locals["value"]
    return None if isinstance(batch, _tensorflow().distribute.DistributedValues) else batch


def _let_loops_call_functions(acts: Callable[[], None]) -> None:
    """Let a tf.function with collectives be called in a loop or a branch, as Keras does with steps_per_execution > 1.

    Every collective has a key that is given when the outermost function is called. TensorFlow asks for it in the graph of the innermost,
    which for a loop or branch is one that nobody ever gives anything ("You must feed a value for placeholder tensor"): so there is no
    program that this could change, except from failing to working. TensorFlow's own `_next_instance_key` takes the same step
    (tensorflow/python/distribute/cross_device_utils.py), but not for functions that are called by functions.
    """
    graphs: Any = sys.modules.get("tensorflow.python.ops.control_flow_v2_func_graphs")
    if graphs is None or "capture_call_time_value" in vars(graphs.ControlFlowFuncGraph):
        return

    def capture_call_time_value(self: Any, *args: Any, **kwargs: Any) -> Any:
        acts()
        graph = self
        while isinstance(graph, graphs.ControlFlowFuncGraph):
            graph = graph.outer_graph
        with graph.as_default():
            return graph.capture_call_time_value(*args, **kwargs)

    graphs.ControlFlowFuncGraph.capture_call_time_value = capture_call_time_value


def _refuses_scalar(own: Any, strategy: Any) -> bool:
    """Whether Keras's own code fails for a scalar: tried in a graph that is thrown away, so that the program's has no remains of it."""
    tf = _tensorflow()
    attempt = tf.function(lambda: own(tf.zeros(()), strategy, "auto"), autograph=False)
    logger = tf.get_logger()
    logger.addFilter(_drop)  # TensorFlow reports the failure on its own, and the user would take it for one
    try:
        attempt.get_concrete_function()
    except ValueError as e:
        return "Invalid reduction dimension" in str(e)
    finally:
        logger.removeFilter(_drop)
    return False


def _is_scalar(value: Any, strategy: Any) -> bool:
    local = strategy.experimental_local_results(value)[0]
    return bool(_tensorflow().TensorShape(getattr(local, "shape", ())).rank == 0)  # no shape: a plain number, of run_eagerly


def _drop(record: logging.LogRecord) -> bool:  # noqa: ARG001 # the signature of a filter
    return False


def _several_workers(strategy: Any) -> bool:
    """Whether replicas of a MultiWorkerMirroredStrategy live in other processes too."""
    if not isinstance(strategy, _tensorflow().distribute.MultiWorkerMirroredStrategy):
        return False
    return bool(strategy.num_replicas_in_sync > len(strategy.extended.worker_devices))


def _keras_version() -> str:
    return str(sys.modules["keras"].__version__)


def _tensorflow() -> Any:
    return sys.modules["tensorflow"]  # Keras's trainer has imported it
