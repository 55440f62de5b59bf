"""`tfrun submit`: a job on a cluster."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.access import Access
from orchestrator.cli.options import of_a_cluster


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Show the output until the end; Ctrl-C leaves the job running.")
@click.option("--wait", is_flag=True, help="Wait for the end, quietly.")
@click.argument("job_file", type=click.Path(path_type=Path))
@of_a_cluster
def submit(access: Access, job_file: Path, follow: bool, wait: bool) -> int:
    """Start JOB_FILE on a cluster: all of its objects are made, or none.

    With --follow or --wait the exit code is the job's.
    """
    from orchestrator import verbs  # late: the client is heavy

    return verbs.send(access, job_file, follow, wait)
