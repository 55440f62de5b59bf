"""One replica's training step: Keras's own, or ours where a batch is computed in parts, gradients are clipped, or XLA compiles them."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from worker_image.strategies import Group
from worker_image.train_errors import WrongInputError


def install(group: Group, model: Any, accumulate: int, clip_norm: Optional[float], jit_compile: bool) -> None:
    """Make `model.train_step`, which both loops call, do what is asked for. Raises WrongInputError where it is the user's own.

    accumulate: parts in which a replica's batch is computed, one after the other, for one update. clip_norm: of all gradients together,
    of the mean over the whole batch, as one worker would clip it; Keras's own clipping takes each replica's gradient for itself.
    """
    # Keras 3 decides on each replica for itself whether 16-bit gradients have overflowed, and a replica that skips the update is waited
    # for by those that don't (keras/src/optimizers/loss_scale_optimizer.py, _tf_apply): they must have the same gradients before.
    scaled = group.replicas > 1 and _is_keras_3_scaling(model.optimizer)
    if accumulate == 1 and not clip_norm and not jit_compile and not scaled:
        return
    if is_custom(model):
        raise WrongInputError(
            "the model has a train_step of its own, and --accumulate, --clip-norm, --jit-compile, and mixed_float16 on several replicas "
            "need Keras's; leave them out, or do the same in that train_step"
        )
    model.train_step = _Step(group, model, accumulate, clip_norm, jit_compile, summed_first=scaled or bool(clip_norm))


def is_custom(model: Any) -> bool:
    """Whether the step is the user's, and not Keras's."""
    return type(model).train_step.__module__.split(".")[0] not in ("keras", "tf_keras")


class _Step:
    """Keras's train_step, cut so that there is something in between. Called on each replica, with (x, y) or (x, y, weight)."""

    def __init__(
        self, group: Group, model: Any, accumulate: int, clip_norm: Optional[float], jit_compile: bool, summed_first: bool
    ) -> None:
        import tensorflow as tf

        self._group = group
        self._model = model
        self._parts = accumulate
        self._clip_norm = clip_norm
        self._summed_first = summed_first
        # Not the whole step: XLA can't compile what the workers exchange.
        self._compute = tf.function(self._gradients, jit_compile=True) if jit_compile else self._gradients

    def __call__(self, batch: Any) -> Dict[str, Any]:
        x, y, *weights = batch
        gradients = self._of_all_parts(x, y, weights[0] if weights else None)
        optimizer = self._model.optimizer
        if hasattr(optimizer, "get_unscaled_gradients"):  # Keras 2; Keras 3 does it on applying them
            gradients = optimizer.get_unscaled_gradients(gradients)
        if self._summed_first:
            gradients = self._summed(gradients)
        optimizer.apply_gradients(zip(gradients, self._model.trainable_variables))
        return dict(self._model.get_metrics_result())

    def _of_all_parts(self, x: Any, y: Any, weights: Any) -> List[Any]:
        import tensorflow as tf

        if self._parts == 1:
            return self._of_part(x, y, weights)
        rows = tf.shape(tf.nest.flatten(x)[0])[0]
        parts = tf.minimum(self._parts, rows)  # no part may be empty: the mean over no example is NaN

        def one(part: Any, total: Any) -> Any:
            begin, end = part * rows // parts, (part + 1) * rows // parts
            cut = tf.nest.map_structure(lambda each: None if each is None else each[begin:end], (x, y, weights))
            share = tf.cast(end - begin, tf.float32) / tf.cast(rows, tf.float32)
            return part + 1, [old + tf.cast(share, new.dtype) * new for old, new in zip(total, self._of_part(*cut))]

        nothing = [tf.zeros(variable.shape, variable.dtype) for variable in self._model.trainable_variables]
        _, total = tf.while_loop(lambda part, _: part < parts, one, (tf.constant(0), nothing), parallel_iterations=1)
        return list(total)

    def _of_part(self, x: Any, y: Any, weights: Any) -> List[Any]:
        import tensorflow as tf

        gradients, loss, predicted = self._compute(x, y, weights)
        tracker = getattr(self._model, "_loss_tracker", None)  # of Keras 3; in Keras 2 compute_loss notes the loss itself
        if tracker is None:
            # Without the results, which compute_metrics asks all replicas for, and that can't be done within a loop.
            self._model.compiled_metrics.update_state(y, predicted, weights)
        else:
            tracker.update_state(loss * self._group.replicas, sample_weight=tf.shape(tf.nest.flatten(x)[0])[0])
            self._model.compute_metrics(x, y, predicted, weights)
        return list(gradients)

    def _gradients(self, x: Any, y: Any, weights: Any) -> Any:
        """(gradients of the loss, which is this replica's part of the mean over all replicas; that loss; the predictions)."""
        import tensorflow as tf

        # Keras 3's variables have TensorFlow's as their value; a variable of TensorFlow has a method of that name.
        values = ((variable, getattr(variable, "value", variable)) for variable in self._model.trainable_variables)
        variables = [variable if callable(value) else value for variable, value in values]
        with tf.GradientTape() as tape:
            predicted = self._model(x, training=True)
            loss = self._model.compute_loss(x, y, predicted, weights)
            scaled = _scaled(self._model.optimizer, loss)
        gradients = tape.gradient(scaled, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return [tf.convert_to_tensor(gradient) for gradient in gradients], loss, predicted

    def _summed(self, gradients: List[Any]) -> List[Any]:
        """The same on all replicas, and clipped: a replica's share, since the optimizer sums over the replicas once more."""
        import tensorflow as tf

        summed = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        if self._clip_norm:
            scale = getattr(self._model.optimizer, "dynamic_scale", None)  # Keras 3's gradients are still scaled
            summed, _ = tf.clip_by_global_norm(summed, self._clip_norm * (1.0 if scale is None else tf.convert_to_tensor(scale)))
        return [gradient / self._group.replicas for gradient in summed]


def _is_keras_3_scaling(optimizer: Any) -> bool:
    return hasattr(optimizer, "inner_optimizer") and hasattr(optimizer, "scale_loss")


def _scaled(optimizer: Any, loss: Any) -> Any:
    """By the optimizer's factor for 16-bit gradients, where it has one."""
    for name in ("scale_loss", "get_scaled_loss"):  # Keras 3, Keras 2
        if hasattr(optimizer, name):
            return getattr(optimizer, name)(loss)
    return loss
