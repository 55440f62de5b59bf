"""What is sent to a cluster for a job: its objects, with the user's code as it is on this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from orchestrator import manifests, static, user_code
from orchestrator.spec import JobSpec
from orchestrator.templates import Manifest

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9./-]*[A-Za-z0-9]\Z")
# What a text in quotes can't hold as it is: quotes, line ends of any kind, and what YAML calls not printable.
_SPECIAL = re.compile('["\\\\\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\ud800-\\udfff\\ufeff\\ufffe\\uffff]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_WORDS = frozenset(("yes", "no", "on", "off", "true", "false", "null"))  # of one letter, such as `y`, none is plain


def objects(job: JobSpec) -> list[Manifest]:
    """All objects of a job, with the user's code as it is on this machine now. Raises InvalidJobError."""
    return manifests.job_objects(job, user_code.archive(job))


def static_objects(job: JobSpec) -> list[Manifest]:
    """The same for a set that needs no controller."""
    return static.job_objects(job, user_code.archive(job))


def text(manifests_: list[Manifest]) -> str:
    """The objects as YAML documents, for `kubectl apply -f -`; the same objects give the same bytes."""
    return "---\n".join("".join(_lines(manifest, "")) for manifest in manifests_)


def _lines(node: dict[str, Any] | list[Any], indent: str) -> Iterator[str]:
    """Block style. A library's printer takes seconds for what a thousand workers are."""
    pairs = ((f"{_scalar(key)}:", value) for key, value in node.items()) if isinstance(node, dict) else (("-", item) for item in node)
    for head, value in pairs:
        if not isinstance(value, (dict, list)):
            yield f"{indent}{head} {_scalar(value)}\n"
        elif not value:
            yield f"{indent}{head} {'{}' if isinstance(value, dict) else '[]'}\n"
        elif head == "-":
            first, *others = _lines(value, f"{indent}  ")
            yield from (f"{indent}- {first[len(indent) + 2 :]}", *others)
        else:
            yield f"{indent}{head}\n"
            yield from _lines(value, indent if isinstance(value, list) else f"{indent}  ")


def _scalar(value: Any) -> str:
    """Text is in quotes unless it is text to every reader: kubectl reads YAML 1.1, with its `no` and `12:30`."""
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.match(value) and value.lower() not in _WORDS:
        return value
    return f'"{_SPECIAL.sub(_escape, value)}"'


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    return _SHORT.get(character) or (f"\\x{ord(character):02x}" if ord(character) < 256 else f"\\u{ord(character):04x}")
