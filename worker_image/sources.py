"""A task's datasets: checked, counted, and whose examples are whose.

With several workers, each reads what is its own: where the data is in files, and there are enough, its own files; else all of it, of which
it keeps every so-manieth example.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Callable, Optional, Tuple

from worker_image.strategies import Group
from worker_image.tasks import kind
from worker_image.train_errors import WrongInputError

MEMORY = 1 << 29  # bytes of examples that are kept in memory without being asked
_READERS = ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset")


@dataclass(frozen=True)
class Source:
    """One split of a task, and how it is shared out. by_position: every worker reads all of it, and keeps its own examples.

    examples: a tf.data.Dataset of them, or, in_memory, one batch of all. counts: the examples of each worker's part; a single count of
    all where it is by position. first: any example, as a batch of one.
    """

    examples: Any
    in_memory: bool
    counts: Tuple[int, ...]
    by_position: bool
    reason: str
    first: Any

    @property
    def count(self) -> int:
        """All of them, of all workers."""
        return sum(self.counts)


def source(build: Callable[..., Any], split: str, group: Group, cache: str) -> Source:
    """A split of a task, shared out among the workers. cache: "auto", "yes" or "no". Raises WrongInputError for what is no dataset.

    build: build_dataset(split), or build_dataset(split, context) which gives each worker its own part itself; context is a
    tf.distribute.InputContext.
    """
    examples = _checked(_call(build, split, group), split)
    if group.workers == 1:
        return _whole(examples, split, cache, "one worker reads all of it")
    if _takes_context(build):
        return _parts(examples, examples, split, group, cache, "build_dataset gives each worker its own part")
    own, why = _own_files(examples, group)
    if any(group.gather(int(own is None))):
        return _whole(examples, split, cache, f"every worker reads all of it, as {why or 'another worker finds no files of its own'}")
    return _parts(own, examples, split, group, cache, "each worker reads its own files")


def everything(build: Callable[..., Any], split: str) -> Any:
    """All examples of a split, on every worker."""
    return _checked(_call(build, split, None), split)


def size(examples: Any, split: str) -> int:
    """How many examples a dataset has, by reading it where it does not say. Raises WrongInputError for no end."""
    import tensorflow as tf

    count = int(examples.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        raise WrongInputError(f"build_dataset({split!r}) never ends; leave out its repeat(), as the epochs are repeated here")
    if count == tf.data.UNKNOWN_CARDINALITY:
        try:
            count = int(examples.reduce(tf.constant(0, tf.int64), lambda n, *_: n + 1))
        except tf.errors.OpError as e:
            raise WrongInputError(f"build_dataset({split!r}) can't be read: {' '.join(e.message.split())[:300]}; mend its files") from e
    return count


def first(examples: Any, split: str) -> Any:
    """The first example, as a batch of one. Raises WrongInputError where there is none."""
    for one in examples.batch(1).take(1):
        return one
    raise _empty(split)


def _call(build: Callable[..., Any], split: str, group: Any) -> Any:
    if not _takes_context(build):
        return build(split)
    import tensorflow as tf

    if group is None:
        return build(split, tf.distribute.InputContext())
    return build(split, tf.distribute.InputContext(group.workers, group.index, group.replicas))


def _takes_context(build: Callable[..., Any]) -> bool:
    try:
        inspect.signature(build).bind("train", None)
    except TypeError:
        return False
    second = list(inspect.signature(build).parameters.values())[1]
    return second.kind is not second.KEYWORD_ONLY and second.default in (second.empty, None)


def _whole(examples: Any, split: str, cache: str, reason: str) -> Source:
    kept, in_memory = _kept(examples, cache)
    count = size(examples if in_memory else kept, split)
    return Source(kept, in_memory, (count,), True, reason, first(examples, split))


def _parts(own: Any, others: Any, split: str, group: Group, cache: str, reason: str) -> Source:
    """others: where an example is taken from for whom has none."""
    kept, in_memory = _kept(own, cache)
    counts = tuple(group.gather(size(own if in_memory else kept, split)))
    if not all(group.gather(int(in_memory))):  # one worker's part may be larger than another's, and all must have the same kind of order
        kept, in_memory = own, False
    if not any(counts) or (own is others and not all(counts)):
        raise WrongInputError(f"build_dataset({split!r}, context) gives the workers {list(counts)} examples; give each of them some")
    return Source(kept, in_memory, counts, False, reason, first(others, split))


def _own_files(examples: Any, group: Group) -> Tuple[Any, str]:
    """(this worker's files' examples, "") where TensorFlow can tell which they are, else (None, why not)."""
    import tensorflow as tf
    from tensorflow.python.distribute import input_ops  # what experimental_distribute_dataset uses; by itself it is not public

    files = _files(examples)
    if files is None:
        return None, "it comes from memory or a generator, not from files that TensorFlow sees"
    if files < group.workers:
        return None, f"there are fewer files ({files}) than workers ({group.workers})"

    def with_policy(dataset: Any, policy: Any) -> Any:
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = policy
        return dataset.with_options(options)

    policies = tf.data.experimental.AutoShardPolicy
    try:
        own = input_ops.auto_shard_dataset(with_policy(examples, policies.FILE), group.workers, group.index)
        for _ in own.take(1):
            break
    except (tf.errors.OpError, ValueError, TypeError) as e:
        return None, f"TensorFlow can't tell the files apart ({str(e).splitlines()[0][:100]})"
    return with_policy(own, policies.OFF), ""  # or it would be shared out once more


def _files(dataset: Any) -> Optional[int]:
    """How many files a dataset reads; None where no reader of files is seen. Asking TensorFlow prints a page where there is none."""
    import tensorflow as tf

    inputs = dataset._inputs()
    readers = (tf.data.TFRecordDataset, tf.data.TextLineDataset, tf.data.FixedLengthRecordDataset)
    if isinstance(dataset, readers):
        names = dataset._filenames
        return int(names.cardinality()) if isinstance(names, tf.data.Dataset) else int(tf.size(names))
    function = getattr(getattr(dataset, "_map_func", None), "function", None)  # of interleave and flat_map
    if function is not None and _has_reader(function.graph.as_graph_def()):
        return max(int(inputs[0].cardinality()), 0)
    found = [files for files in map(_files, inputs) if files is not None]
    return min(found) if found else None


def _has_reader(graph: Any) -> bool:
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return any(node.op.startswith(_READERS) for node in nodes)


def _kept(examples: Any, cache: str) -> Tuple[Any, bool]:
    """(the examples, whether they are one batch in memory): where that is asked for, or they are known to be few."""
    import tensorflow as tf

    count, each = int(examples.cardinality()), bytes_of_one(examples.element_spec)
    few = each is not None and 0 < count * each <= MEMORY
    if cache == "no" or (cache == "auto" and not few):
        return examples, False
    if count > 0 and each is not None:
        try:
            return next(iter(examples.batch(count, num_parallel_calls=tf.data.AUTOTUNE))), True
        except tf.errors.InvalidArgumentError:  # they don't have the shape that they are said to have, which the training will show
            pass
    return examples.cache(), False


def bytes_of_one(spec: Any) -> Optional[int]:
    """Of one example; None where the shapes don't tell."""
    import tensorflow as tf

    total = 0
    for each in tf.nest.flatten(spec):
        elements = each.shape.num_elements() if isinstance(each, tf.TensorSpec) else None
        if elements is None or each.dtype == tf.string:
            return None
        total += elements * int(each.dtype.size)
    return total


def _checked(dataset: Any, split: str) -> Any:
    import tensorflow as tf

    if not isinstance(dataset, tf.data.Dataset):
        raise WrongInputError(f"build_dataset({split!r}) returned {kind(dataset)}, not a tf.data.Dataset of (x, y) examples")
    if not (isinstance(dataset.element_spec, tuple) and len(dataset.element_spec) in (2, 3)):
        raise WrongInputError(
            f"build_dataset({split!r}) gives {dataset.element_spec!r:.200}, not pairs (x, y) or (x, y, weight); map it to pairs"
        )
    return dataset


def _empty(split: str) -> WrongInputError:
    return WrongInputError(f"build_dataset({split!r}) gives no examples; check where it reads from")
