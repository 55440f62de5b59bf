"""The command line: one verb a file; each parses, calls one library function, and prints."""

from __future__ import annotations

import sys

import click

import orchestrator
from orchestrator.cli.check import check
from orchestrator.cli.controller import controller
from orchestrator.cli.jobs import jobs
from orchestrator.cli.logs import logs
from orchestrator.cli.render import render
from orchestrator.cli.run import run
from orchestrator.cli.schema import schema
from orchestrator.cli.status import status
from orchestrator.cli.stop import stop
from orchestrator.cli.submit import submit
from orchestrator.cli.tpu import tpu
from orchestrator.cli.wait import wait
from orchestrator.cli.why import why
from orchestrator.errors import TfrunError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(orchestrator.__version__, prog_name="tfrun")
def tfrun() -> None:
    """Run one TensorFlow training program on many workers."""


for command in (run, submit, status, logs, why, wait, stop, jobs, check, render, schema, tpu, controller):
    tfrun.add_command(command)


def main() -> None:
    """Run the command line; an error of ours is one line and an exit code."""
    try:
        sys.exit(tfrun.main(standalone_mode=False, prog_name="tfrun") or 0)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as e:
        e.show()
        sys.exit(2)
    except TfrunError as e:
        if str(e):
            click.echo(f"tfrun: {e}", err=True)
        sys.exit(e.exit_code)
