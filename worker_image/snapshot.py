"""The values of one moment, under the names that tf.train.Checkpoint gives them, taken without copying and written by any thread.

A tensor that was read from a variable shares its memory until the variable changes: TensorFlow then makes the copy, and only of what
changes. So taking a snapshot costs microseconds for each variable, and what is written is an ordinary checkpoint.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

Key = Tuple[str, str]  # a tensor's name in the checkpoint, and which part of it (nearly always "", all)


@dataclass
class Snapshot:
    """What one checkpoint will hold; `weights` are the names of the trainable ones."""

    tensors: Dict[Key, Any]
    weights: Set[str]

    def finite(self) -> bool:
        """Whether every trainable weight is a number."""
        return all(_finite(tensor) for (name, _), tensor in self.tensors.items() if name in self.weights)

    def write(self, prefix: str) -> None:
        """Write it as tf.train.Checkpoint.write would. Raises TensorFlow's errors."""
        import tensorflow as tf

        names, parts = zip(*self.tensors)
        with tf.device("CPU:0"):
            tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=parts, tensors=list(self.tensors.values()))

    def release(self) -> None:
        """Give the memory back: from now on, changing the variables needs no copy."""
        self.tensors.clear()


class _Handle(NamedTuple):
    tensor: Any
    dtype: Any
    on_host: bool


@dataclass
class _Plan:
    """How to read everything again: what can't be, such as a lookup table's content, makes `again` False."""

    constants: Dict[Key, Any] = field(default_factory=dict)
    handles: Dict[Key, _Handle] = field(default_factory=dict)  # of variables that this process can read by itself
    shared: Dict[Key, Any] = field(default_factory=dict)  # of those that differ by replica, which all workers read together
    read_shared: Callable[[], Sequence[Any]] = list
    weights: Set[str] = field(default_factory=set)
    again: bool = True


class Snapshots:
    """Takes snapshots of a tf.train.Checkpoint's content; weights() are the variables that must be finite."""

    def __init__(self, content: Any, strategy: Any, weights: Callable[[], Sequence[Any]]) -> None:
        self._content = content
        self._strategy = strategy
        self._weights = weights
        self._plan: Optional[_Plan] = None
        self._structure: Tuple[List[Any], int] = ([], 0)

    def take(self) -> Snapshot:
        """What the variables hold now. All workers call it together: those that differ by replica are reduced."""
        structure = _structure(self._content)
        if not (self._plan and self._plan.again and _same(structure, self._structure)):
            self._plan, self._structure = self._planned(), structure
        plan = self._plan
        if not plan:
            return self._through_a_file()
        tensors = {**plan.constants, **{key: _read(handle) for key, handle in plan.handles.items()}}
        return Snapshot({**tensors, **dict(zip(plan.shared, plan.read_shared()))}, plan.weights)

    def _through_a_file(self) -> Snapshot:
        """For what only TensorFlow itself can write: it does, and it is read again. Slow."""
        import tensorflow as tf

        with tempfile.TemporaryDirectory() as folder:
            reader = tf.train.load_checkpoint(self._content.write(folder + "/weights"))
            return Snapshot({(name, ""): tf.constant(reader.get_tensor(name)) for name in reader.get_variable_to_shape_map()}, set())

    def _planned(self) -> Optional[_Plan]:
        """Ask TensorFlow what it would write. Its own names and object graph make the file an ordinary checkpoint."""
        import tensorflow as tf

        try:
            by_owner, _, own_savers, _ = self._content._saver._gather_serialized_tensors()
        except (AttributeError, ValueError):  # no public function: a TensorFlow to come may have another
            return None
        if own_savers:
            return None
        plan = _Plan()
        trainable = {id(_variable(weight)) for weight in self._weights()}
        for owner, by_name in by_owner.items():
            variable = _variable(getattr(owner, "obj", owner)) if len(by_name) == 1 else None
            for name, parts in by_name.items():
                for part, value in parts.items() if isinstance(parts, dict) else [("", parts)]:
                    self._add(plan, (name, part), value, variable)
                if variable is not None and id(variable) in trainable:
                    plan.weights.add(name)
            if by_name and owner is not None and variable is None:  # not the object graph, which is nobody's, and no variable
                plan.again = False
        plan.read_shared = tf.function(_reader(list(plan.shared.values()))) if plan.shared else list
        return plan

    def _add(self, plan: _Plan, key: Key, value: Any, variable: Any) -> None:
        if variable is None:
            tensor = _value(value)
            if tensor is not None:  # TensorFlow leaves out what has no value
                plan.constants[key] = tensor
        elif _differs(variable):
            plan.shared[key] = value
        else:
            here = self._strategy.experimental_local_results(variable)[0]
            plan.handles[key] = _Handle(here.handle, here.dtype, "CPU" in here.handle.device)


def _structure(content: Any) -> Tuple[List[Any], int]:
    """What tells whether there are new variables: all objects, and how many variables the legacy optimizers hold, which are no objects."""
    import tensorflow as tf

    objects = tf.train.TrackableView(content).descendants()
    legacy = [getattr(thing, "variables", ()) for thing in objects if hasattr(type(thing), "get_slot_names")]
    return objects, sum(len(variables() if callable(variables) else variables) for variables in legacy)


def _same(one: Tuple[List[Any], int], other: Tuple[List[Any], int]) -> bool:
    return one[1] == other[1] and len(one[0]) == len(other[0]) and all(a is b for a, b in zip(one[0], other[0]))


def _variable(owner: Any) -> Any:
    """The tf.Variable that a saved object is, or that a variable of Keras 3 holds; None for anything else."""
    import tensorflow as tf

    found = owner if isinstance(owner, tf.Variable) else getattr(owner, "value", None)
    return found if isinstance(found, tf.Variable) else None


def _differs(variable: Any) -> bool:
    """Whether each replica has a value of its own, of which the saved one is the sum or the mean."""
    import tensorflow as tf

    on_read = variable.synchronization == tf.VariableSynchronization.ON_READ
    return on_read and isinstance(variable, tf.distribute.DistributedValues)


def _read(handle: Any) -> Any:
    import tensorflow as tf

    # The variable's own read_value() takes five times as long, and its memory on a device would be held until the file is written
    value = tf.raw_ops.ReadVariableOp(resource=handle.tensor, dtype=handle.dtype)
    if handle.on_host:
        return value
    with tf.device("CPU:0"):
        return tf.identity(value)


def _reader(specs: Sequence[Any]) -> Callable[[], List[Any]]:
    return lambda: [_value(spec) for spec in specs]


def _value(value: Any) -> Any:
    """The tensor of what TensorFlow would save: a tensor, a variable, or a SaveSpec, which reads when it is asked."""
    import tensorflow as tf

    value = value.tensor if hasattr(value, "slice_spec") else value
    return None if value is None else tf.convert_to_tensor(value)


def _finite(tensor: Any) -> bool:
    import tensorflow as tf

    if not tensor.dtype.is_floating or bool(tf.math.is_finite(tf.reduce_sum(tensor))):
        return True  # the sum needs no memory; it may overflow where no summand does
    return bool(tf.reduce_all(tf.math.is_finite(tensor)))
