"""The objects that these tests make: small, and allowed under Pod Security `restricted`."""

from __future__ import annotations

from typing import Any

from tests.cluster.objects import Namespace

UNPRIVILEGED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def pod(name: str, image: str, *command: str, **spec: Any) -> dict[str, Any]:
    """A pod with one container, which is not started again."""
    return {"metadata": {"name": name, "labels": {"app": name}}, "spec": {**_spec(image, command), **spec}}


def group(name: str, image: str, *command: str, workers: int = 2, **spec: Any) -> dict[str, Any]:
    """An Indexed Job whose pods have the host names NAME-0, NAME-1 … in a headless Service called NAME."""
    template = {"metadata": {"labels": {"app": name}}, "spec": {**_spec(image, command), "subdomain": name, **spec}}
    job = {"completions": workers, "parallelism": workers, "completionMode": "Indexed", "backoffLimitPerIndex": 0, "template": template}
    return {"metadata": {"name": name}, "spec": job}


def make_group(namespace: Namespace, job: dict[str, Any]) -> None:
    """The Service first: a name that is asked for before it exists stays unknown for a while."""
    name = job["metadata"]["name"]
    service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": name}}
    namespace.cluster.core.create_namespaced_service(namespace.name, {"metadata": {"name": name}, "spec": service})
    namespace.cluster.batch.create_namespaced_job(namespace.name, job)


def _spec(image: str, command: tuple[str, ...]) -> dict[str, Any]:
    container = {"name": "main", "image": image, "command": list(command), "securityContext": UNPRIVILEGED}
    return {
        "containers": [{**container, "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]}],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
    }
