"""Reading a job file (YAML 1.2). The only module that knows YAML."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.tag import Tag

from orchestrator.errors import InvalidJobError
from orchestrator.spec import JobSpec, make

SIZE_LIMIT = 1_000_000  # bytes: a job file is a page; what is larger is something else
DEPTH_LIMIT = 20  # nested lists and mappings

_TEXT = Tag(suffix="tag:yaml.org,2002:str")


def load(path: Path) -> JobSpec:
    """The job in a file. Raises InvalidJobError with one sentence."""
    return make(_parse(_read(path), path), str(path))


def _read(path: Path) -> str:
    try:
        with path.open("rb") as f:
            data = f.read(SIZE_LIMIT + 1)
    except OSError as e:
        raise InvalidJobError(f"{path} can't be read ({e.strerror}); give the path of a job file") from e
    if len(data) > SIZE_LIMIT:
        raise InvalidJobError(f"{path} is larger than {SIZE_LIMIT} bytes; a job file is a page of YAML")
    if data.startswith(b"\xef\xbb\xbf"):
        raise InvalidJobError(f"{path} begins with a byte order mark; save it as UTF-8 without one")
    try:
        return data.decode()
    except UnicodeDecodeError as e:
        raise InvalidJobError(f"{path} is not UTF-8 (byte {e.start}); save it as UTF-8") from e


def _parse(text: str, path: Path) -> Any:
    try:
        _refuse_tricks(text, path)
        yaml = YAML(typ="safe", pure=True)
        yaml.Resolver = _CoreResolver
        return yaml.load(text)
    except DuplicateKeyError as e:
        raise InvalidJobError(f"{path}: the same key twice{_line(e)}; keep one of them") from e
    except MarkedYAMLError as e:
        raise InvalidJobError(f"{path} is not valid YAML{_line(e)}: {e.problem}") from e
    except (YAMLError, ValueError) as e:
        raise InvalidJobError(f"{path} is not valid YAML: {str(e).splitlines()[0]}") from e


class _CoreResolver(VersionedResolver):
    """YAML 1.2's core schema: a date or a lone `=` is text, where ruamel still follows YAML 1.1."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        tag = super().resolve(kind, value, implicit)
        return _TEXT if str(tag).rpartition(":")[2] in ("timestamp", "value", "merge") else tag


def _refuse_tricks(text: str, path: Path) -> None:
    """No aliases (they can blow up), no tags (they can make objects), no depth that only an attack has."""
    depth = 0
    for event in YAML(typ="safe", pure=True).parse(io.StringIO(text)):
        kind = type(event).__name__
        line = event.start_mark.line + 1
        if kind == "AliasEvent":
            raise InvalidJobError(f"{path} line {line} uses a YAML alias (*); write the value out")
        tag = getattr(event, "tag", None)
        if tag is not None and not kind.startswith("Document"):
            raise InvalidJobError(f"{path} line {line} uses the YAML tag {tag}; a job file has plain values only")
        depth += kind.endswith("StartEvent") - kind.endswith("EndEvent")
        if depth > DEPTH_LIMIT:
            raise InvalidJobError(f"{path} line {line} is nested deeper than {DEPTH_LIMIT} levels; a job file is flat")


def _line(error: MarkedYAMLError) -> str:
    return f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
