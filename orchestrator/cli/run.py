"""`tfrun run`: a group of workers on this machine, in the foreground."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-n", "--workers", type=int, metavar="N", help="Number of workers  [default: 1, or the job file's].")
@click.option("-m", "module", is_flag=True, help="PROGRAM is a module, as in `python -m`.")
@click.option("--python", metavar="PATH", help="The workers' interpreter  [default: the one that runs tfrun].")
@click.option("--log-dir", type=click.Path(path_type=Path), metavar="DIR", help="Where the run's folder goes  [default: .tfrun here].")
@click.option("-q", "--quiet", is_flag=True, help="Don't show the workers' output; it is in the logs.")
@click.option("--no-standby", is_flag=True, help="Keep no imported process ready beside each worker.")
@click.option("--no-compat", is_flag=True, help="Leave Keras as it is, also where its fit fails with several workers.")
@click.option("--private-network", is_flag=True, help="Give the workers a network of their own with nothing but a loopback.")
@click.argument("program")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(program: str, args: tuple[str, ...], workers: int | None, module: bool, **options: object) -> int:
    """Run PROGRAM on N workers of this machine.

    PROGRAM is a script, a module (-m), `builtin:digits`, or a job file (.yaml). ARGS are the program's own.

    Exit codes: 0 done, 1 the training failed, 2 the job or the command is wrong, 3 could not launch, 4 a deadline passed,
    130 Ctrl-C, 143 SIGTERM.
    """
    from orchestrator import localrun  # late: `tfrun --help` needs nothing of it

    return localrun.run(localrun.job_from(program, args, workers, module), localrun.Options(**options))  # type: ignore[arg-type] # click's own names
