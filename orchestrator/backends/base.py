"""The contract between the controller and what starts its workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Gone = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Meeting:
    """What an agent needs to join: the controller's address, and the run's secret (never on a command line or in a log)."""

    address: str
    secret: bytes


class Backend(Protocol):
    """Starts agents and makes sure that nothing is left of them."""

    async def launch(self, worker: int, incarnation: int, meeting: Meeting, gone: Gone) -> None:
        """Start an agent. `gone(worker, incarnation, why)` is called once nothing of it is left, whatever ended it."""

    async def remove(self, worker: int, incarnation: int) -> None:
        """End whatever is left of it; `gone` follows."""

    async def close(self, patience: float) -> None:
        """Wait so many seconds for the agents to end by themselves, then end them; returns when nothing is left."""
