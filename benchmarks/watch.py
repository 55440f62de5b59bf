"""What becomes of the pods of a namespace, from one watch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kubernetes

from benchmarks.pods import PATIENCE, last_words
from tests.cluster.objects import Namespace

LOOK = 0.02  # seconds between two looks at what was seen
_INDEX = ("tfrun.dev/worker", "batch.kubernetes.io/job-completion-index")


@dataclass(frozen=True)
class Seen:
    """A pod as a watch showed it, and when, by the monotonic clock."""

    at: float
    kind: str  # ADDED, MODIFIED, DELETED
    pod: dict[str, Any]

    @property
    def name(self) -> str:
        """The pod's."""
        return str(self.pod["metadata"]["name"])

    @property
    def index(self) -> int | None:
        """Which worker it is; None for a controller."""
        labels = self.pod["metadata"].get("labels", {})
        return next((int(labels[name]) for name in _INDEX if name in labels), None)

    @property
    def runs(self) -> bool:
        """Whether its containers run, as far as the cluster knows."""
        return self.kind != "DELETED" and self.pod["status"].get("phase") == "Running"


class PodWatch:
    """One watch on the pods of a namespace, and everything that it showed."""

    def __init__(self, namespace: Namespace) -> None:
        self.seen: list[Seen] = []
        self._namespace = namespace
        threading.Thread(target=self._follow, daemon=True).start()  # it ends with the process: a watch can't be woken

    def until(self, fits: Callable[[Seen], object], what: str, patience: float = PATIENCE) -> Seen:
        """The first that fits, of all that was or will be seen. Raises TimeoutError."""
        deadline = time.monotonic() + patience
        while True:
            found = next((seen for seen in list(self.seen) if fits(seen)), None)
            if found:
                return found
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {what}\n{last_words(self._namespace)}")
            time.sleep(LOOK)

    def _follow(self) -> None:
        core = self._namespace.cluster.core
        for event in kubernetes.watch.Watch().stream(core.list_namespaced_pod, self._namespace.name, timeout_seconds=3600):
            self.seen.append(Seen(time.monotonic(), event["type"], event["raw_object"]))
