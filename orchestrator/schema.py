"""`tfrun schema`: the job file as JSON Schema, and docs/job-file.md, which is made of it (`python -m orchestrator.schema`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator.spec import JobSpec

PAGE = Path(__file__).parents[1] / "docs" / "job-file.md"
_SAYS = {
    "JobSpec.name": "name of the job and of its objects; made from the program if not given",
    "JobSpec.program": 'a script, or "-m package.module"; a relative path goes along to the workers, an absolute one is the image\'s own',
    "JobSpec.task": (
        "instead of `program`: what tfrun's training entrypoint trains, a module with build_model() and build_dataset(split); "
        "a path to a .py file, which goes along as a script does, or a dotted name"
    ),
    "JobSpec.code": "a folder that goes along with the program or the task, which is a path in it",
    "JobSpec.builtin": "a task of tfrun's own, instead of `program`",
    "JobSpec.args": "the program's arguments",
    "JobSpec.workers": "how many workers",
    "JobSpec.strategy": "the tf.distribute strategy of tfrun's training entrypoint (TFRUN_STRATEGY for other programs)",
    "JobSpec.train": "settings of the training entrypoint, for `task` and `builtin`",
    "JobSpec.env": "environment variables of the program; secrets are refused here",
    "JobSpec.restarts": "failures of the program that are forgiven",
    "JobSpec.deadlines": "how long things may take",
    "JobSpec.checkpoints": "where checkpoints go",
    "JobSpec.kubernetes": "what the job needs on a cluster; a local run does not look at it",
    "Restarts.max": "at most so many failures",
    "Restarts.within": "in so long",
    "Deadlines.start": "until every worker is ready",
    "Deadlines.run": "of the whole run",
    "Deadlines.progress": "without a step, while every worker is idle",
    "Train.epochs": "how often the training set is gone through",
    "Train.batch_size": "examples of each replica and step",
    "Train.loop": "tfrun's own, or Keras's `fit`",
    "Train.steps_per_call": "steps between two returns to Python, in tfrun's own loop; 0: chosen by measuring",
    "Train.accumulate": "parts that a replica's batch is computed in, one after the other: less memory",
    "Train.clip_norm": "most that the global norm of the gradient may be; none: any",
    "Train.jit_compile": "compile the step with XLA",
    "Train.precision": "Keras's policy",
    "Train.seed": "of the initial weights and of the order of the examples",
    "Train.deterministic": "the same result in every run, to the last bit, where TensorFlow has such operations",
    "Train.check_numerics": "end with the place where the first NaN or infinity comes from; slow",
    "Train.cache": "keep the examples in memory after the first epoch; auto: where they fit",
    "Train.drop_remainder": "leave out the examples of an epoch that fill no whole batch",
    "Train.communication": "how gradients are summed between workers",
    "Train.evaluate_epochs": "evaluate after every so many epochs; 0: at the end only",
    "Train.tensorboard": "directory of the files for TensorBoard",
    "Train.profile": "what is profiled; needs `tensorboard`",
    "Train.export": "directory of the trained model: model.keras and a SavedModel",
    "Profile.steps": "the first and the last step, counted from 1",
    "Checkpoints.directory": "the folder, the same for all workers",
    "Checkpoints.steps": "save after every so many steps; 0: at the ends of epochs. As all below: for `task` and `builtin`",
    "Checkpoints.every": "save after so long, too",
    "Checkpoints.keep": "how many stay",
    "Checkpoints.best": "metric of the evaluation whose best checkpoint stays, too",
    "Kubernetes.image": "the workers' image: any with Python 3.9 or newer and TensorFlow",
    "Kubernetes.controller": "the controller's pod",
    "Kubernetes.resources": "what each worker gets",
    "Kubernetes.namespace": "where the objects are made; `-n` overrides it",
    "Kubernetes.volumes": "PersistentVolumeClaims in every worker",
    "Kubernetes.secrets": "environment variables from Secrets, by variable",
    "Kubernetes.node_selector": "labels that the nodes must have",
    "Kubernetes.tolerations": "taints that do not keep the workers away",
    "Kubernetes.priority_class": "the workers' PriorityClass",
    "Kubernetes.service_account": "the workers' ServiceAccount; its token is not mounted",
    "Kubernetes.pull_secrets": "Secrets for the images' registries",
    "Kubernetes.spot": "run the workers on spot nodes (GKE)",
    "Kubernetes.tpu": "a TPU slice of one host, which the one worker gets whole (docs/tpu.md; never ran on a TPU)",
    "Kubernetes.time_to_live": "how long the objects stay after the end",
    "Kubernetes.pod": "merged into the workers' pod templates; what weakens the defaults is warned of",
    "Controller.image": "made from the target `controller` of tfrun's Dockerfile",
    "Controller.cpu": "request and limit",
    "Controller.memory": "request and limit",
    "Resources.cpu": "request and limit",
    "Resources.memory": "request and limit",
    "Resources.gpu": "nvidia.com/gpu",
    "Resources.shared_memory": "size of /dev/shm; part of `memory`",
    "Tpu.accelerator": "value of the node label cloud.google.com/gke-tpu-accelerator, such as tpu-v5-lite-podslice",
    "Tpu.topology": "such as 2x2",
    "Tpu.chips_per_pod": "where a topology comes in two forms: 8 for 2x4 of v5e and v6e on one host",
    "Tpu.node_pool": "this node pool only",
    "Tpu.reservation": "machines of this reservation; not with `flex_start` or `spot`",
    "Tpu.flex_start": "machines that GKE brings for at most 7 days, when they are free; not with `reservation` or `spot`",
    "Volume.claim": "name of the PersistentVolumeClaim",
    "Volume.path": "where the workers have it",
    "Volume.read_only": "mount it for reading only",
    "SecretVariable.secret": "name of the Secret",
    "SecretVariable.key": "its key",
    "Toleration.key": "of the taint; none: any",
    "Toleration.operator": "`Exists` needs no value",
    "Toleration.value": "of the taint",
    "Toleration.effect": "of the taint; none: any",
}


def schema() -> dict[str, Any]:
    """The JSON Schema, with a description of every key."""
    found = JobSpec.model_json_schema()
    for name, model in {found["title"]: found, **found["$defs"]}.items():
        for key, field in model["properties"].items():
            field.pop("title", None)
            field["description"] = _SAYS[f"{name}.{key}"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found, "title": "tfrun job file"}


def text() -> str:
    """The same, to print."""
    return json.dumps(schema(), indent=2) + "\n"


def page() -> str:
    """docs/job-file.md."""
    found = schema()
    parts = [_HEAD, _table(found, found.get("required", []))]
    for path, model in _sections(found, found["properties"], found["$defs"], ""):
        parts += [f"## `{path}`\n\n{model['description']}\n", _table(model, model.get("required", []))]
    return "\n".join(parts)


_HEAD = """# The job file

YAML 1.2. Unknown keys, duplicate keys, aliases and tags are refused. This page is made from what `tfrun schema` prints, which
editors take to complete and check job files; `python -m orchestrator.schema` writes it anew.

A duration is a number of seconds, or text such as `90s`, `10m`, `1h30m`. cpu and memory are quantities of Kubernetes, such as
`"4"`, `500m`, `8Gi`. Exactly one of `program`, `task` and `builtin` has to be given.
"""


def _sections(root: dict[str, Any], properties: dict[str, Any], models: dict[str, Any], above: str) -> list[tuple[str, dict[str, Any]]]:
    """(path, schema) of every mapping below, in the order of the keys."""
    found = []
    for key, field in properties.items():
        name = next((model for model in models if f'"#/$defs/{model}"' in json.dumps(field)), None)
        if name:
            path = f"{above}{key}" + ("[]" if field.get("type") == "array" else ".NAME" if "additionalProperties" in field else "")
            found += [(path, models[name]), *_sections(root, models[name]["properties"], models, f"{path}.")]
    return found


def _table(model: dict[str, Any], required: list[str]) -> str:
    rows = [
        f"| `{key}` | {_type(field)} | {'required' if key in required else _default(field)} | {field['description']} |"
        for key, field in model["properties"].items()
    ]
    return "\n".join(["| key | type | default | |", "|---|---|---|---|", *rows, ""])


def _type(field: dict[str, Any]) -> str:
    options = [option for option in field.get("anyOf", []) if option.get("type") != "null"]
    if [option.get("type") for option in options] == ["number", "string"]:
        return "duration"
    if options:
        return _type(options[0])
    if "$ref" in field:
        return "mapping"
    if "enum" in field or "const" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if field["type"] == "array":
        return f"list of {_several(field['items'])}"
    if field["type"] == "object":
        return (
            f"mapping of names to {_several(field['additionalProperties'])}"
            if isinstance(field["additionalProperties"], dict)
            else "mapping"
        )
    return {"string": "text", "integer": "number", "number": "number", "boolean": "true or false"}[field["type"]]


def _several(field: dict[str, Any]) -> str:
    return {"mapping": "mappings", "number": "numbers"}.get(_type(field), _type(field))


def _default(field: dict[str, Any]) -> str:
    value = field.get("default")
    if value in (None, "", [], {}) or isinstance(value, dict):
        return ""
    if isinstance(value, float):
        units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
        unit, size = next((unit, size) for unit, size in units if value % size == 0)
        return f"`{value / size:g}{unit}`"
    return f"`{json.dumps(value) if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    PAGE.write_text(page())
