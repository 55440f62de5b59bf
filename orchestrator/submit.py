"""What is sent to a cluster for a job: its objects, with the user's code as it is on this machine."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.representer import SafeRepresenter

from orchestrator import archive, manifests
from orchestrator.errors import InvalidJobError
from orchestrator.spec import JobSpec
from orchestrator.templates import Manifest

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9./-]*[A-Za-z0-9]\Z")
_WORDS = frozenset(("yes", "no", "on", "off", "true", "false", "null"))  # of one letter, such as `y`, none is plain


def objects(job: JobSpec) -> list[Manifest]:
    """All objects of a job, with the user's code as it is on this machine now. Raises InvalidJobError."""
    name = manifests.shipped(job)
    if name is None:
        return manifests.job_objects(job, None)
    program = Path(job.target()[1])
    try:
        return manifests.job_objects(job, archive.pack({name: program.read_bytes()}))
    except OSError as e:
        raise InvalidJobError(f"the program {program} can't be read ({e.strerror}); give its path from {Path.cwd()}") from e


def text(manifests_: list[Manifest]) -> str:
    """The objects as YAML documents, for `kubectl apply -f -`; the same objects give the same bytes."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Representer = _Representer
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment] # ruamel's types know only True
    yaml.width = sys.maxsize  # a folded archive is no shorter, and slower to read back
    buffer = io.StringIO()
    yaml.dump_all(manifests_, buffer)
    return buffer.getvalue()


class _Representer(SafeRepresenter):
    """Text is in quotes unless it is text to every reader: kubectl reads YAML 1.1, with its `no` and `12:30`."""

    def represent_str(self, data: str) -> Any:
        plain = _PLAIN.match(data) and data.lower() not in _WORDS
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if plain else '"')

    def ignore_aliases(self, _data: Any) -> bool:
        return True


_Representer.add_representer(str, _Representer.represent_str)
