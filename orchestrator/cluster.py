"""Who is in the group: what becomes TF_CONFIG."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cluster:
    """The workers' addresses (host:port) in the order of their indices."""

    workers: tuple[str, ...]

    def spec(self) -> dict[str, list[str]]:
        """TF_CONFIG's "cluster", the same for all; each agent adds its own "task". Without a "chief" role worker 0 is the chief."""
        return {"worker": list(self.workers)}
