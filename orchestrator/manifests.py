"""Every object of a job on Kubernetes. Pure: a job in, plain objects out; `render` prints the list that `submit` sends."""

from __future__ import annotations

import base64
import json
from pathlib import PurePath
from typing import Any

from orchestrator import names
from orchestrator.archive import worker_archive
from orchestrator.errors import InvalidJobError
from orchestrator.kubernetes_spec import Kubernetes, Volume
from orchestrator.spec import JobSpec
from orchestrator.templates import Manifest, render

USER = 65532  # of the workers and the controller, in whatever image
GRACE = 30  # seconds from SIGTERM to SIGKILL: the time for a save
CONTROLLER_RESTARTS = 100  # a controller that crashes loses nothing, and must not end a job that trains
CONFIG_MAP_LIMIT = 1_048_576  # bytes: kubernetes.io/docs/concepts/configuration/configmap
_KEY_MOUNT = f"{names.MOUNT}-key"
_CODE = f"{names.MOUNT}/code.zip"
_SPOT = {"cloud.google.com/gke-spot": "true"}
# Every Kubernetes that is supported sets it in the pods of an Indexed Job; a Job of one worker sets it itself.
_INDEX = "JOB_COMPLETION_INDEX"


def shipped(job: JobSpec) -> str | None:
    """The program's name in the archive of the user's code; None where the image has the program (an absolute path, a module)."""
    kind, target = job.target()
    return PurePath(target).name if kind == "script" and not PurePath(target).is_absolute() else None


def job_objects(job: JobSpec, code: bytes | None) -> list[Manifest]:
    """All that is sent at the start, in this order. code: the archive that `shipped` speaks of, made by archive.pack.

    Raises InvalidJobError for what Kubernetes would refuse.
    """
    binaries = _binaries(code)
    _check_size(binaries, job.name)
    values = {**_values(job), "texts": {"job.yaml": _understood(job)}, "binaries": binaries}
    files = ("access", "key", "files", "network", "controller", "group")
    return [manifest for file in files for manifest in render(f"{file}.yaml.j2", values)]


def worker_objects(job: JobSpec, worker: int, incarnation: int) -> list[Manifest]:
    """The Job of one worker that replaces a lost one."""
    values = _values(job)
    env = [{"name": _INDEX, "value": str(worker)}, *_env(job, incarnation)]
    labels = {**values["worker_labels"], names.WORKER_LABEL: str(worker), names.INCARNATION_LABEL: str(incarnation)}
    name = names.worker_job(job.name, worker, incarnation)
    return render("worker.yaml.j2", {**values, "worker_name": name, "env": env, "worker_labels": labels})


def _understood(job: JobSpec) -> str:
    return json.dumps(job.model_dump(mode="json", exclude_defaults=True), indent=2) + "\n"


def _values(job: JobSpec) -> dict[str, Any]:
    kubernetes = _kubernetes(job)
    selector = {names.JOB_LABEL: job.name}
    labels = {**selector, "app.kubernetes.io/managed-by": "tfrun"}
    return {
        "name": job.name,
        "namespace": kubernetes.namespace,
        "controller": names.controller(job.name),
        "key": names.key(job.name),
        "files": names.files(job.name),
        "labels": labels,
        "selector": selector,
        "controller_labels": {**labels, names.ROLE_LABEL: "controller"},
        "worker_labels": {**labels, names.ROLE_LABEL: "worker", names.INCARNATION_LABEL: "0"},
        "port": names.PORT,
        "workers": job.workers,
        "user": USER,
        "grace": GRACE,
        "mount": names.MOUNT,
        "key_mount": _KEY_MOUNT,
        "run_deadline": int(job.deadlines.start + job.deadlines.run),
        "time_to_live": int(kubernetes.time_to_live),
        "controller_restarts": CONTROLLER_RESTARTS,
        **_pod(job, kubernetes),
        **_controller_pod(kubernetes),
    }


def _kubernetes(job: JobSpec) -> Kubernetes:
    if job.kubernetes is None:
        raise InvalidJobError(
            f"the job {job.name} has no part `kubernetes`; it needs at least image, controller.image and resources.memory"
        )
    return job.kubernetes


def _binaries(code: bytes | None) -> dict[str, str]:
    archives = {"worker.zip": worker_archive(), **({"code.zip": code} if code else {})}
    return {name: base64.b64encode(content).decode() for name, content in archives.items()}


def _check_size(binaries: dict[str, str], name: str) -> None:
    size = sum(map(len, binaries.values()))
    if size > CONFIG_MAP_LIMIT * 0.95:  # the rest is for the job file
        raise InvalidJobError(
            f"the code of {name} is {size / 1e6:.1f} MB in a ConfigMap, which holds at most 1 MB; put it into the image, "
            "and give its path there as the program"
        )


def _pod(job: JobSpec, kubernetes: Kubernetes) -> dict[str, Any]:
    resources = kubernetes.resources
    gpu = {"nvidia.com/gpu": str(resources.gpu)} if resources.gpu else {}
    volumes = _volumes(kubernetes, job)
    return {
        "image": kubernetes.image,
        "command": _command(job),
        "env": _env(job, 0),
        "resources": {"cpu": resources.cpu, "memory": resources.memory, **gpu},
        "service_account": kubernetes.service_account,
        "priority_class": kubernetes.priority_class,
        "pull_secrets": [{"name": name} for name in kubernetes.pull_secrets],
        "node_selector": {**kubernetes.node_selector, **(_SPOT if kubernetes.spot else {})},
        "tolerations": [toleration.model_dump(exclude_none=True) for toleration in kubernetes.tolerations],
        "mounts": [mount for mount, _ in volumes],
        "volumes": [volume for _, volume in volumes],
    }


def _command(job: JobSpec) -> list[str]:
    kind, target, *arguments = job.command()
    program = shipped(job)
    return [
        *("python3", f"{names.MOUNT}/worker.zip", "agent"),
        *("--controller", f"{names.controller(job.name)}:{names.PORT}"),
        *("--worker", f"$({_INDEX})", "--incarnation", "$(TFRUN_INCARNATION)", "--host", "$(TFRUN_POD_IP)"),
        *("--secret-file", f"{_KEY_MOUNT}/token", "--join-deadline", f"{job.deadlines.start:g}"),
        *(("--code", _CODE) if program else ()),
        *(kind, program or target, *(_escaped(argument) for argument in arguments)),
    ]


def _env(job: JobSpec, incarnation: int) -> list[dict[str, Any]]:
    kubernetes = _kubernetes(job)
    directory = job.checkpoints.directory if job.checkpoints else "/tmp/checkpoints"  # noqa: S108 # the pod's own emptyDir
    ours = {
        "TFRUN_INCARNATION": str(incarnation),
        "TFRUN_WORKERS": str(job.workers),
        "TFRUN_STRATEGY": job.strategy,
        "TFRUN_CHECKPOINT_DIR": directory,
    }
    given = [{"name": name, "value": _escaped(value)} for name, value in {**job.env, **ours}.items()]
    secrets = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": ref.secret, "key": ref.key}}} for name, ref in kubernetes.secrets.items()
    ]
    return [*given, *secrets, {"name": "TFRUN_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]


def _volumes(kubernetes: Kubernetes, job: JobSpec) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(mount, volume) of everything that a worker sees beside its image."""
    files, key = {"name": names.files(job.name)}, {"secretName": names.key(job.name), "items": [{"key": "token", "path": "token"}]}
    ours: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"name": "files", "mountPath": names.MOUNT, "readOnly": True}, {"name": "files", "configMap": files}),
        ({"name": "key", "mountPath": _KEY_MOUNT, "readOnly": True}, {"name": "key", "secret": key}),
        ({"name": "tmp", "mountPath": "/tmp"}, {"name": "tmp", "emptyDir": {}}),  # noqa: S108 # the pod's own
    ]
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


def _escaped(text: str) -> str:
    """As Kubernetes must be told a text that holds "$(NAME)", which it would replace."""
    return text.replace("$(", "$$(")


def _controller_pod(kubernetes: Kubernetes) -> dict[str, Any]:
    controller = kubernetes.controller
    return {
        "controller_image": controller.image,
        "controller_command": ["tfrun", "controller", f"{names.MOUNT}/job.yaml", f"{_KEY_MOUNT}/token"],
        "controller_resources": {"cpu": controller.cpu, "memory": controller.memory},
    }
