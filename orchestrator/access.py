"""Which cluster a verb is about, as its options say it. Light: the command line needs it before it needs a client."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Access:
    """Which cluster, as whom, and where in it: kubectl's options, None where its defaults hold."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None
