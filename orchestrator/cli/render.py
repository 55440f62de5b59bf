"""`tfrun render`: the objects of a job on Kubernetes, to read or to apply."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("job_file", type=click.Path(path_type=Path))
def render(job_file: Path) -> None:
    """Print the Kubernetes objects of JOB_FILE: `tfrun render job.yaml | kubectl apply -f -`."""
    from orchestrator import jobfile, submit  # late: `tfrun --help` needs nothing of it

    click.echo(submit.text(submit.objects(jobfile.load(job_file))), nl=False)
