"""The options that verbs about a cluster share, named as kubectl names them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from orchestrator.access import Access

OUTPUTS = ("wide", "json", "yaml")


def of_a_cluster(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb -n, --context and --kubeconfig, as its first argument `access`."""

    @wraps(verb)
    def called(kubeconfig: Path | None, context: str | None, namespace: str | None, **rest: Any) -> Any:
        return verb(Access(kubeconfig, context, namespace), **rest)

    for option in (
        click.option("--kubeconfig", type=click.Path(path_type=Path), metavar="FILE", help="Instead of KUBECONFIG or ~/.kube/config."),
        click.option("--context", metavar="NAME", help="The kubeconfig's context  [default: its current one]."),
        click.option("-n", "--namespace", metavar="NAME", help="[default: the context's; of a job file, its own]."),
    ):
        called = option(called)
    return called


output = click.option("-o", "--output", type=click.Choice(OUTPUTS), default=None, help="More columns, or for a program.")
