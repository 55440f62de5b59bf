"""What is told of a program from its source alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from worker_image.scan import Findings, scan

Look = Callable[..., Findings]


@pytest.fixture
def look(tmp_path: Path) -> Look:
    def found(source: str, **beside: str) -> Findings:
        for name, text in beside.items():
            path = tmp_path / name.replace("__", "/")
            path.parent.mkdir(exist_ok=True, parents=True)
            path.with_suffix(".py").write_text(text)
        (tmp_path / "p.py").write_text(source)
        return scan("script", str(tmp_path / "p.py"))

    return found


@pytest.mark.parametrize(
    ("source", "imports"),
    [
        ("import tensorflow as tf", ["tensorflow"]),
        ("from tensorflow import keras", ["tensorflow"]),
        ("import tensorflow as tf\ntf.keras.Model", ["tensorflow", "keras"]),
        ("import keras", ["keras"]),
        ("def f():\n    import tf_keras", ["tf_keras"]),
        ("import os, json", []),
        ("print('import tensorflow')", []),
        ("this is no python", []),
        ("x = '\\0'", []),
    ],
)
def test_the_frameworks_that_a_program_uses(look: Look, source: str, imports: list[str]) -> None:
    """TensorFlow is imported early only for programs that import it."""
    assert look(source).imports == imports


def test_modules_beside_the_program_count(look: Look) -> None:
    """Imports are followed through the program's own files, also relative ones, and also in a circle."""
    found = look("import model", model="import p\nfrom lib import net", lib____init__="from . import net", lib__net="import tensorflow")
    assert found.imports == ["tensorflow"]


@pytest.mark.parametrize(
    ("source", "environ", "unsure"),
    [
        ("import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\nimport tensorflow", {"TF_USE_LEGACY_KERAS": "1"}, ""),
        ("from os import environ\nenviron['TF_X'] = '1'", {"TF_X": "1"}, ""),
        ("import os\nos.environ.setdefault('TF_SURELY_UNSET', '1')", {"TF_SURELY_UNSET": "1"}, ""),
        ("import os\nos.environ.setdefault('PATH', '1')", {}, ""),
        ("import os\nos.environ['MY_OWN'] = compute()", {}, ""),
        ("import os\nos.environ['CUDA_VISIBLE_DEVICES'] = str(i)", {}, "p.py line 2 sets CUDA_VISIBLE_DEVICES"),
        ("import os\nif x:\n    os.environ['TF_X'] = '1'", {}, "p.py line 3 sets TF_X"),
        ("import os\nos.environ[name] = '1'", {}, "p.py line 2 sets variables"),
        ("import os\nos.environ.update({'TF_X': '1'})", {}, "p.py line 2 sets TF_X"),
        ("import os\nos.environ.update(other)", {}, "p.py line 2 sets variables"),
        ("import os\nos.environ.update(TF_X='1')", {}, "p.py line 2 sets TF_X"),
        ("import os\nos.putenv('TF_X', '1')", {}, "p.py line 2 sets TF_X"),
    ],
)
def test_what_must_be_set_before_the_import(look: Look, source: str, environ: dict[str, str], unsure: str) -> None:
    """A program's own settings for TensorFlow hold: constants are set early, anything else means no early import."""
    found = look(source)
    assert (found.environ, found.unsure) == (environ, unsure)


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("import os\nos.environ['TF_CONFIG'] = '{}'", "p.py line 2"),
        ("import os\ndef f():\n    os.environ['TF_CONFIG'] = x", "p.py line 3"),
        ("import os\nos.environ.update(TF_CONFIG='1')", "p.py line 2"),
        ("import os\nos.environ.setdefault('TF_CONFIG', '{}')", ""),
        ("import os\nprint(os.environ['TF_CONFIG'])", ""),
        ("import os\ndel os.environ['TF_CONFIG']", ""),
    ],
)
def test_who_sets_tf_config_itself(look: Look, source: str, place: str) -> None:
    """Named by file and line; a default or a read is fine."""
    assert look(source).sets_tf_config == place


def test_modules_are_found_without_importing_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-m`: a package's __main__, a dotted module, our own entrypoint; one that is not there tells nothing."""
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "pack" / "__main__.py").write_text("from . import sub")
    (tmp_path / "pack" / "sub.py").write_text("import tensorflow")
    monkeypatch.chdir(tmp_path)
    assert scan("module", "pack").imports == ["tensorflow"]
    assert scan("module", "pack.sub").imports == ["tensorflow"]
    assert "tensorflow" in scan("module", "worker_image.train").imports
    assert scan("module", "no_such_module_anywhere").imports == []
    assert scan("module", "sys").imports == []
