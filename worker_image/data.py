"""The input pipeline: every example once an epoch, in the same order whether a run was interrupted or not, however many share it out.

An epoch is cut into steps of `global_batch` examples. The last step of an epoch may be smaller, and then shares are uneven, or empty: each
replica still gets at least one example, with weight 0, as the mean over no example is NaN and a worker without a step would be waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import numpy as np

from worker_image.sources import MEMORY, Source, bytes_of_one
from worker_image.strategies import Group, counted
from worker_image.train_errors import WrongInputError

SHUFFLE_BUFFER = 10_000  # examples, if they fit into MEMORY; what is up to this size is shuffled perfectly


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
            fitting = MEMORY // max(bytes_of_one(source.examples.element_spec) or 1, 1)
            buffer = max(min(max(source.counts), SHUFFLE_BUFFER, fitting), 1)
            stream = source.examples.shuffle(buffer, seed=number + 1, reshuffle_each_iteration=False).skip(skip)
            own = stream.shard(group.workers, group.index) if source.by_position else stream
            return own.batch(self._own_batch, drop_remainder=even, num_parallel_calls=tf.data.AUTOTUNE)
        # Only numbers are shuffled: moving examples one by one costs more than a small model's step.
        rows = tf.range(source.count if source.by_position else source.counts[group.index], dtype=tf.int64)
        rows = tf.random.experimental.stateless_shuffle(rows, [tf.constant(self._seed, tf.int64), number])[skip:]
        rows = rows[group.index :: group.workers] if source.by_position else rows
        size = self._own_batch

        def batch(step: Any) -> Any:
            # A slice of a given size has a static shape, which the steps that must all be whole need.
            of_step = tf.slice(rows, [step * size], [size]) if even else rows[step * size : (step + 1) * size]
            return tf.nest.map_structure(lambda each: tf.gather(each, of_step), source.examples)

        number_of = tf.shape(rows, tf.int64)[0]
        return tf.data.Dataset.range(number_of // size if even else -(-number_of // size)).map(plain(batch))

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


def advice(batch: int, replicas: int) -> str:
    """What a TPU would like better: its units take 8 by 128 numbers at once (cloud.google.com/tpu/docs/performance-guide)."""
    if batch % 8 == 0 or batch * replicas % 128 == 0:
        return ""
    here = f"a batch of {batch} per replica ({batch * replicas} in all) leaves parts of a TPU idle"
    return f"{here}; a multiple of 8 per replica, or of 128 in all, does not"


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
