"""The objects of a job that needs neither a controller nor any right: its workers find each other by name, and heal by themselves. Pure."""

from __future__ import annotations

import json
from typing import Any

from orchestrator import limits, manifests, names, worker_pod
from orchestrator.cluster import Cluster
from orchestrator.errors import InvalidJobError
from orchestrator.spec import JobSpec
from orchestrator.templates import Manifest, render, render_each

POD_LOSSES = 100  # pods of one worker that may be lost; evicted ones don't count
VERDICTS = [1, 2, 4]  # exit codes of an agent that has decided
FILE = "static.json"


def job_objects(job: JobSpec, code: bytes | None) -> list[Manifest]:
    """All that is sent, in this order; code as in manifests.job_objects. Raises InvalidJobError for what can't be."""
    values = {**_values(job), "texts": {FILE: _group(job)}, "binaries": manifests.binaries(code)}
    shared = [*render("static_network.yaml.j2", values), *render("files.yaml.j2", values)]
    limits.check(job.name, shared)
    jobs = manifests.patched(job, render_each("static_worker.yaml.j2", values, (_of_worker(job, i) for i in range(job.workers))))
    if jobs[0]["spec"]["template"]["spec"].get("hostNetwork"):
        raise InvalidJobError("kubernetes.pod sets hostNetwork, where two workers may have one address; run it with a controller")
    limits.check(job.name, jobs)
    return [*shared, *jobs]


def _group(job: JobSpec) -> str:
    """What each worker reads: all that is the same for all."""
    cluster = Cluster(tuple(names.static_address(job.name, worker) for worker in range(job.workers)))
    restarts = {"max": job.restarts.max, "within": job.restarts.within}
    group = {"cluster": cluster.spec(), "service": job.name, "start": job.deadlines.start, "restarts": restarts}
    return json.dumps(group) + "\n"


def _values(job: JobSpec) -> dict[str, Any]:
    return {
        **manifests.base_values(job),
        **worker_pod.values(job, with_key=False),
        "subdomain": job.name,
        "port": names.STATIC_PORT,
        "pod_losses": POD_LOSSES,
        "verdicts": VERDICTS,
        "command": ["python3", f"{names.MOUNT}/worker.zip", "static", f"{names.MOUNT}/{FILE}", *manifests.program_words(job)],
    }


def _of_worker(job: JobSpec, worker: int) -> dict[str, Any]:
    labels = {**manifests.base_values(job)["worker_labels"], names.WORKER_LABEL: str(worker)}
    name = names.static_worker(job.name, worker)
    index = {"name": worker_pod.INDEX, "value": str(worker)}
    return {"worker_name": name, "hostname": name, "worker_labels": labels, "env": [index, *worker_pod.environment(job, {})]}
