"""The contract between the controller and what starts its workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Meeting:
    """What an agent needs to join: the controller's address, and the run's secret (never on a command line or in a log)."""

    address: str
    secret: bytes


class Watcher(Protocol):
    """Who is told what becomes of the agents."""

    def gone(self, worker: int, incarnation: int, why: str, kind: str = "lost") -> None:
        """Nothing of it is left, whatever ended it; told once. kind: see events.Gone."""

    def leaves(self, worker: int, incarnation: int, why: str) -> None:
        """It was told to go and is not gone yet."""

    def waits(self, worker: int, incarnation: int, why: str) -> None:
        """Why it does not run yet; empty if nothing is in its way any more."""


class Backend(Protocol):
    """Starts agents and makes sure that nothing is left of them."""

    async def launch(self, worker: int, incarnation: int, meeting: Meeting, watcher: Watcher) -> None:
        """Start an agent; the watcher is told what becomes of it. One that is there already is watched."""

    async def remove(self, worker: int, incarnation: int) -> None:
        """End whatever is left of it; `gone` follows."""

    async def close(self, patience: float) -> None:
        """Wait so many seconds for the agents to end by themselves, then end them; returns when nothing is left."""
