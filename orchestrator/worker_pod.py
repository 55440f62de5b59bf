"""What a worker's pod has, whichever Job makes it: its variables, its volumes, where it may run. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from orchestrator import names, tpu
from orchestrator.errors import InvalidJobError
from orchestrator.kubernetes_spec import Kubernetes, Volume, amount
from orchestrator.spec import JobSpec
from orchestrator.tpu_capacity import Capacity

# Every Kubernetes that is supported sets it in the pods of an Indexed Job; a Job of one worker sets it itself.
INDEX = "JOB_COMPLETION_INDEX"
KEY_MOUNT = f"{names.MOUNT}-key"
SCRATCH = "/tmp"  # noqa: S108 # the pod's own emptyDir


def kubernetes_of(job: JobSpec) -> Kubernetes:
    """The job's part about Kubernetes. Raises InvalidJobError if it has none, or if its TPU and the rest of the job contradict."""
    if job.kubernetes is None:
        raise InvalidJobError(
            f"the job {job.name} has no part `kubernetes`; it needs at least image, controller.image and resources.memory"
        )
    _check_tpu(job, job.kubernetes)
    return job.kubernetes


def _check_tpu(job: JobSpec, kubernetes: Kubernetes) -> None:
    """What only matters on a cluster: a local run of the same job may have other workers, and a TPU of its own."""
    if kubernetes.tpu is None:
        if job.strategy == "tpu" and "TPU_NAME" not in job.env:  # which names a TPU elsewhere
            raise InvalidJobError(
                f"the job {job.name} has the strategy tpu and no kubernetes.tpu, so its pod would get no TPU; add kubernetes.tpu with an "
                "accelerator and a topology (`tfrun tpu` lists them), or write `strategy: auto`"
            )
        return
    if job.strategy not in ("auto", "tpu"):
        raise InvalidJobError(
            f"the job {job.name} has the strategy {job.strategy} beside kubernetes.tpu, and only TPUStrategy trains on a TPU; "
            "write `strategy: tpu`, or remove kubernetes.tpu"
        )
    if job.workers > 1:
        raise InvalidJobError(
            f"the job {job.name} has {job.workers} workers on {kubernetes.tpu.accelerator} {kubernetes.tpu.topology}, which is one host, "
            f"and MultiWorkerMirroredStrategy does not span TPUs; set workers to 1, and submit {job.workers} jobs for as many slices"
        )


def values(job: JobSpec, with_key: bool) -> dict[str, Any]:
    """For the templates: what does not depend on how the worker finds its group. with_key: whether the group's key is mounted."""
    kubernetes = kubernetes_of(job)
    resources = kubernetes.resources
    chips = {"nvidia.com/gpu": str(resources.gpu)} if resources.gpu else {}
    selector, tolerations = Capacity(kubernetes.spot).node_selector(), [t.model_dump(exclude_none=True) for t in kubernetes.tolerations]
    if kubernetes.tpu:
        chips, selector = tpu.resources(kubernetes.tpu.slice()), kubernetes.tpu.node_selector(kubernetes.spot)
        tolerations += [tpu.TOLERATION] if tpu.TOLERATION not in tolerations else []
    volumes = _volumes(kubernetes, job, with_key)
    return {
        "image": kubernetes.image,
        "resources": {"cpu": resources.cpu, "memory": resources.memory, **chips},
        "service_account": kubernetes.service_account,
        "priority_class": kubernetes.priority_class,
        "pull_secrets": [{"name": name} for name in kubernetes.pull_secrets],
        "node_selector": {**kubernetes.node_selector, **selector},
        "tolerations": tolerations,
        "mounts": [mount for mount, _ in volumes],
        "volumes": [volume for _, volume in volumes],
    }


def environment(job: JobSpec, ours: Mapping[str, str]) -> list[dict[str, Any]]:
    """The variables of a worker, `ours` among them."""
    # A pod's own folder would be another one in each worker, and a training resumes only from what all of them see.
    alone = f"{SCRATCH}/checkpoints" if job.workers == 1 else ""
    directory = job.checkpoints.directory if job.checkpoints else alone
    given_tpu = kubernetes_of(job).tpu
    every = {
        **(tpu.environment(job.name, given_tpu.slice(), index=0) if given_tpu else {}),
        "TFRUN_WORKERS": str(job.workers),
        "TFRUN_STRATEGY": job.strategy,
        **({"TFRUN_CHECKPOINT_DIR": directory} if directory else {}),
    }
    # TensorFlow counts the node's processors, not the pod's share of them, and would make a thread for each.
    threads = {"TF_NUM_INTRAOP_THREADS": str(math.ceil(amount(kubernetes_of(job).resources.cpu)))}
    given = [{"name": name, "value": escaped(value)} for name, value in {**threads, **job.env, **ours, **every}.items()]
    secrets = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": ref.secret, "key": ref.key}}}
        for name, ref in kubernetes_of(job).secrets.items()
    ]
    return [*given, *secrets]


def escaped(text: str) -> str:
    """As Kubernetes must be told a text that holds "$(NAME)", which it would replace."""
    return text.replace("$(", "$$(")


def _volumes(kubernetes: Kubernetes, job: JobSpec, with_key: bool) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(mount, volume) of everything that a worker sees beside its image."""
    files = {"name": names.files(job.name)}
    ours: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"name": "files", "mountPath": names.MOUNT, "readOnly": True}, {"name": "files", "configMap": files}),
        ({"name": "tmp", "mountPath": SCRATCH}, {"name": "tmp", "emptyDir": {}}),
    ]
    if with_key:
        key = {"secretName": names.key(job.name), "items": [{"key": "token", "path": "token"}]}
        ours.insert(1, ({"name": "key", "mountPath": KEY_MOUNT, "readOnly": True}, {"name": "key", "secret": key}))
    shared = kubernetes.resources.shared_memory
    if shared:
        memory = {"medium": "Memory", "sizeLimit": shared}
        ours.append(({"name": "shared-memory", "mountPath": "/dev/shm"}, {"name": "shared-memory", "emptyDir": memory}))  # noqa: S108 # the pod's own
    return [*ours, *(_claimed(number, volume) for number, volume in enumerate(kubernetes.volumes))]


def _claimed(number: int, volume: Volume) -> tuple[dict[str, Any], dict[str, Any]]:
    name = f"volume-{number}"
    return {"name": name, "mountPath": volume.path, "readOnly": volume.read_only}, {
        "name": name,
        "persistentVolumeClaim": {"claimName": volume.claim, "readOnly": volume.read_only},
    }
