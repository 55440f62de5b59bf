"""The two training loops, Keras's `fit` and our own, and what happens between two calls of either."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any, Dict, List, Optional

from worker_image import protocol, report
from worker_image.checkpoint import Checkpoints
from worker_image.data import TrainingSet
from worker_image.evaluation import stacked
from worker_image.strategy import Group
from worker_image.train_errors import TrainError


@dataclass
class Training:
    """How far the training is, and what is due. step: steps done; checkpoint_steps: 0 to save at the ends of epochs only."""

    group: Group
    training_set: TrainingSet
    epochs: int
    checkpoints: Optional[Checkpoints]
    checkpoint_steps: int
    step: int = 0

    @property
    def total(self) -> int:
        return self.epochs * self.training_set.steps_per_epoch

    def next_stop(self) -> int:
        """The next step at which something is due: no call of several steps may go past it."""
        per_epoch = self.training_set.steps_per_epoch
        stops = [(self.step // every + 1) * every for every in (per_epoch, self.checkpoint_steps) if every]
        return min(stops)

    def done(self, step: int, metrics: Dict[str, float]) -> None:
        """Called after every call, on every worker at the same steps: report, and save where it is due or asked for."""
        before, self.step = self.step, step
        if not math.isfinite(metrics.get("loss", 0.0)):
            raise TrainError(f"the loss is {metrics['loss']} at step {step}; lower the learning rate, or look for bad values in the data")
        report.progress(step, self.total, **metrics)
        if self._epoch_ended() and self.group.chief:
            told = " ".join(f"{name} {value:.4f}" for name, value in metrics.items())
            print(f"epoch {step // self.training_set.steps_per_epoch}/{self.epochs}: {told}", flush=True)
        if self.checkpoints:
            self._save_where_due(before, self.checkpoints)

    def _epoch_ended(self) -> bool:
        return self.step % self.training_set.steps_per_epoch == 0

    def _save_where_due(self, before: int, checkpoints: Checkpoints) -> None:
        every = self.checkpoint_steps
        asked = report.save_due()
        if asked or self._epoch_ended() or (every and self.step // every > before // every):
            with report.activity("checkpoint"):
                checkpoints.save(self.step)
        if asked:
            report.saved(self.step)
            sys.exit(protocol.LEFT_AFTER_SAVE)


def fit(training: Training, model: Any, keras: Any) -> None:
    """Train with Keras's `fit`: one call for the rest of a begun epoch, one for the whole epochs."""
    per_epoch = training.training_set.steps_per_epoch
    if keras.__version__.startswith("2."):
        model.distribute_reduction_method = "first"  # by default it tells the sum of all workers' accuracies
    while training.step < training.total:
        rest = -training.step % per_epoch
        last = training.step + rest if rest else training.total
        model.fit(
            training.training_set.batches(training.step, last),
            steps_per_epoch=rest or per_epoch,
            epochs=1 if rest else (last - training.step) // per_epoch,
            shuffle=False,  # it is; Keras warns of its own default
            callbacks=[_boundary(training, keras)],
            verbose=0,
        )


def custom(training: Training, model: Any, steps_per_call: int) -> None:
    """Train with a loop of our own, of several steps a call: coming back to Python costs more than a small step."""
    import tensorflow as tf

    strategy = training.group.strategy
    names: List[str] = []

    def replica(batch: Any) -> Any:
        return stacked(model.train_step(batch), names)

    def several_steps(iterator: Any, steps: Any) -> Any:
        logs = tf.TensorArray(tf.float32, size=steps)
        for i in tf.range(steps):
            of_replicas = strategy.run(replica, args=(next(iterator),))
            logs = logs.write(i, strategy.reduce(tf.distribute.ReduceOp.MEAN, of_replicas, axis=None))
        return logs.stack()

    call = tf.function(several_steps)
    batches = training.training_set.batches(training.step, training.total)
    iterator = iter(strategy.experimental_distribute_dataset(batches))
    while training.step < training.total:
        if training.step % training.training_set.steps_per_epoch == 0:
            model.reset_metrics()
        steps = min(steps_per_call, training.next_stop() - training.step)
        logs = call(iterator, tf.constant(steps)).numpy()
        bad = [i for i in range(steps) if not math.isfinite(logs[i][names.index("loss")])]
        at = bad[0] if bad else steps - 1
        training.done(training.step + at + 1, dict(zip(names, logs[at].tolist())))


def _boundary(training: Training, keras: Any) -> Any:
    class Boundary(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 # Keras passes them by name
            self.began = training.step

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            training.done(self.began + batch + 1, {name: float(value) for name, value in logs.items()})

    return Boundary()
