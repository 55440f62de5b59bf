"""Which TensorFlow, Python and Keras train right under tfrun: measure it and write the table of docs/compatibility.md.

`make test-matrix`, or `python tests/matrix.py [--venvs FOLDER]`, with the interpreter of an environment that has tfrun. Each line of the
table is an environment of its own (kept for the next time), in which tests/programs/keras_fit.py trains as one process and then as two
workers of tfrun, without and with the fix.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).parents[1]
PROGRAM = REPO / "tests" / "programs" / "keras_fit.py"
TABLE = REPO / "docs" / "compatibility.md"
TFRUN = Path(sys.executable).with_name("tfrun")
TRAINING_DEADLINE = 300  # seconds for a minute's work: workers that drifted apart may wait for each other forever

Result = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One environment: the versions of tensorflow-cpu and Python, and the Keras, as pip spells it."""

    tensorflow: str
    python: str
    keras: str


ROWS = [
    Row("2.15.1", "3.9", "keras==2.15.0"),
    Row("2.15.1", "3.11", "keras==2.15.0"),
    Row("2.15.1", "3.9", "tf_keras==2.15.1"),
    Row("2.16.2", "3.9", "keras==3.0.5"),
    Row("2.16.2", "3.9", "keras==3.3.3"),
    Row("2.16.2", "3.9", "keras==3.6.0"),
    Row("2.16.2", "3.9", "keras==3.9.2"),
    Row("2.16.2", "3.9", "keras==3.10.0"),
    Row("2.16.2", "3.9", "tf_keras==2.16.0"),
    Row("2.17.1", "3.11", "keras==3.11.3"),
    Row("2.17.1", "3.11", "keras==3.15.1"),
    Row("2.17.1", "3.11", "tf_keras==2.17.0"),
    Row("2.18.1", "3.10", "keras==3.12.4"),
    Row("2.18.1", "3.10", "tf_keras==2.18.0"),
    Row("2.19.1", "3.12", "keras==3.14.0"),
    Row("2.19.1", "3.12", "keras==3.15.1"),
    Row("2.19.1", "3.12", "tf_keras==2.19.0"),
    Row("2.20.0", "3.9", "keras==3.10.0"),
    Row("2.20.0", "3.13", "keras==3.15.1"),
    Row("2.20.0", "3.13", "tf_keras==2.20.1"),
    Row("2.21.0", "3.10", "keras==3.12.4"),
    Row("2.21.0", "3.13", "keras==3.15.1"),
    Row("2.21.0", "3.13", "tf_keras==2.21.0"),
]


def main() -> None:
    """Measure every row, then write the table."""
    parser = argparse.ArgumentParser(description="Measure which TensorFlow, Python and Keras work; writes docs/compatibility.md.")
    parser.add_argument("--venvs", type=Path, default=REPO / ".venv-matrix", help="where the environments are kept")
    venvs = parser.parse_args().venvs.absolute()
    lines = [
        f"Measured on {datetime.date.today()} by `make test-matrix`: two workers on one Linux host, CPU.",
        "",
        "| TensorFlow | Python | Keras | custom loop | `fit`, without the fix | `fit`, with the fix | other ways, with the fix |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        cells = [row.tensorflow, row.python, row.keras.replace("==", " "), *measure(row, venvs)]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    text, found = re.subn(
        r"(?<=<!-- matrix -->\n).*(?=<!-- /matrix -->)", lambda _: "\n".join([*lines, ""]), TABLE.read_text(), flags=re.DOTALL
    )
    assert found == 1, f"{TABLE} has lost its markers"
    TABLE.write_text(text)


def measure(row: Row, venvs: Path) -> list[str]:
    """What happened, for each of the table's last four columns."""
    interpreter = find_interpreter(row.python)
    if interpreter is None:
        return ["not run: no such Python here"] * 4
    python = environment(row, venvs / f"{row.tensorflow}-py{row.python}", interpreter)
    keras = ["--keras", row.keras.split("==")[0]]
    more = ["more"] if row.keras.startswith("keras==3") else []  # Keras 2 has another train_on_batch, and no fault
    (alone,) = train([python], 0, *keras, "custom", "fit", *more)
    tfrun = [str(TFRUN), "run", "--quiet", "--no-standby", "-n", "2", "--python", python]
    without = train([*tfrun, "--no-compat"], 2, *keras, "custom", "fit")
    fixed = train(tfrun, 2, *keras, "fit", *more)
    return [
        verdict(without, alone, "custom"),
        verdict(without, alone, "fit"),
        verdict(fixed, alone, "fit"),
        verdict(fixed, alone, "more") if more else "",
    ]


def find_interpreter(version: str) -> str | None:
    """A Python of this version that starts (pyenv's names in PATH may not)."""
    candidates = [str(path) for path in sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
    candidates += filter(None, [shutil.which(f"python{version}")])
    for candidate in candidates:
        if subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
            return candidate
    return None


def environment(row: Row, folder: Path, interpreter: str) -> str:
    """The interpreter of a virtual environment with what the row names."""
    python = str(folder / "bin" / "python")
    if not folder.exists():
        subprocess.run([interpreter, "-m", "venv", folder], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, f"tensorflow-cpu=={row.tensorflow}", row.keras], check=True)
    return python


def train(command: list[str], workers: int, *arguments: str) -> list[Result]:
    """What each worker wrote (with workers=0, the one process that is none); nothing for one that did not come to its end."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [*command, str(PROGRAM), folder, *arguments],
            cwd=folder,  # tfrun's logs go there
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONWARNINGS": "ignore"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            process.wait(TRAINING_DEADLINE)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
        outcomes = [Path(folder, f"{name}.json") for name in (range(workers) if workers else ["alone"])]
        return [json.loads(path.read_text()) if path.exists() else {} for path in outcomes]


def verdict(workers: list[Result], alone: Result, scenario: str) -> str:
    """In a few words, how the workers' training compares with that of one process."""
    nothing = {"error": "no end"}
    first, second = [worker.get(scenario, nothing) for worker in workers]
    for result in (first, second):
        if "error" in result:
            return f"fails ({result['error'].split(':')[0]})"
    if not close(first["weights"], second["weights"]):
        return "**the workers' weights differ**"
    if not close(first["weights"], alone[scenario]["weights"]):
        return "**wrong weights**"
    if not (close(first["metrics"], second["metrics"]) and close(first["metrics"], alone[scenario]["metrics"])):
        return "**wrong metrics**"
    return "works"


def close(one: Any, other: Any) -> bool:
    """Whether two results are the same but for the rounding of sums in another order."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(close, one, other))
    return math.isclose(one, other, rel_tol=2e-5, abs_tol=2e-5)


if __name__ == "__main__":
    main()
