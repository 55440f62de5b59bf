"""`tfrun controller`: what the controller's pod runs."""

from __future__ import annotations

import gc
from pathlib import Path

import click


@click.command(hidden=True)
@click.argument("job_file", type=click.Path(path_type=Path))
@click.argument("key_file", type=click.Path(path_type=Path))
def controller(job_file: Path, key_file: Path) -> int:
    """Run the job of JOB_FILE from inside its cluster, with the group's key from KEY_FILE."""
    gc.disable()  # a tenth of what its imports take, while every worker waits for it
    from orchestrator import clusterrun

    gc.freeze()
    gc.enable()
    return clusterrun.run(job_file, key_file)
