"""Which TPU slices GKE has node pools for, as data with its sources. None of it comes from a running GKE; docs/tpu.md says how sure it is.

Sources, each of Google or transcribed from Google's page "Plan TPUs in GKE":
- LABELS: GKE's own cluster autoscaler (2026): node labels, machine types, their chips, each one's single-host topology, who has flex-start.
- HOSTS: kubectl-ray of ray-project/kuberay: the page's topologies with their chips per host, and the rule for three dimensions.
- XPK: AI-Hypercomputer/xpk (2026), system_characteristics.py: topologies with hosts and machine types.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

DOCUMENTED, UNCONFIRMED, EXPERIMENTAL, NO = "documented", "unconfirmed", "experimental", "no"
LABELS, HOSTS, XPK = "GKE cluster autoscaler", "kubectl-ray", "xpk"
LISTED_LIMIT = 64  # chips: up to here a topology of three dimensions is listed by name, above it follows from a rule


@dataclass(frozen=True)
class Accelerator:
    """What the node label cloud.google.com/gke-tpu-accelerator says, and what is true of all its slices."""

    label: str
    generation: str
    cloud_name: str  # the part before the number in Cloud TPU's own names, as in v5litepod-16
    cores: int  # how much one chip counts in that number
    sources: tuple[str, ...]
    flex_start: bool  # whether GKE's flex-start can provide it (LABELS)
    tensorflow: str  # on one host: DOCUMENTED, UNCONFIRMED, or NO, with which a job is refused
    because: str


@dataclass(frozen=True)
class Slice:
    """One slice: a node pool of `hosts` machines. `listed`: named in the sources; otherwise it follows from their rule."""

    accelerator: Accelerator
    topology: str
    machine: str
    chips_per_host: int
    hosts: int
    listed: bool = True

    @cached_property
    def dimensions(self) -> tuple[int, ...]:
        """The topology as numbers."""
        return tuple(int(n) for n in self.topology.split("x"))

    @property
    def chips(self) -> int:
        """All of the slice's chips."""
        return math.prod(self.dimensions)

    @property
    def pods(self) -> int:
        """One on each host, with all of its chips."""
        return self.hosts

    @property
    def cloud_name(self) -> str:
        """What Cloud TPU calls it, such as v5litepod-16 or v4-32; GKE's device plugin sets TPU_ACCELERATOR_TYPE to it."""
        return f"{self.accelerator.cloud_name}-{self.chips * self.accelerator.cores}"


_SILENT = (UNCONFIRMED, "none of the sources that were read names TensorFlow on it, or excludes it")
_TUTORIAL = (DOCUMENTED, "Google's keras-rs tutorial trains on it with tensorflow-tpu 2.19.1")
_V3 = (NO, "that GKE still makes node pools of it could not be confirmed")
_V7 = (NO, "Google's documentation says that TensorFlow is not supported on TPU7x")

ACCELERATORS = (
    Accelerator("tpu-v3-device", "v3", "v3", 2, (LABELS, HOSTS), False, *_V3),
    Accelerator("tpu-v3-slice", "v3", "v3", 2, (LABELS, HOSTS), False, *_V3),
    Accelerator("tpu-v4-lite-device", "v4", "v4lite", 1, (LABELS, HOSTS), False, *_SILENT),
    Accelerator("tpu-v4-podslice", "v4", "v4", 2, (LABELS, HOSTS, XPK), False, *_SILENT),
    Accelerator("tpu-v5-lite-device", "v5e", "v5lite", 1, (LABELS, HOSTS), False, *_SILENT),
    Accelerator("tpu-v5-lite-podslice", "v5e", "v5litepod", 1, (LABELS, HOSTS, XPK), True, *_SILENT),
    Accelerator("tpu-v5p-slice", "v5p", "v5p", 2, (LABELS, HOSTS, XPK), True, *_TUTORIAL),
    Accelerator("tpu-v6e-slice", "v6e", "v6e", 1, (LABELS, HOSTS, XPK), True, *_TUTORIAL),
    Accelerator("tpu7", "v7", "tpu7", 2, (LABELS,), True, *_V7),  # its topologies are in no source
    Accelerator("tpu7x", "v7x", "tpu7x", 2, (LABELS, HOSTS, XPK), True, *_V7),
)

# Accelerator, machine type, chips of one machine, and topology:hosts. What is given twice is ambiguous: 2x4 of v5e and v6e.
# TPU v3 2x4 with 8 chips on one host, which HOSTS has too, is left out: LABELS has no machine type for it.
_LISTED = (
    ("tpu-v3-device", "ct3-hightpu-4t", 4, "2x2:1"),
    ("tpu-v3-slice", "ct3p-hightpu-4t", 4, "4x4:4 4x8:8 8x8:16 8x16:32 16x16:64 16x32:128 32x32:256"),
    ("tpu-v4-lite-device", "ct4l-hightpu-4t", 4, "2x2:1"),
    ("tpu-v4-podslice", "ct4p-hightpu-4t", 4, "2x2x1:1 2x2x2:2 2x2x4:4 2x4x4:8 4x4x4:16"),
    ("tpu-v5-lite-device", "ct5l-hightpu-1t", 1, "1x1:1"),
    ("tpu-v5-lite-device", "ct5l-hightpu-4t", 4, "2x2:1"),
    ("tpu-v5-lite-device", "ct5l-hightpu-8t", 8, "2x4:1"),
    ("tpu-v5-lite-podslice", "ct5lp-hightpu-1t", 1, "1x1:1"),
    ("tpu-v5-lite-podslice", "ct5lp-hightpu-8t", 8, "2x4:1"),
    ("tpu-v5-lite-podslice", "ct5lp-hightpu-4t", 4, "2x2:1 2x4:2 4x4:4 4x8:8 8x8:16 8x16:32 16x16:64"),
    ("tpu-v5p-slice", "ct5p-hightpu-4t", 4, "2x2x1:1 2x2x2:2 2x2x4:4 2x4x4:8 4x4x4:16"),
    ("tpu-v6e-slice", "ct6e-standard-1t", 1, "1x1:1"),
    ("tpu-v6e-slice", "ct6e-standard-8t", 8, "2x4:1"),
    ("tpu-v6e-slice", "ct6e-standard-4t", 4, "2x2:1 2x4:2 4x4:4 4x8:8 8x8:16 8x16:32 16x16:64"),
    ("tpu7x", "tpu7x-standard-1t", 1, "1x1x1:1"),
    ("tpu7x", "tpu7x-standard-4t", 4, "2x2x1:1 2x2x2:2 2x2x4:4 2x4x4:8 4x4x4:16 4x4x8:32 4x8x8:64 8x8x8:128"),
)

# Above 64 chips: AxBxC with A <= B <= C, each a multiple of 4, and at most so many chips (HOSTS). XPK names only some of them.
_BY_RULE = (("tpu-v4-podslice", "ct4p-hightpu-4t", 4096), ("tpu-v5p-slice", "ct5p-hightpu-4t", 6144))


def _table() -> Iterator[Slice]:
    by_label = {accelerator.label: accelerator for accelerator in ACCELERATORS}
    for label, machine, chips_per_host, shapes in _LISTED:
        for shape in shapes.split():
            topology, hosts = shape.split(":")
            yield Slice(by_label[label], topology, machine, chips_per_host, int(hosts))
    for label, machine, limit in _BY_RULE:
        for dimensions in _cuboids(limit):
            yield Slice(by_label[label], "x".join(map(str, dimensions)), machine, 4, math.prod(dimensions) // 4, listed=False)


def _cuboids(limit: int) -> Iterator[tuple[int, int, int]]:
    """What the rule allows: more than LISTED_LIMIT chips, and at most `limit`."""
    for a in range(4, limit + 1, 4):
        for b in range(a, limit // a + 1, 4):
            for c in range(b, limit // (a * b) + 1, 4):
                if a * b * c > LISTED_LIMIT:
                    yield a, b, c


TABLE: tuple[Slice, ...] = tuple(sorted(_table(), key=lambda s: (ACCELERATORS.index(s.accelerator), s.chips, s.dimensions, s.hosts)))
