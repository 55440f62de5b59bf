"""Objects from the Jinja templates in `k8s/`.

A value never becomes part of a template's text. The template is rendered with a mark in the place of each value, the result is parsed, and
then the marks are replaced: whatever a value holds (quotes, newlines, `{{`), it ends up in the object exactly as it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import jinja2.sandbox
from ruamel.yaml import YAML

Manifest = dict[str, Any]

# Beside the packages in a checkout, inside this one in an installed wheel.
_FOLDERS = (Path(__file__).with_name("k8s"), Path(__file__).parents[1] / "k8s")
_MARK = re.compile(r"<value (\d+)>")
_MARKED = "the values that have a mark so far"  # no template can use such a name


class TemplateError(Exception):
    """A template is wrong: a bug of ours, or of whoever changed it."""


def render(template: str, values: dict[str, Any]) -> list[Manifest]:
    """The objects of one template file. Raises TemplateError for an undefined name, or a value that is only part of a scalar."""
    documents, marked = _parsed(template, values)
    return [_filled(document, marked, template) for document in documents]


def render_each(template: str, values: dict[str, Any], variants: Iterable[dict[str, Any]]) -> list[Manifest]:
    """One object for each variant of the values, all from the same template, which is parsed once."""
    first, *others = variants
    (document,), marked = _parsed(template, {**values, **{name: _Varying(name) for name in first}})
    every = ([variant[value.name] if isinstance(value, _Varying) else value for value in marked] for variant in (first, *others))
    return [_filled(document, values_of_one, template) for values_of_one in every]


@dataclass(frozen=True)
class _Varying:
    """In the place of a value that each variant has its own of."""

    name: str


def _parsed(template: str, values: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """The documents with a mark for each value, and these values."""
    marked: list[Any] = []
    try:
        text = _environment().get_template(template).render({**values, _MARKED: (template, marked)})
    except jinja2.TemplateError as e:
        raise TemplateError(f"k8s/{template}: {e.message}") from e
    return _documents(text), marked


@lru_cache(maxsize=32)  # a text has no values in it, so each template has but a few: one for each choice of what is left out
def _documents(text: str) -> list[Any]:
    return list(YAML(typ="safe", pure=True).load_all(text))


@jinja2.pass_context
def _mark(context: jinja2.runtime.Context, value: Any) -> str:
    template, marked = context[_MARKED]
    if isinstance(value, jinja2.Undefined):
        raise TemplateError(f"k8s/{template} uses a name that has no value ({value._undefined_name})")
    marked.append(value)
    return f"<value {len(marked) - 1}>"


@cache
def _environment() -> jinja2.sandbox.SandboxedEnvironment:
    loader = jinja2.FileSystemLoader(_FOLDERS)
    return jinja2.sandbox.SandboxedEnvironment(undefined=jinja2.StrictUndefined, loader=loader, finalize=_mark, autoescape=False)  # no HTML


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
