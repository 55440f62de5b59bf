"""The input pipeline: every example once an epoch, in the same order whether a run was interrupted or not, however many share it out.

An epoch is cut into steps of `global_batch` examples. Each worker reads what is its own of them: where the data is in files, and there are
enough, its own files; else every so-manieth example. The last step of an epoch may be smaller, and then shares are uneven, or empty: each
replica still gets at least one example, with weight 0, as the mean over no example is NaN and a worker without a step would be waited for.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Callable, Optional, Tuple

import numpy as np

from worker_image.strategies import Group, counted
from worker_image.train_errors import WrongInputError

SHUFFLE_BUFFER = 10_000  # examples, if they fit into CACHE_LIMIT; what is up to this size is shuffled perfectly
_READERS = ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset")
CACHE_LIMIT = 1 << 29  # bytes of examples that are kept in memory without being asked


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


@dataclass(frozen=True)
class _Cut:
    """What is left of an epoch: skip of a worker's stream, then counts[worker] examples in so many steps. even: all steps are whole."""

    skip: int
    counts: Any
    steps: int
    even: bool


class TrainingSet:
    """A source cut into steps of `batch` examples per replica. drop_remainder: an epoch's last step is left out where it is not whole."""

    def __init__(self, source: Source, group: Group, batch: int, seed: int, drop_remainder: bool) -> None:
        self.source = source
        self.global_batch = batch * group.replicas
        self.drop_remainder = drop_remainder
        self._group = group
        self._own_batch = batch * group.local_replicas
        self._seed = seed
        if self.steps(0) == 0:
            raise WrongInputError(
                f"the training set has {counted(source.count, 'example')}, fewer than one step takes ({self.global_batch}, all replicas "
                "together), and a step that is not whole is left out here; choose a smaller --batch-size"
            )

    def steps(self, start: int) -> int:
        """How many steps the rest of an epoch has, of which `start` examples are consumed."""
        return self._cut(start).steps

    def consumed(self, start: int, steps: int) -> int:
        """How many examples of an epoch are consumed `steps` steps after `start` of them were."""
        return start + int(np.minimum(self._cut(start).counts, steps * self._own_batch).sum())

    def batches(self, epoch: int, start: int, epochs: int) -> Any:
        """A distributed dataset without end: from example `start` of `epoch` on, the batches of each replica up to the end of `epochs`.

        Its order is made from the seed and the epoch's number alone, so that any step's batch can be found again.
        """
        import tensorflow as tf

        # tf.data asks in Python whether the seeds are (0, 0), which a seed that is a tensor can't answer when the global one is 0
        tf.random.set_seed(self._seed + 1)
        cuts = (self._cut(0), self._cut(start))
        skips, steps = (tf.constant([getattr(cut, name) for cut in cuts], tf.int64) for name in ("skip", "steps"))
        counts = tf.constant(np.stack([cut.counts for cut in cuts]), tf.int64)

        def of_epoch(number: Any) -> Any:
            which = tf.cast(number == epoch, tf.int32)
            even = all(cut.even for cut in cuts) or self.drop_remainder
            batches = self._own_batches(number, skips[which], even).take(steps[which])
            return batches if even else self._evened(batches, counts[which], steps[which])

        own = tf.data.Dataset.range(epoch, epochs).flat_map(plain(of_epoch))
        return distributed(self._group, _split(own, self._group.local_replicas))

    def _cut(self, start: int) -> _Cut:
        counts: Any
        if self.source.by_position:
            skip = start
            counts = (self.source.count - start - np.arange(self._group.workers) + self._group.workers - 1) // self._group.workers
        else:
            whole = np.array(self.source.counts)
            # The steps before `start`: as many as it takes all workers together to consume it.
            ends = (np.minimum(whole, steps * self._own_batch).sum() for steps in range(-(-whole.max() // self._own_batch) + 1))
            skip = next(steps for steps, end in enumerate(ends) if end >= start) * self._own_batch
            counts = np.maximum(whole - skip, 0)
        steps = int(counts.min() // self._own_batch if self.drop_remainder else -(-counts.max() // self._own_batch))
        return _Cut(skip, counts, steps, bool((counts == steps * self._own_batch).all()))

    def _own_batches(self, number: Any, skip: Any, even: bool) -> Any:
        """This worker's part of one epoch's batches, in the epoch's order; even: the last one is left out if it is not whole."""
        import tensorflow as tf

        group, source = self._group, self.source
        if not source.in_memory:
            fitting = CACHE_LIMIT // max(_bytes_of_one(source.examples.element_spec) or 1, 1)
            buffer = max(min(max(source.counts), SHUFFLE_BUFFER, fitting), 1)
            stream = source.examples.shuffle(buffer, seed=number + 1, reshuffle_each_iteration=False).skip(skip)
            own = stream.shard(group.workers, group.index) if source.by_position else stream
            return own.batch(self._own_batch, drop_remainder=even, num_parallel_calls=tf.data.AUTOTUNE)
        # Only numbers are shuffled: moving examples one by one costs more than a small model's step.
        rows = tf.range(source.count if source.by_position else source.counts[group.index], dtype=tf.int64)
        rows = tf.random.experimental.stateless_shuffle(rows, [tf.constant(self._seed, tf.int64), number])[skip:]
        rows = rows[group.index :: group.workers] if source.by_position else rows
        numbers = tf.data.Dataset.from_tensor_slices(rows).batch(self._own_batch, drop_remainder=even)
        return numbers.map(plain(lambda rows: tf.nest.map_structure(lambda each: tf.gather(each, rows), source.examples)))

    def _evened(self, batches: Any, counts: Any, steps: Any) -> Any:
        """Batches of (x, y, weight), as many for every worker, and none of them empty."""
        import tensorflow as tf

        nothing = tf.data.Dataset.from_tensors(self.source.first).repeat()
        numbered = tf.data.Dataset.zip((tf.data.Dataset.range(steps), batches.concatenate(nothing)))
        most = self._own_batch
        return numbered.map(plain(lambda step, batch: self._weighted(batch, tf.clip_by_value(counts - step * most, 0, most))))

    def _weighted(self, batch: Any, counts: Any) -> Any:
        """With weights by which the mean over each replica's examples, and then over the replicas, is the mean over all examples.

        counts: of this step's examples, int64 [workers].
        """
        import tensorflow as tf

        real, parts = counts[self._group.index], self._group.local_replicas
        rows = tf.maximum(real, parts)
        if parts > 1:
            batch = tf.nest.map_structure(lambda each: tf.gather(each, tf.minimum(tf.range(rows), tf.maximum(real - 1, 0))), batch)
        ends = tf.range(parts + 1, dtype=tf.int64) * rows // parts  # as _split cuts it
        sizes = ends[1:] - ends[:-1]
        of_replica = tf.repeat(sizes, sizes) * self._group.replicas / tf.reduce_sum(counts)
        weights = tf.cast(tf.where(tf.range(rows) < real, of_replica, 0.0), tf.float32)
        x, y, *given = batch
        return x, y, weights * tf.cast(given[0], tf.float32) if given else weights


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

    count, each = int(examples.cardinality()), _bytes_of_one(examples.element_spec)
    few = each is not None and 0 < count * each <= CACHE_LIMIT
    if cache == "no" or (cache == "auto" and not few):
        return examples, False
    if count > 0 and each is not None:
        try:
            return next(iter(examples.batch(count, num_parallel_calls=tf.data.AUTOTUNE))), True
        except tf.errors.InvalidArgumentError:  # they don't have the shape that they are said to have, which the training will show
            pass
    return examples.cache(), False


def _bytes_of_one(spec: Any) -> Optional[int]:
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
        kind = "nothing" if dataset is None else f"a {type(dataset).__module__}.{type(dataset).__name__}"
        raise WrongInputError(f"build_dataset({split!r}) returned {kind}, not a tf.data.Dataset of (x, y) examples")
    if not (isinstance(dataset.element_spec, tuple) and len(dataset.element_spec) in (2, 3)):
        raise WrongInputError(
            f"build_dataset({split!r}) gives {dataset.element_spec!r:.200}, not pairs (x, y) or (x, y, weight); map it to pairs"
        )
    return dataset


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


def distributed(group: Group, batches: Any) -> Any:
    """What each replica of this worker gets in turn, for a strategy's loops; nobody may read on past its end."""
    import tensorflow as tf

    options = tf.data.Options()
    options.deterministic = True
    # Of one without an end, the strategy need not ask all workers before every step whether each still has a batch.
    zeros = tf.nest.map_structure(lambda spec: tf.zeros([size or 1 for size in spec.shape], spec.dtype), batches.element_spec)
    endless = batches.concatenate(tf.data.Dataset.from_tensors(zeros).repeat()).with_options(options).prefetch(tf.data.AUTOTUNE)
    return endless if group.replicas == 1 else group.strategy.distribute_datasets_from_function(lambda _: endless)


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function for a dataset, taken as it is: looking for Python in it to turn into a graph takes 30 ms each."""
    import tensorflow as tf

    return tf.autograph.experimental.do_not_convert(function)  # type: ignore[no-any-return]


def _split(batches: Any, parts: int) -> Any:
    """Each batch in so many parts, one after the other."""
    import tensorflow as tf

    if parts == 1:
        return batches

    def part(batch: Any, number: Any) -> Any:
        rows = tf.shape(tf.nest.flatten(batch)[0], tf.int64)[0]
        begin, end = number * rows // parts, (number + 1) * rows // parts
        return tf.nest.map_structure(lambda each: each[begin:end], batch)

    return batches.flat_map(plain(lambda *batch: tf.data.Dataset.range(parts).map(plain(lambda number: part(batch, number)))))


def _empty(split: str) -> WrongInputError:
    return WrongInputError(f"build_dataset({split!r}) gives no examples; check where it reads from")


def advice(batch: int, replicas: int) -> str:
    """What a TPU would like better: its units take 8 by 128 numbers at once (cloud.google.com/tpu/docs/performance-guide)."""
    if batch % 8 == 0 or batch * replicas % 128 == 0:
        return ""
    here = f"a batch of {batch} per replica ({batch * replicas} in all) leaves parts of a TPU idle"
    return f"{here}; a multiple of 8 per replica, or of 128 in all, does not"
