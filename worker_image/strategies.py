"""Which tf.distribute strategy fits the place that the program runs in, and what the workers agree on with it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterator, List, Mapping, Optional, Sequence, Tuple

from worker_image.train_errors import TrainError, WrongInputError

NAMES = ("auto", "default", "mirrored", "multi_worker_mirrored", "tpu")
TPU_DEADLINE = 300.0  # seconds for a TPU to be connected and initialized, which takes one or two minutes at most
ANSWER = 10.0  # seconds for the server of a TPU to accept a connection
COMMUNICATION = ("auto", "ring", "nccl")

# GKE sets the last two and never TPU_NAME; asking the metadata server instead would hang for seconds everywhere else
_TPU_SIGNS = ("TPU_NAME", "TPU_WORKER_ID", "TPU_ACCELERATOR_TYPE")


@dataclass(frozen=True)
class Choice:
    """A strategy's name, why it was taken, and this process's place: worker `index` of `workers`."""

    name: str
    reason: str
    workers: int
    index: int
    asked: bool = False  # for by name: then nothing else will do


class Group:
    """The strategy in force, and this process's place: worker `index` of `workers`, of which the first is the chief."""

    def __init__(self, strategy: Any, workers: int = 1, index: int = 0) -> None:
        self.strategy = strategy
        self.workers = workers
        self.chief = index == 0
        self.index = index
        self.replicas = int(strategy.num_replicas_in_sync)
        self.local_replicas = self.replicas // workers
        self._gather = _gatherer(strategy) if workers > 1 else None

    def gather(self, value: int) -> List[int]:
        """The value of every worker, the same list on every worker, which all must call; also a barrier."""
        return [row[0] for row in self.gather_all([value])]

    def gather_all(self, values: Sequence[int]) -> List[List[int]]:
        """The values of every worker, [workers][values]; as many on each of them, which all must call; also a barrier."""
        if not self._gather:
            return [list(values)]
        rows: List[List[int]] = self._gather(list(values))
        return rows[:: self.local_replicas]


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
    return Choice(requested, "it was asked for", workers, index, asked=True)


def create(choice: Choice, environ: Mapping[str, str], communication: str = "auto") -> Tuple[Choice, Group]:
    """Make the strategy; with several workers this waits until all of them are there.

    Returns what became of the choice: where `auto` chose a TPU and there is none that works, the next best, and why. Raises
    WrongInputError where the TPU was asked for.
    """
    import tensorflow as tf

    if choice.name == "tpu":
        try:
            return choice, Group(_tpu(environ))
        except WrongInputError as e:
            if choice.asked:
                raise
            name, reason = _automatic(choice.workers, "", len(tf.config.list_physical_devices("GPU")))
            choice = replace(choice, name=name, reason=f"{reason}, and the TPU can't be used: {e}")
    if choice.name == "multi_worker_mirrored":
        implementation = getattr(tf.distribute.experimental.CommunicationImplementation, communication.upper())
        options = tf.distribute.experimental.CommunicationOptions(implementation=implementation)
        strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        return choice, Group(strategy, choice.workers, choice.index)
    if choice.name == "mirrored":
        return choice, Group(tf.distribute.MirroredStrategy(_devices(tf)))
    return choice, Group(tf.distribute.get_strategy())


def split_cpu(devices: int) -> None:
    """Make several logical devices of this machine's processors, so that MirroredStrategy can be tried where there is no GPU."""
    import tensorflow as tf

    (cpu, *_) = tf.config.list_physical_devices("CPU")
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)
    except RuntimeError as e:
        raise WrongInputError(f"--logical-devices {devices} comes too late ({e}); don't use TensorFlow before the entrypoint does") from e


def described(choice: Choice, group: Group) -> List[str]:
    """What the group trains on, for people: strategy, devices, threads."""
    import tensorflow as tf

    kind = next(kind for kind in ("TPU", "GPU", "CPU") if tf.config.list_logical_devices(kind))
    threading = tf.config.threading
    threads = {"intra": threading.get_intra_op_parallelism_threads(), "inter": threading.get_inter_op_parallelism_threads()}
    # TensorFlow takes these variables where the program sets nothing, and doesn't say so.
    told = [f"{number or os.environ.get(f'TF_NUM_{name.upper()}OP_THREADS', 'all')} {name}-op" for name, number in threads.items()]
    where = f"{counted(group.replicas, 'replica')} on {counted(group.workers, 'worker')}, each on a {kind}"
    return [f"strategy: {choice.name}, because {choice.reason}", f"devices: {where}; threads: {', '.join(told)}"]


def counted(number: int, what: str) -> str:
    """Such as "1 worker" and "2 workers"."""
    return f"{number} {what}" if number == 1 else f"{number:,} {what}s"


def _devices(tf: Any) -> Optional[List[str]]:
    """Where logical devices were made of the processors: TensorFlow's own choice would be the first of them alone."""
    gpus, cpus = tf.config.list_logical_devices("GPU"), tf.config.list_logical_devices("CPU")
    return None if gpus or len(cpus) < 2 else [device.name for device in cpus]


def _gatherer(strategy: Any) -> Callable[[List[int]], List[List[int]]]:
    """strategy.gather would trace a new graph in each call, 0.2 s every time."""
    import tensorflow as tf

    def replica(values: Any) -> Any:
        place = tf.distribute.get_replica_context().replica_id_in_sync_group
        mine = tf.one_hot(place, strategy.num_replicas_in_sync, dtype=tf.int64)
        return mine[:, tf.newaxis] * values[tf.newaxis, :]

    def gather(values: Any) -> Any:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica, args=(values,)), axis=None)

    compiled = tf.function(gather, input_signature=[tf.TensorSpec([None], tf.int64)], autograph=False)
    return lambda values: compiled(tf.constant(values, tf.int64)).numpy().tolist()


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
    """The TPU of this machine, or the one that TPU_NAME names or gives the address of. Raises WrongInputError."""
    import tensorflow as tf

    if "," in environ.get("TPU_WORKER_HOSTNAMES", ""):
        raise WrongInputError(
            f"TPU_WORKER_HOSTNAMES is {environ['TPU_WORKER_HOSTNAMES']!r:.100}, and this program drives the TPUs of one host; "
            "use a single-host topology"
        )
    where = environ.get("TPU_NAME") or "local"
    _refuse_unreachable(where)
    try:
        with _deadline(TPU_DEADLINE, f"the TPU at {where!r} has not answered for {TPU_DEADLINE:.0f} s; check TPU_NAME and its node"):
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=where)
            tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)
            return tf.distribute.TPUStrategy(resolver)
    except (ValueError, RuntimeError, OSError, tf.errors.OpError) as e:
        why = " ".join(str(getattr(e, "message", e)).split()).split(". ")[0][:200]
        raise WrongInputError(f"TensorFlow finds no TPU at {where!r} ({why}); check TPU_NAME and the node, or use --strategy auto") from e


def _refuse_unreachable(where: str) -> None:
    """An address at which nobody listens: TensorFlow would wait for it for ever."""
    host, _, port = where.partition("://")[2].rpartition(":")
    if not (host and port.isdigit()):
        return
    try:
        socket.create_connection((host, int(port)), ANSWER).close()
    except OSError as e:
        raise WrongInputError(f"TPU_NAME is {where}, and nobody answers there ({e.strerror or e}); give a TPU's address") from e


@contextlib.contextmanager
def _deadline(seconds: float, sentence: str) -> Iterator[None]:
    """End this process where TensorFlow blocks, which nothing can interrupt."""

    def give_up() -> None:
        print(f"train: {sentence}", file=sys.stderr, flush=True)
        os._exit(TrainError.exit_code)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
