"""Every object of a job on Kubernetes. Pure: a job in, plain objects out; `render` prints the list that `submit` sends."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from itertools import starmap
from pathlib import PurePosixPath
from typing import Any

from orchestrator import limits, names, pod_patch, worker_pod
from orchestrator.archive import worker_archive
from orchestrator.cluster import Cluster
from orchestrator.errors import InvalidJobError
from orchestrator.kubernetes_spec import GRACE, amount
from orchestrator.spec import Deadlines, JobSpec
from orchestrator.templates import Manifest, render, render_each
from orchestrator.worker_pod import INDEX, KEY_MOUNT, environment, escaped, kubernetes_of

USER = 65532  # of the workers and the controller, in whatever image
READABLE = 20_000_000  # bytes of TF_CONFIG that --workers prints at most
CONTROLLER_RESTARTS = 100  # a controller that crashes loses nothing, and must not end a job that trains


def job_objects(job: JobSpec, code: bytes | None) -> list[Manifest]:
    """All that is sent at the start, in this order. code: the user's files as one archive, where they go along.

    Raises InvalidJobError for what Kubernetes would refuse.
    """
    values = {**_values(job), **_controller_pod(job), "texts": {"job.yaml": _understood(job)}, "binaries": binaries(code)}
    files = ("access", "key", "files", "network", "controller", "group")
    objects = patched(job, [manifest for file in files for manifest in render(f"{file}.yaml.j2", values)])
    limits.check(job.name, objects)
    return objects


def worker_objects(job: JobSpec, worker: int, incarnation: int, avoid: str = "") -> list[Manifest]:
    """The Job of one worker that replaces a lost one. avoid: the node that it was lost on, which may be lost too, and nobody knows yet."""
    objects = patched(job, render("worker.yaml.j2", {**_values(job), **_of_worker(job, worker, incarnation)}))
    for each in objects if avoid else []:
        affinity = each["spec"]["template"]["spec"].setdefault("affinity", {}).setdefault("nodeAffinity", {})
        elsewhere = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": [avoid]}]}
        affinity.setdefault("preferredDuringSchedulingIgnoredDuringExecution", []).append({"weight": 100, "preference": elsewhere})
    return objects


def each_worker(job: JobSpec) -> list[Manifest]:
    """The Job of each worker as the first that replaces it, to be read: with the TF_CONFIG that its program will find.

    The addresses in it are known only when the pods run. Raises InvalidJobError where there would be too much to read.
    """
    cluster = Cluster(tuple(f"worker-{worker}:port" for worker in range(job.workers))).spec()
    size = len(json.dumps(cluster)) * job.workers
    if size > READABLE:
        raise InvalidJobError(
            f"{job.workers} workers with a TF_CONFIG of all addresses each are {size / 1e6:,.0f} MB, and --workers prints at most "
            f"{READABLE / 1e6:.0f}; they differ in their index alone: set workers to 2 and look at those"
        )
    jobs = render_each("worker.yaml.j2", _values(job), (_of_worker(job, worker, 1) for worker in range(job.workers)))
    return [_with_tf_config(each, cluster, worker) for worker, each in enumerate(patched(job, jobs))]


def _with_tf_config(manifest: Manifest, cluster: dict[str, list[str]], worker: int) -> Manifest:
    tf_config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": worker}})
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": {names.TF_CONFIG: tf_config}}}


def _of_worker(job: JobSpec, worker: int, incarnation: int) -> dict[str, Any]:
    own = {names.WORKER_LABEL: str(worker), names.INCARNATION_LABEL: str(incarnation)}
    return {
        "worker_name": names.worker_job(job.name, worker, incarnation),
        "worker_labels": {**base_values(job)["worker_labels"], **own},
        "env": [{"name": INDEX, "value": str(worker)}, *_env(job, incarnation)],
    }


def warnings(job: JobSpec) -> list[str]:
    """What is allowed in a job and yet unwise, a sentence each."""
    (worker,) = worker_objects(job, worker=0, incarnation=1)
    kubernetes = kubernetes_of(job)
    images = [("kubernetes.image", kubernetes.image)]
    if kubernetes.controller:
        images.append(("kubernetes.controller.image", kubernetes.controller.image))
    template = worker["spec"]["template"]
    fleeting = _fleeting(job, template["spec"]["containers"][0])
    return [*filter(None, starmap(_unpinned, images)), *_of_tpu(job), *fleeting, *pod_patch.warnings(template)]


def _unpinned(field: str, image: str) -> str:
    tag = image.rpartition("/")[2].partition(":")[2]
    if "@" in image or tag not in ("", "latest"):
        return ""
    return f"{field} is {image}, which may be another image for a worker that is replaced; give a version or a digest"


def _of_tpu(job: JobSpec) -> Iterator[str]:
    """What costs a TPU's hours for nothing, or never gets one."""
    tpu, patience = kubernetes_of(job).tpu, Deadlines().start
    if tpu and (job.task or job.builtin) and not job.checkpoints:
        yield "checkpoints.directory is missing, so a lost machine's training begins anew; give a bucket, such as gs://bucket/digits"
    if tpu and job.strategy == "auto":
        yield "strategy is auto, so a program that can't use the TPU trains without it; write `strategy: tpu`, with which it ends"
    if tpu and tpu.flex_start and job.deadlines.start <= patience:
        yield (
            f"flex-start brings the machines when they are free, and the job ends if they are not there after {job.deadlines.start:g} s; "
            "give a longer deadlines.start, such as 1d"
        )


def _fleeting(job: JobSpec, container: dict[str, Any]) -> Iterator[str]:
    """What the job wants kept, and no volume keeps."""
    brought = (names.MOUNT, worker_pod.SCRATCH)
    kept = [mount["mountPath"] for mount in container["volumeMounts"] if mount["mountPath"] not in brought]
    given = {"checkpoints.directory": job.checkpoints and job.checkpoints.directory}
    given |= {"train.tensorboard": job.train.tensorboard, "train.export": job.train.export} if job.train else {}
    if (job.task or job.builtin) and not job.checkpoints and job.workers > 1:
        yield "checkpoints.directory is missing, so a restart trains from the start; give a path on one of kubernetes.volumes"
    for key, directory in given.items():
        if directory and "://" not in directory and not any(PurePosixPath(directory).is_relative_to(path) for path in kept):
            yield f"{key} is {directory}, which is lost with the pod; give a path on one of kubernetes.volumes"


def _understood(job: JobSpec) -> str:
    return json.dumps(job.model_dump(mode="json", exclude_defaults=True), indent=2) + "\n"


def base_values(job: JobSpec) -> dict[str, Any]:
    """For every template of a job."""
    kubernetes = kubernetes_of(job)
    selector = {names.JOB_LABEL: job.name}
    labels = {**selector, "app.kubernetes.io/managed-by": "tfrun"}
    return {
        "name": job.name,
        "namespace": kubernetes.namespace,
        "files": names.files(job.name),
        "labels": labels,
        "worker_labels": {**labels, names.ROLE_LABEL: "worker"},
        "worker_selector": {**selector, names.ROLE_LABEL: "worker"},
        "user": USER,
        "grace": GRACE,
        "run_deadline": int(job.deadlines.start + job.deadlines.run),
        "time_to_live": int(kubernetes.time_to_live),
    }


def _values(job: JobSpec) -> dict[str, Any]:
    base = base_values(job)
    return {
        **base,
        "controller": names.controller(job.name),
        "key": names.key(job.name),
        "controller_labels": {**base["labels"], names.ROLE_LABEL: "controller"},
        "controller_selector": {**base["worker_selector"], names.ROLE_LABEL: "controller"},
        "worker_labels": {**base["worker_labels"], names.INCARNATION_LABEL: "0"},
        "port": names.PORT,
        "workers": job.workers,
        "mount": names.MOUNT,
        "key_mount": KEY_MOUNT,
        "controller_restarts": CONTROLLER_RESTARTS,
        **worker_pod.values(job, with_key=True),
        "command": _command(job),
        "env": _env(job, 0),
    }


def binaries(code: bytes | None) -> dict[str, str]:
    """The archives that a worker's pod reads."""
    archives = {"worker.zip": worker_archive(), **({"code.zip": code} if code else {})}
    return {name: base64.b64encode(content).decode() for name, content in archives.items()}


def _command(job: JobSpec) -> list[str]:
    # The process that has imported TensorFlow first has the TPU's lock (/tmp/libtpu_lockfile) until it ends; an imported standby would
    # never get the TPU, also not when it takes over.
    alone = ("--no-standby",) if kubernetes_of(job).tpu else ()
    return [
        *("python3", f"{names.MOUNT}/worker.zip", "agent"),
        *("--controller", f"{names.controller(job.name)}:{names.PORT}"),
        *("--worker", f"$({INDEX})", "--incarnation", "$(TFRUN_INCARNATION)", "--host", "$(TFRUN_POD_IP)"),
        *("--secret-file", f"{KEY_MOUNT}/token", "--join-deadline", f"{job.deadlines.start:g}", "--rejoin", f"{job.deadlines.run:g}"),
        *alone,
        *program_words(job),
    ]


def program_words(job: JobSpec) -> list[str]:
    """What an agent is told of the program, and of the archive that it is in."""
    kind, target, *arguments = job.shipped().command()
    code = ("--code", f"{names.MOUNT}/code.zip") if job.ships_code() else ()
    return [*code, kind, target, *(escaped(argument) for argument in arguments)]


def _env(job: JobSpec, incarnation: int) -> list[dict[str, Any]]:
    address = {"name": "TFRUN_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    return [*environment(job, {"TFRUN_INCARNATION": str(incarnation)}), address]


def patched(job: JobSpec, objects: Iterable[Manifest]) -> list[Manifest]:
    """With the job file's own patch in every worker's pod."""
    return [_with_patch(each, kubernetes_of(job).pod) if is_of_workers(each) else each for each in objects]


def is_of_workers(manifest: Manifest) -> bool:
    """Whether it is a Job whose pods are workers."""
    return manifest["kind"] == "Job" and bool(manifest["spec"]["template"]["metadata"]["labels"][names.ROLE_LABEL] == "worker")


def _with_patch(manifest: Manifest, patch: dict[str, Any]) -> Manifest:
    return {**manifest, "spec": {**manifest["spec"], "template": pod_patch.applied(manifest["spec"]["template"], patch)}}


def _controller_pod(job: JobSpec) -> dict[str, Any]:
    controller = kubernetes_of(job).controller
    if controller is None:
        raise InvalidJobError(
            f"kubernetes.controller.image of {job.name} is missing; it is made from the target `controller` of tfrun's Dockerfile, "
            "and only `tfrun render --static` does without"
        )
    return {
        "controller_image": controller.image,
        "controller_command": ["tfrun", "controller", f"{names.MOUNT}/job.yaml", f"{KEY_MOUNT}/token"],
        "controller_requests": {"cpu": controller.cpu, "memory": controller.memory},
        # Its start is a second of processor, which everyone waits for; later it needs next to nothing.
        "controller_limits": {"cpu": max("1", controller.cpu, key=amount), "memory": controller.memory},
    }
