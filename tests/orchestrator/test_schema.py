"""The job file's schema, and the page made of it."""

from __future__ import annotations

import json
import re

from orchestrator import schema
from tests.conftest import REPO


def test_the_page_is_what_the_code_says() -> None:
    """docs/job-file.md tells of every key, and of no other; `python -m orchestrator.schema` writes it."""
    assert (REPO / "docs" / "job-file.md").read_text() == schema.page()


def test_every_key_has_a_description() -> None:
    """An editor shows what a key is for, and no description is of a key that is gone."""
    printed = json.loads(schema.text())
    models = {"JobSpec": printed, **printed["$defs"]}
    described = {f"{name}.{key}" for name, model in models.items() for key, field in model["properties"].items() if field["description"]}
    assert described == set(schema._SAYS)


def test_durations_may_be_text() -> None:
    """What the job file takes the schema takes."""
    text = json.loads(schema.text())["$defs"]["Deadlines"]["properties"]["start"]["anyOf"][1]
    assert text["type"] == "string"
    assert re.fullmatch(text["pattern"], "1h30m")
    assert not re.fullmatch(text["pattern"], "soon")
