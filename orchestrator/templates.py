"""Objects from the Jinja templates in `k8s/`.

A value never becomes part of a template's text. The template is rendered with a mark in the place of each value, the result is parsed, and
then the marks are replaced: whatever a value holds (quotes, newlines, `{{`), it ends up in the object exactly as it was.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import jinja2.sandbox
from ruamel.yaml import YAML

Manifest = dict[str, Any]

# Beside the packages in a checkout, inside this one in an installed wheel.
_FOLDERS = (Path(__file__).with_name("k8s"), Path(__file__).parents[1] / "k8s")
_MARK = re.compile(r"<value (\d+)>")


class TemplateError(Exception):
    """A template is wrong: a bug of ours, or of whoever changed it."""


def render(template: str, values: dict[str, Any]) -> list[Manifest]:
    """The objects of one template file. Raises TemplateError for an undefined name, or a value that is only part of a scalar."""
    marked: list[Any] = []

    def mark(value: Any) -> str:
        if isinstance(value, jinja2.Undefined):
            raise TemplateError(f"k8s/{template} uses a name that has no value ({value._undefined_name})")
        marked.append(value)
        return f"<value {len(marked) - 1}>"

    try:
        text = _environment().overlay(finalize=mark).get_template(template).render(values)
    except jinja2.TemplateError as e:
        raise TemplateError(f"k8s/{template}: {e.message}") from e
    yaml = YAML(typ="safe", pure=True)
    return [_filled(document, marked, template) for document in yaml.load_all(text)]


@cache
def _environment() -> jinja2.sandbox.SandboxedEnvironment:
    loader = jinja2.FileSystemLoader(_FOLDERS)
    return jinja2.sandbox.SandboxedEnvironment(undefined=jinja2.StrictUndefined, loader=loader, autoescape=False)  # no HTML


def _filled(node: Any, values: list[Any], template: str) -> Any:
    if isinstance(node, dict):
        return {_filled(key, values, template): _filled(value, values, template) for key, value in node.items()}
    if isinstance(node, list):
        return [_filled(item, values, template) for item in node]
    found = _MARK.search(node) if isinstance(node, str) else None
    if not found:
        return node
    if found[0] != node:
        raise TemplateError(f"k8s/{template} has a value inside a longer text ({node!r}); put the whole text together in manifests.py")
    return values[int(found[1])]
