"""The peer on a cluster: a plain Indexed Job with a headless Service, and TF_CONFIG with the static names that this gives."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.cluster import NAME, RESOURCES, STEPS
from tests.cluster import images, manifests
from tests.cluster.objects import Namespace

GRACE = 5  # seconds: TensorFlow swallows SIGTERM, so the default of 30 would only make the peer's recoveries longer
PORT = 2222


def objects(
    to: Namespace, *arguments: object, workers: int = 2, shared: bool = False, wait: bool = True, restart: str = "Never", **fields: Any
) -> str:
    """All of it, for `kubectl apply`. shared: with the shared folder; fields: of the Job's specification.

    wait: whether the workers wait for the names, in a loop of the shell, before Python starts; else TensorFlow asks for them.
    """
    command = _script(workers, wait, f"exec python3 /code/{STEPS.name} {' '.join(map(str, arguments))}")
    job = manifests.group(NAME, to.cluster.image(images.TENSORFLOW), "sh", "-c", command, workers=workers)
    pod = job["spec"]["template"]["spec"]
    pod |= {"terminationGracePeriodSeconds": GRACE, "restartPolicy": restart}
    pod["containers"][0]["resources"] = {"requests": RESOURCES, "limits": RESOURCES}
    _mount(pod, "code", {"configMap": {"name": NAME}})
    if shared:
        _mount(pod, "data", {"persistentVolumeClaim": {"claimName": "shared"}})
    if restart != "Never":
        del job["spec"]["backoffLimitPerIndex"]  # Kubernetes allows it only for pods that are never restarted
    metadata = {"name": NAME, "namespace": to.name}
    service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": NAME}}
    items = [
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {STEPS.name: STEPS.read_text()}},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {**job["spec"], **fields}},
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def _script(workers: int, wait: bool, program: str) -> str:
    hosts = [f"{NAME}-{index}.{NAME}" for index in range(workers)]
    addresses = json.dumps([f"{host}:{PORT}" for host in hosts])
    config = f"""'{{"cluster": {{"worker": {addresses}}}, "task": {{"type": "worker", "index": '$JOB_COMPLETION_INDEX'}}}}'"""
    known = " && ".join(f"getent hosts {host}" for host in hosts)
    waiting = [f"until {known}; do sleep 0.5; done >/dev/null"] if wait else []
    return "\n".join([f"export TF_CONFIG={config}", *waiting, program])


def _mount(pod: dict[str, Any], name: str, volume: dict[str, Any]) -> None:
    pod["volumes"].append({"name": name, **volume})
    pod["containers"][0]["volumeMounts"].append({"name": name, "mountPath": f"/{name}"})
