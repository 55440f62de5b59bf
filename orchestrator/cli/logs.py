"""`tfrun logs`: what a job's workers print."""

from __future__ import annotations

import click

from orchestrator.access import Access
from orchestrator.cli.options import of_a_cluster


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Show what comes, too, until the job is over.")
@click.option("--worker", type=int, metavar="I", help="Only this worker's.")
@click.option("--previous", is_flag=True, help="Also that of earlier pods, whose workers were replaced.")
@click.option("--controller", is_flag=True, help="The controller's: what happened to the job.")
@click.argument("name")
@of_a_cluster
def logs(access: Access, name: str, follow: bool, worker: int | None, previous: bool, controller: bool) -> None:
    """Print the output of every worker of the job NAME, with the worker's number before each line."""
    if controller and worker is not None:
        raise click.UsageError("--controller and --worker exclude each other.")
    from orchestrator import verbs  # late: the client is heavy
    from orchestrator.logs import Choice

    verbs.show_logs(access, name, Choice(worker, previous, controller), follow)
