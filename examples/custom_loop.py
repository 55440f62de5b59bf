"""A training loop of one's own, on as many workers as there are, which goes on where it was when a worker is lost.

    tfrun run -n 2 examples/custom_loop.py
    python examples/custom_loop.py

The checkpoints go to TFRUN_CHECKPOINT_DIR, which tfrun sets (the job file's checkpoints.directory); with plain Python there are none.
"""

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import worker_image

STEPS = 300
BATCH = 32  # examples per replica

strategy = worker_image.strategy()  # by TF_CONFIG and the devices; before anything else of TensorFlow
global_batch = BATCH * strategy.num_replicas_in_sync

images, labels = load_digits(return_X_y=True)
train_x, test_x, train_y, test_y = train_test_split((images / 16.0).astype("float32"), labels, test_size=0.2, random_state=0)

with strategy.scope():
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
    optimizer = keras.optimizers.Adam(0.005)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def batches(first_step):
    """Each worker's share of every step's batch, in an order that depends on the step alone: a resumed run sees what it would have seen."""
    order = tf.data.Dataset.range(first_step, STEPS).map(
        lambda step: tf.random.stateless_uniform([global_batch], [0, step], 0, len(train_x), tf.int32)
    )
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    picked = order.map(lambda rows: (tf.gather(train_x, rows), tf.gather(train_y, rows)))
    return strategy.experimental_distribute_dataset(picked.with_options(options))


@tf.function
def train_step(batch):
    def replica(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(loss_of(y, model(x, training=True))) / global_batch
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return strategy.reduce("SUM", strategy.run(replica, args=batch), axis=None)


training = worker_image.resume(model=model, optimizer=optimizer)  # the newest checkpoint, where there is one
for step, batch in enumerate(batches(training.step), training.step):
    loss = train_step(batch)
    training.stepped(step + 1, STEPS, loss=loss)  # reports; saves every 100 steps; saves and leaves when asked

right = tf.argmax(model(test_x), axis=1) == test_y
print(f"test accuracy {tf.reduce_mean(tf.cast(right, tf.float32)):.3f} after {STEPS} steps")
