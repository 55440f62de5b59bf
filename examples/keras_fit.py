"""Ordinary Keras: compile, fit, evaluate, on as many workers as TF_CONFIG names. Nothing in it knows of tfrun.

tfrun run -n 2 examples/keras_fit.py
"""

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

BATCH_SIZE = 32  # per replica

strategy = tf.distribute.MultiWorkerMirroredStrategy()
global_batch = BATCH_SIZE * strategy.num_replicas_in_sync

images, labels = load_digits(return_X_y=True)
train_x, test_x, train_y, test_y = train_test_split((images / 16.0).astype("float32"), labels, test_size=0.2, random_state=0)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA


def batches(x, y):
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=1)
    return dataset.batch(global_batch, drop_remainder=True).with_options(options)


with strategy.scope():
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
    model.compile(
        optimizer=keras.optimizers.Adam(0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

model.fit(batches(train_x, train_y), epochs=5, verbose=2)
loss, accuracy = model.evaluate(batches(test_x, test_y), verbose=0)
print(f"test accuracy {accuracy:.3f}")
