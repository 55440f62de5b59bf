"""`tfrun render`: the objects of a job on Kubernetes, to read or to apply."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option("--workers", "shape", flag_value="workers", help="Print each worker's own Job with its TF_CONFIG, to read.")
@click.option("--static", "shape", flag_value="static", help="Print a set that needs no controller and no rights.")
@click.argument("job_file", type=click.Path(path_type=Path))
def render(job_file: Path, shape: str | None) -> None:
    """Print the Kubernetes objects of JOB_FILE: `tfrun render job.yaml | kubectl apply -f -`."""
    from orchestrator import jobfile, limits, manifests, submit  # late: `tfrun --help` needs nothing of it

    job = jobfile.load(job_file)
    printed = {"static": submit.static_objects, "workers": manifests.each_worker}.get(shape or "", submit.objects)(job)
    for warning in (*manifests.warnings(job), *limits.warnings(printed)):
        click.echo(f"tfrun: warning: {warning}", err=True)
    click.echo(submit.text(printed), nl=False)
