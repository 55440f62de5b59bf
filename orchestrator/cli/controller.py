"""`tfrun controller`: what the controller's pod runs."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(hidden=True)
@click.argument("job_file", type=click.Path(path_type=Path))
@click.argument("key_file", type=click.Path(path_type=Path))
def controller(job_file: Path, key_file: Path) -> int:
    """Run the job of JOB_FILE from inside its cluster, with the group's key from KEY_FILE."""
    from orchestrator import clusterrun  # late: the client is heavy

    return clusterrun.run(job_file, key_file)
