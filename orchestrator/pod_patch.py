"""The job file's `kubernetes.pod`: a patch of the workers' pod template, for what the job file has no key for. Pure.

Mappings are merged, lists of named things too, other lists and plain values are replaced, and null removes: as `kubectl patch` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from orchestrator import names, tpu
from orchestrator.errors import InvalidJobError
from orchestrator.fields import check_string, check_variable, holds_secret

Template = dict[str, Any]
OURS = "worker"  # the container that the agent runs in

# By which of its fields Kubernetes knows an item of a list; lists that are not here are replaced.
_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
_ONE_OF = ("volumes", "env")  # an item has one source, so a patch that gives one takes the other away
_LABELS = ("tfrun.dev/", "app.kubernetes.io/managed-by", "batch.kubernetes.io/", "job-name", "controller-uid")
_KEPT_FIELDS = ("restartPolicy", "hostname", "subdomain")
_KEPT_IN_CONTAINER = ("command", "args", "image")
_KEPT_VOLUMES = ("files", "key")


def applied(template: Template, patch: Template) -> Template:
    """The template with the patch. Raises InvalidJobError for what a pod template can't be, or what would break the group."""
    if not patch:
        return template
    _check_shape(patch)
    result: Template = _merged(template, {part: given for part, given in patch.items() if given}, "kubernetes.pod", "")
    _check_kept(template, result)
    return result


def warnings(template: Template) -> list[str]:
    """What of a finished template is weaker than what tfrun makes by itself, a sentence each."""
    spec = template["spec"]
    found = [f"sets {name}, which takes away the wall between the pod and its node" for name in _HOST if spec.get(name)]
    found += [f"mounts the node's own {v['hostPath'].get('path')} (hostPath)" for v in spec.get("volumes", []) if v.get("hostPath")]
    if spec.get("automountServiceAccountToken") is not False:
        found.append("gives the workers a token for the cluster's API (automountServiceAccountToken)")
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        found += [f"{text} (container {container.get('name')})" for text in _weaknesses(container, spec.get("securityContext") or {})]
    beside = [c["name"] for c in spec["containers"] if c["name"] != OURS]
    if beside:
        found.append(f"adds the container {beside[0]}, and a worker is over only when that has ended too; initContainers may run beside it")
    return [f"kubernetes.pod {text}" for text in found]


_HOST = ("hostNetwork", "hostPID", "hostIPC")


def _weaknesses(container: Template, pod: Template) -> Iterator[str]:
    own: Template = container.get("securityContext") or {}
    both = {**pod, **own}
    if own.get("privileged"):
        yield "runs privileged, as root of the node"
    if both.get("runAsUser") == 0 or both.get("runAsNonRoot") is not True:
        yield "may run as root (runAsUser, runAsNonRoot)"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "may gain privileges (allowPrivilegeEscalation)"
    capabilities = own.get("capabilities") or {}
    if capabilities.get("add"):
        yield f"has more capabilities ({', '.join(map(str, capabilities['add']))})"
    if "ALL" not in (capabilities.get("drop") or ()):
        yield "keeps capabilities (capabilities.drop)"
    if (both.get("seccompProfile") or {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield "may make every system call (seccompProfile)"
    if own.get("readOnlyRootFilesystem") is not True:
        yield "may write into its image's files (readOnlyRootFilesystem)"
    if any(port.get("hostPort") for port in container.get("ports") or ()):
        yield "opens a port of its node (hostPort)"


# ---- merging ----


def _merged(base: Any, patch: Any, where: str, name: str) -> Any:
    """`name` is the field that both are values of."""
    if base is not None and _kind(base) != _kind(patch):
        raise InvalidJobError(f"{where} must be {_kind(base)}, as in a pod")
    if isinstance(patch, dict):
        result = dict(base or {})
        for key, value in patch.items():
            if value is None:
                result.pop(key, None)
            else:
                result[key] = _merged(result.get(key), value, f"{where}.{key}", key)
        return result
    if isinstance(patch, list) and name in _KEYS:
        return _merged_list(base or [], patch, where, name)
    return deepcopy(patch)  # what is made of the result must not change the job


def _kind(value: Any) -> str:
    return "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else "a plain value"


def _merged_list(base: list[Any], patch: list[Any], where: str, name: str) -> list[Any]:
    key = _KEYS[name]
    result = {item[key]: item for item in base}
    for number, item in enumerate(patch):
        here = f"{where}[{number}]"
        if not isinstance(item, dict) or not isinstance(item.get(key), (str, int)):
            raise InvalidJobError(f"{here} has no {key}; each item of {name} is a mapping with one")
        before = result.get(item[key], {})
        if name in _ONE_OF:
            before = {field: value for field, value in before.items() if field in item}
        result[item[key]] = _merged(before, item, here, "")
    return list(result.values())


# ---- what is refused ----


def _check_shape(patch: Template) -> None:
    for part in patch:
        if part not in ("metadata", "spec"):
            raise InvalidJobError(f"there is no key kubernetes.pod.{part}; a pod template has metadata and spec")
    for field in _mapping(patch, "metadata"):
        if field not in ("labels", "annotations"):
            raise InvalidJobError(f"kubernetes.pod.metadata.{field} is not a worker's to choose; only labels and annotations are")
    _check_texts(patch, "kubernetes.pod")
    spec = _mapping(patch, "spec")
    for name in ("containers", "initContainers"):
        for number, container in enumerate(_typed(spec.get(name), list, f"kubernetes.pod.spec.{name}")):
            _check_container(container, f"kubernetes.pod.spec.{name}[{number}]")
    for number, volume in enumerate(_typed(spec.get("volumes"), list, "kubernetes.pod.spec.volumes")):
        here = f"kubernetes.pod.spec.volumes[{number}]"
        _typed(_typed(volume, dict, here).get("hostPath"), dict, f"{here}.hostPath")


def _mapping(patch: Template, name: str) -> Template:
    mapping: Template = _typed(patch.get(name), dict, f"kubernetes.pod.{name}")
    return mapping


def _typed(value: Any, kind: type, where: str) -> Any:
    """The value, or an empty one of its kind where there is none."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise InvalidJobError(f"{where} must be {_kind(kind())}, as in a pod")  # the value is not shown: it may be a secret
    return value


def _check_texts(node: Any, where: str) -> None:
    if isinstance(node, dict):
        for key, value in node.items():
            if not isinstance(key, str):
                raise InvalidJobError(f"{where} has the key {key!r}, which is not text; put it in quotes")
            _check_texts(value, f"{where}.{key}")
    elif isinstance(node, list):
        for number, item in enumerate(node):
            _check_texts(item, f"{where}[{number}]")
    elif isinstance(node, str) and "\0" in node:
        raise InvalidJobError(f"{where} has a NUL character, which no pod can have; remove it")


def _check_container(container: Any, where: str) -> None:
    container = _typed(container, dict, where)
    security = _typed(container.get("securityContext"), dict, f"{where}.securityContext")
    for name in ("capabilities", "seccompProfile"):
        _typed(security.get(name), dict, f"{where}.securityContext.{name}")
    for name in ("add", "drop"):
        _typed((security.get("capabilities") or {}).get(name), list, f"{where}.securityContext.capabilities.{name}")
    _typed(container.get("ports"), list, f"{where}.ports")
    for number, variable in enumerate(_typed(container.get("env"), list, f"{where}.env")):
        _check_variable(container, _typed(variable, dict, f"{where}.env[{number}]"), f"{where}.env[{number}]")


def _check_variable(container: Template, variable: Template, where: str) -> None:
    name, value = str(variable.get("name") or ""), str(variable.get("value") or "")
    if value and holds_secret(name):
        raise InvalidJobError(f"{where} holds a secret in {name}; put it into a Secret, and that under kubernetes.secrets")
    try:
        check_string(name, f"{name}={value}")
        if container.get("name") == OURS:
            check_variable(name)
    except ValueError as e:
        raise InvalidJobError(f"{where} {e}") from e


def _check_kept(before: Template, after: Template) -> None:
    """What the group stands on must have come through the patch as it was."""
    for name in _KEPT_FIELDS:
        if after["spec"].get(name) != before["spec"].get(name):
            raise InvalidJobError(f"kubernetes.pod changes spec.{name}, on which the group depends; remove it")
    _check_tpu(before["spec"], after["spec"])
    _check_labels(before["metadata"]["labels"], after["metadata"].get("labels") or {})
    _check_ours(_worker(before["spec"]), _worker(after["spec"]))
    for name in _KEPT_VOLUMES:
        if _named(after["spec"].get("volumes"), "name", name) != _named(before["spec"]["volumes"], "name", name):
            raise InvalidJobError(f"kubernetes.pod changes the volume {name}, which brings the worker; give yours another name")
    if after["spec"].get("hostNetwork") and after["spec"].get("dnsPolicy") != "ClusterFirstWithHostNet":
        raise InvalidJobError(
            "kubernetes.pod sets hostNetwork, where the group's names are not known; add dnsPolicy: ClusterFirstWithHostNet"
        )
    if after["spec"].get("dnsPolicy") in ("Default", "None"):
        raise InvalidJobError("kubernetes.pod sets a dnsPolicy that does not know the group's names; use dnsConfig to add servers")


def _check_labels(before: dict[str, Any], after: dict[str, Any]) -> None:
    for label in {**before, **after}:
        if label.startswith(_LABELS) and after.get(label) != before.get(label):
            raise InvalidJobError(f"kubernetes.pod changes the label {label}, by which the group knows its pods; remove it")


def _check_tpu(before: Template, after: Template) -> None:
    """What kubernetes.tpu has made says one thing together: the machines, and all of their chips."""
    chips = _chips(before)
    if not any(chips):
        return
    if _chips(after) != chips:
        raise InvalidJobError(f"kubernetes.pod changes {tpu.RESOURCE}, which is all chips of the host; remove it, and set kubernetes.tpu")
    for label in (tpu.ACCELERATOR_LABEL, tpu.TOPOLOGY_LABEL, tpu.COUNT_LABEL, tpu.NODE_POOL_LABEL):
        selected = before["nodeSelector"].get(label)
        if selected and (after.get("nodeSelector") or {}).get(label) != selected:
            raise InvalidJobError(f"kubernetes.pod changes the node selector {label}, which is the job's own; set it in kubernetes.tpu")


def _chips(spec: Template) -> list[Any]:
    resources = _worker(spec).get("resources") or {}
    return [(resources.get(kind) or {}).get(tpu.RESOURCE) for kind in ("requests", "limits")]


def _check_ours(before: Template, after: Template) -> None:
    instead = {"image": "set kubernetes.image", "command": "the program is what `program` says", "args": "use the job's args"}
    for name in _KEPT_IN_CONTAINER:
        if after.get(name) != before.get(name):
            raise InvalidJobError(f"kubernetes.pod changes the {name} of the container {OURS}; {instead[name]}")
    for mount in before["volumeMounts"]:
        path = mount["mountPath"]
        if mount["name"] in _KEPT_VOLUMES and _named(after.get("volumeMounts"), "mountPath", path) != mount:
            raise InvalidJobError(f"kubernetes.pod changes what is mounted at {path}, which brings the worker; use another path")
    for mount in after.get("volumeMounts") or []:
        if mount["mountPath"].startswith(f"{names.MOUNT}/"):
            raise InvalidJobError(f"kubernetes.pod mounts something at {mount['mountPath']}, inside {names.MOUNT}; use another path")
    kept = [variable for variable in before["env"] if variable["name"].startswith("TFRUN_")]
    if any(_named(after.get("env"), "name", variable["name"]) != variable for variable in kept):
        raise InvalidJobError(f"kubernetes.pod takes variables from the container {OURS} that tfrun sets; leave env, or add to it")


def _worker(spec: Template) -> Template:
    found = _named(spec.get("containers"), "name", OURS)
    if not found:
        raise InvalidJobError(f"kubernetes.pod removes the container {OURS}, which is the worker itself; leave it")
    return found


def _named(items: list[Template] | None, key: str, value: str) -> Template:
    return next((item for item in items or [] if item[key] == value), {})
