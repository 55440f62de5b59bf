"""The controller's pod: one job on Kubernetes, from the group's gathering to the result."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from pathlib import Path

from orchestrator import jobfile, names
from orchestrator.backends.kubernetes import KubernetesBackend, inside_the_cluster
from orchestrator.controller import Controller
from orchestrator.group import Policy, Result, State
from orchestrator.manifests import GRACE

ANYWHERE = "0.0.0.0"  # noqa: S104 # the pod's own address; the network policy says who reaches it
SAVE_TIME = GRACE * 0.6  # seconds of the grace in which the programs may save and leave


def run(job_file: Path, key_file: Path) -> int:
    """Run the job to its end. Returns the exit code."""
    job = jobfile.load(job_file)
    policy = replace(Policy.of(job), grace=SAVE_TIME)

    async def until_done() -> Result:
        controller = Controller(policy, KubernetesBackend(job, inside_the_cluster()), _Log(), secret=key_file.read_bytes())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, controller.stop, number)
        return await controller.run(ANYWHERE, names.PORT)

    result = asyncio.run(until_done())
    print(f"{result.ending.name.lower()}: {result.reason}", flush=True)
    return result.exit_code


class _Log:
    """The observer of a job on a cluster: its pod's output."""

    def told(self, text: str) -> None:
        """See Observer."""
        print(text, flush=True)

    def began(self, attempt: int) -> None:
        """See Observer."""
        print(f"attempt {attempt} runs on every worker", flush=True)

    def opened(self, worker: int, log: str) -> None:
        """See Observer. A pod's output is the cluster's to keep."""

    def progressed(self, state: State) -> None:
        """See Observer."""
