"""From an accelerator and a topology to one TPU slice: its hosts, and what the pods on them need. Pure; every refusal says why.

Sources are named in tpu_table.py; what the pods find in their environment follows kubernetes-sigs/dra-driver-google-tpu.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter

from orchestrator import names
from orchestrator.errors import InvalidJobError
from orchestrator.fields import STRING_LIMIT
from orchestrator.tpu_table import ACCELERATORS, EXPERIMENTAL, NO, TABLE, Accelerator, Slice

RESOURCE = "google.com/tpu"
ACCELERATOR_LABEL, TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology"
COUNT_LABEL = "cloud.google.com/gke-accelerator-count"  # the chips of one node
NODE_POOL_LABEL = "cloud.google.com/gke-nodepool"
TOLERATION = {"key": RESOURCE, "operator": "Exists"}  # the nodes' taint is google.com/tpu=present:NoSchedule
_NEAREST = 3  # so many suggestions
_FORMS_OF = Counter((one.accelerator.label, one.topology) for one in TABLE)


def find(accelerator: str, topology: str, chips_per_pod: int | None = None) -> Slice:
    """The one slice that is meant. Raises InvalidJobError."""
    known = _accelerator(accelerator)
    of_it = [one for one in TABLE if one.accelerator is known]
    shapes = [one for one in of_it if one.topology == topology]
    if not shapes:
        raise InvalidJobError(_no_topology(known, topology, of_it))
    if chips_per_pod is None and len(shapes) > 1:
        raise InvalidJobError(
            f"{accelerator} {topology} comes in {len(shapes)} forms, {_forms(shapes)}; "
            "say which with chips_per_pod (--chips-per-pod), since node pools of both have the same labels"
        )
    fitting = [one for one in shapes if chips_per_pod in (None, one.chips_per_host)]
    if not fitting:
        allowed = _and([str(one.chips_per_host) for one in shapes], "or")
        raise InvalidJobError(
            f"{accelerator} {topology} can't have {chips_per_pod} chips per pod: a pod takes all chips of its host, which makes "
            f"{_forms(shapes)}; give {allowed}"
        )
    return fitting[0]


def check_slices(one: Slice, slices: int) -> None:
    """Raise InvalidJobError for a training on several slices, which TensorFlow can't do."""
    if slices < 1:
        raise InvalidJobError(f"a job can't have {slices} slices; it has exactly one")
    if slices == 1:
        return
    larger = [other for other in TABLE if other.accelerator is one.accelerator and other.chips == one.chips * slices]
    instead = f"take one slice of {larger[0].topology} ({larger[0].chips} chips), or " if larger else ""
    raise InvalidJobError(
        f"one training can't span {slices} slices: TensorFlow has no multislice (JAX and PyTorch do), and MultiWorkerMirroredStrategy does "
        f"not span TPUs; {instead}submit {slices} jobs of one slice each"
    )


def node_selector(one: Slice) -> dict[str, str]:
    """The labels of the nodes that the slice's pods need."""
    labels = {ACCELERATOR_LABEL: one.accelerator.label, TOPOLOGY_LABEL: one.topology}
    # Where two node pools that differ only in their machines have the same labels, the chips of a node tell them apart.
    return {**labels, COUNT_LABEL: str(one.chips_per_host)} if is_ambiguous(one) else labels


def labels(one: Slice) -> dict[str, str]:
    """All that is known of the labels of its nodes, also those that select nothing more."""
    machine = {"node.kubernetes.io/instance-type": one.machine, COUNT_LABEL: str(one.chips_per_host)}
    return {**machine, ACCELERATOR_LABEL: one.accelerator.label, TOPOLOGY_LABEL: one.topology}


def is_ambiguous(one: Slice) -> bool:
    """Whether its accelerator and topology alone do not say how many hosts it has."""
    return _FORMS_OF[one.accelerator.label, one.topology] > 1


def resources(one: Slice) -> dict[str, str]:
    """What each pod asks for, as both request and limit: all chips of its host."""
    return {RESOURCE: str(one.chips_per_host)}


def environment(job: str, one: Slice, index: int) -> dict[str, str]:
    """What the pod of a host must have: which host it is, and the names of all of them, in the headless Service of the job's name.

    On a single host GKE's device plugin sets the same values. On several, a webhook of GKE's injects them for pods with a subdomain; when
    exactly is not published, so both are given. Raises InvalidJobError where the names do not fit into a variable.
    """
    if not 0 <= index < one.hosts:
        raise ValueError(f"{one.accelerator.label} {one.topology} has no host {index}")
    hosts = [f"{names.static_worker(job, i)}.{job}" for i in range(one.hosts)] if one.hosts > 1 else ["localhost"]
    variable = "TPU_WORKER_HOSTNAMES"
    size = len(f"{variable}={','.join(hosts)}") + 1
    if size > STRING_LIMIT:
        raise InvalidJobError(
            f"the names of the {one.hosts} hosts of the job {job} take {size:,} bytes, and Linux takes at most {STRING_LIMIT:,} in one "
            "variable; give the job a shorter name"
        )
    return {"TPU_WORKER_ID": str(index), variable: ",".join(hosts)}


def tensorflow(one: Slice) -> tuple[str, str]:
    """What TensorFlow can do with it, in a word and in a sentence; nothing of it was tried."""
    known = one.accelerator
    if one.hosts == 1 or known.tensorflow == NO:
        return known.tensorflow, known.because
    return EXPERIMENTAL, "one program drives a TensorFlow server on each host; for several hosts Google documents JAX and PyTorch only"


def _accelerator(label: str) -> Accelerator:
    if re.match(r"(tpu-?)?v2\b", label):
        raise InvalidJobError(f"{label} can't be had: GKE has no node pools of TPU v2; {_take_one()}")
    known = next((one for one in ACCELERATORS if one.label == label), None)
    if known is None:
        raise InvalidJobError(f"there is no TPU accelerator {label}; {_meant(label)}")
    if known.tensorflow == NO:
        raise InvalidJobError(f"{label} can't be used, since it is TPU {known.generation}: {known.because}; {_take_one()}")
    return known


def _usable() -> list[Accelerator]:
    return [one for one in ACCELERATORS if one.tensorflow != NO]


def _take_one() -> str:
    return f"take one of {_and([one.label for one in _usable()], 'or')}"


def _meant(label: str) -> str:
    """People also say the generation (v5e), and Cloud TPU's own names (v5litepod-16)."""
    said = label.split("-")
    meant = [one.label for one in _usable() if one.generation in said or one.cloud_name in said]
    meant = meant or difflib.get_close_matches(label, [one.label for one in _usable()], _NEAREST)
    return f"you may mean {_and(meant, 'or')}, and `tfrun tpu` lists all" if meant else _take_one()


def _no_topology(known: Accelerator, topology: str, of_it: list[Slice]) -> str:
    if not re.fullmatch(r"[1-9]\d{0,4}(x[1-9]\d{0,4}){1,2}", topology):
        return f"{topology!r} is no topology; it is written with its dimensions, such as {of_it[0].topology}, and `tfrun tpu` lists all"
    asked = [int(n) for n in topology.split("x")]
    chips = math.prod(asked)

    def distance(one: Slice) -> tuple[bool, float, int]:
        return sorted(one.dimensions) != sorted(asked), abs(math.log(one.chips / chips)), one.chips

    nearest = list(dict.fromkeys(one.topology for one in sorted(of_it, key=distance)))[:_NEAREST]
    shown = _and([f"{near} ({math.prod(int(n) for n in near.split('x'))})" for near in nearest], "and")
    return f"{known.label} has no topology {topology} ({chips} chips); the nearest are {shown}, and `tfrun tpu -o wide` lists all"


def _forms(shapes: list[Slice]) -> str:
    return _and([f"{_count(one.pods, 'pod')} of {_count(one.chips_per_host, 'chip')} on {one.machine}" for one in shapes], "or")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _and(words: list[str], last: str) -> str:
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), words[-1])))
