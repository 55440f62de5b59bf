"""The input pipeline: the same batches in the same order, whether a run was interrupted or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from worker_image.train_errors import WrongInputError

SHUFFLE_BUFFER = 10_000  # examples; a training set up to this size is shuffled perfectly


@dataclass(frozen=True)
class TrainingSet:
    """A finite training set and how it is cut into steps: `global_batch` examples each, the rest of an epoch left out."""

    examples: Any
    count: int
    global_batch: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return self.count // self.global_batch

    def batches(self, first_step: int, last_step: int) -> Any:
        """The global batches of steps `first_step` .. `last_step` - 1, counted over all epochs; see `distributable`.

        Every epoch has an order of its own, made from the seed and the epoch's number alone, so any step's batch can be found again.
        """
        import tensorflow as tf

        # tf.data asks in Python whether the seeds are (0, 0), which a seed that is a tensor can't answer when the global one is 0
        tf.random.set_seed(self.seed + 1)
        epoch, skipped = divmod(first_step, self.steps_per_epoch)
        epochs = tf.data.Dataset.range(epoch, -(-last_step // self.steps_per_epoch))
        batches = epochs.flat_map(self._shuffled).batch(self.global_batch, drop_remainder=True, num_parallel_calls=tf.data.AUTOTUNE)
        return distributable(batches.skip(skipped).take(last_step - first_step))

    def _shuffled(self, epoch: Any) -> Any:
        shuffled = self.examples.shuffle(min(self.count, SHUFFLE_BUFFER), seed=epoch + 1, reshuffle_each_iteration=False)
        return shuffled.take(self.steps_per_epoch * self.global_batch)


def training_set(examples: Any, global_batch: int, seed: int, cache: bool) -> TrainingSet:
    """Cut a dataset of single examples into steps. Raises WrongInputError where there is not one whole step."""
    if cache:
        examples = examples.cache()
    count = size(examples, "train")
    if count < global_batch:
        raise WrongInputError(
            f"the training set has {count} examples, fewer than one step takes ({global_batch}, all replicas together); "
            "choose a smaller --batch-size"
        )
    return TrainingSet(examples, count, global_batch, seed)


def size(examples: Any, split: str) -> int:
    """How many examples a dataset has, by reading it where it does not say. Raises WrongInputError for none, and for no end."""
    import tensorflow as tf

    count = int(examples.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        raise WrongInputError(f"build_dataset({split!r}) never ends; leave out its repeat(), as the epochs are repeated here")
    if count == tf.data.UNKNOWN_CARDINALITY:
        count = int(examples.reduce(tf.constant(0, tf.int64), lambda n, _: n + 1))
    if count == 0:
        raise _empty(split)
    return count


def first(examples: Any, split: str) -> Any:
    """The first example, as a batch of one. Raises WrongInputError where there is none."""
    for one in examples.batch(1).take(1):
        return one
    raise _empty(split)


def distributable(batches: Any) -> Any:
    """Ready for `experimental_distribute_dataset`: each worker takes its share of every batch, so all make the same steps.

    The default policy would share out files, which a dataset need not have, and of which workers may get unequal parts.
    """
    import tensorflow as tf

    options = tf.data.Options()
    options.deterministic = True
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return batches.with_options(options).prefetch(tf.data.AUTOTUNE)


def _empty(split: str) -> WrongInputError:
    return WrongInputError(f"build_dataset({split!r}) gives no examples; check where it reads from")
