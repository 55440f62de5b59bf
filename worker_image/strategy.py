"""Which tf.distribute strategy fits the place that the program runs in, and what the workers agree on with it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Callable, List, Mapping, Tuple

from worker_image.train_errors import WrongInputError

NAMES = ("auto", "default", "mirrored", "multi_worker_mirrored", "tpu")

# GKE sets the last two and never TPU_NAME; asking the metadata server instead would hang for seconds everywhere else
_TPU_SIGNS = ("TPU_NAME", "TPU_WORKER_ID", "TPU_ACCELERATOR_TYPE")


@dataclass(frozen=True)
class Choice:
    """A strategy's name, why it was taken, and this process's place: worker `index` of `workers`."""

    name: str
    reason: str
    workers: int
    index: int


class Group:
    """The strategy in force, and this process's place: worker `index` of `workers`, of which the first is the chief."""

    def __init__(self, strategy: Any, workers: int = 1, index: int = 0) -> None:
        self.strategy = strategy
        self.workers = workers
        self.chief = index == 0
        self.index = index
        self.replicas = int(strategy.num_replicas_in_sync)
        self._gather = _gatherer(strategy) if workers > 1 else None

    def gather(self, value: int) -> List[int]:
        """The value of every replica, the same list on every worker, which all must call; also a barrier."""
        return [int(v) for v in self._gather(value)] if self._gather else [value]


def choose(requested: str, environ: Mapping[str, str], gpus: int) -> Choice:
    """The strategy for this process. Raises WrongInputError where the request contradicts the environment."""
    workers, index = _place(environ.get("TF_CONFIG", ""))
    sign = next((name for name in _TPU_SIGNS if environ.get(name)), "")
    if requested == "auto":
        return Choice(*_automatic(workers, sign, gpus), workers, index)
    if requested == "tpu" and not sign:
        raise WrongInputError(f"--strategy tpu needs a TPU, and none of {', '.join(_TPU_SIGNS)} is set; use auto")
    if requested == "multi_worker_mirrored" and not workers:
        raise WrongInputError("--strategy multi_worker_mirrored needs TF_CONFIG; start the program with `tfrun run -n 2`")
    if requested in ("default", "mirrored") and workers > 1:
        raise WrongInputError(
            f"--strategy {requested} would train {workers} separate models, as TF_CONFIG names {workers} workers; "
            "use auto or multi_worker_mirrored"
        )
    return Choice(requested, "asked for with --strategy", workers, index)


def create(choice: Choice, environ: Mapping[str, str]) -> Group:
    """Make the strategy; with several workers this waits until all of them are there."""
    import tensorflow as tf

    makers = {
        "default": tf.distribute.get_strategy,
        "mirrored": tf.distribute.MirroredStrategy,
        "multi_worker_mirrored": tf.distribute.MultiWorkerMirroredStrategy,
        "tpu": lambda: _tpu(environ),
    }
    strategy = makers[choice.name]()
    several = choice.name == "multi_worker_mirrored"
    return Group(strategy, choice.workers, choice.index) if several else Group(strategy)


def _gatherer(strategy: Any) -> Callable[[int], Any]:
    """strategy.gather would trace a new graph in each call, 0.2 s every time."""
    import tensorflow as tf

    def replica(value: Any) -> Any:
        place = tf.distribute.get_replica_context().replica_id_in_sync_group
        return tf.one_hot(place, strategy.num_replicas_in_sync, dtype=tf.int64) * value

    def gather(value: Any) -> Any:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica, args=(value,)), axis=None)

    compiled = tf.function(gather)
    return lambda value: compiled(tf.constant(value, tf.int64)).numpy()


def _automatic(workers: int, tpu_sign: str, gpus: int) -> Tuple[str, str]:
    if tpu_sign:
        return "tpu", f"{tpu_sign} is set"
    if workers > 1:
        return "multi_worker_mirrored", f"TF_CONFIG names {workers} workers"
    if gpus > 1:
        return "mirrored", f"this machine has {gpus} GPUs"
    return "default", "one worker, and at most one GPU"


def _place(tf_config: str) -> Tuple[int, int]:
    """(workers, index) of TF_CONFIG, the chief counted as worker 0; (0, 0) without one."""
    try:
        config = json.loads(tf_config or "{}")
        cluster, task = config.get("cluster", {}), config.get("task", {})
        chiefs, workers = len(cluster.get("chief", [])), len(cluster.get("worker", []))
        role, index = task.get("type", "worker"), int(task.get("index", 0))
    except (ValueError, TypeError, AttributeError) as e:
        raise WrongInputError(f"TF_CONFIG is {tf_config!r:.100}, which is not a cluster description in JSON; unset it") from e
    if role not in ("chief", "worker"):
        raise WrongInputError(f"TF_CONFIG gives this process the role {role!r}; this program can only be chief or worker")
    place = index + chiefs if role == "worker" else index
    if chiefs + workers and not 0 <= place < chiefs + workers:
        raise WrongInputError(f"TF_CONFIG says {role} {index}, but its cluster has {chiefs} chief and {workers} worker entries")
    return chiefs + workers, place


def _tpu(environ: Mapping[str, str]) -> Any:
    import tensorflow as tf

    if "," in environ.get("TPU_WORKER_HOSTNAMES", ""):
        raise WrongInputError(
            f"TPU_WORKER_HOSTNAMES is {environ['TPU_WORKER_HOSTNAMES']!r:.100}, and this program drives the TPUs of one host; "
            "use a single-host topology"
        )
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=environ.get("TPU_NAME") or "local")
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)
