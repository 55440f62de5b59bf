"""`tfrun check`: what a cluster lacks for a job."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.access import Access
from orchestrator.cli.options import of_a_cluster


@click.command()
@click.argument("job_file", type=click.Path(path_type=Path))
@of_a_cluster
def check(access: Access, job_file: Path) -> int:
    """Say what the cluster lacks for JOB_FILE; nothing is made.

    Exit codes: 0 nothing, 2 something, 3 the cluster can't be reached.
    """
    from orchestrator import verbs  # late: the client is heavy

    return verbs.check(access, job_file)
