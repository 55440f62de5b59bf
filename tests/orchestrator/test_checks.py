"""What others say of the objects: the schemas of every supported Kubernetes, strictly, and checkov."""

from __future__ import annotations

import json
import os
from pathlib import Path
from subprocess import run
from typing import Any

import pytest

from orchestrator import static, submit
from orchestrator.manifests import each_worker, job_objects, worker_objects
from orchestrator.templates import Manifest
from tests.conftest import REPO
from tests.orchestrator.test_manifests import FULL, job, on_tpu

# backoffLimitPerIndex and podReplacementPolicy are on by default from 1.29 on.
SUPPORTED = [f"1.{minor}" for minor in range(29, 38)]
PINNED = {
    "namespace": "ml-team",
    "image": f"registry.example/team/train:1.2@sha256:{'a' * 64}",
    "controller": {"image": f"registry.example/team/controller:1.2@sha256:{'b' * 64}"},
}
# (check, where) → why it does not count.
EXEMPT = {
    ("CKV_K8S_38", "Job.ml-team.digits-controller"): "the controller asks the cluster's API, as its own account and within its Role",
    ("CKV_K8S_35", "full"): "the job file asks for a variable from a Secret; programs such as wandb take it no other way",
    ("CKV_K8S_35", "static-full"): "the same",
}


def tool(name: str) -> Path:
    """A program of the environment for checks; skips with the reason where there is none, but not in CI."""
    found = REPO / ".venv-checks" / "bin" / name
    if not found.exists():
        assert "TFRUN_REQUIRE_OLDEST" not in os.environ, "CI must run the checks: no .venv-checks"
        pytest.skip("there is no .venv-checks (make checks)")
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every shape of the objects, a file each, with images and a namespace as a careful user gives them."""
    small, thousand = job(kubernetes=PINNED), job(workers=1000, kubernetes=PINNED)
    full = job(**{**FULL, "kubernetes": {**FULL["kubernetes"], **PINNED}})
    tpu = job(**on_tpu("2x4", chips_per_pod=8, spot=True, **PINNED))
    shapes: dict[str, list[Manifest]] = {
        "small": job_objects(small, None),
        "full": job_objects(full, None),
        "thousand": job_objects(thousand, None),
        "replacement": worker_objects(small, 1, 3),
        "workers": each_worker(small),
        "static": static.job_objects(small, None),
        "static-full": static.job_objects(full, None),
        "tpu": job_objects(tpu, None),
    }
    made = tmp_path_factory.mktemp("shapes")
    for name, objects in shapes.items():
        (made / f"{name}.yaml").write_text(submit.text(objects))
    return made


@pytest.mark.parametrize("version", SUPPORTED)
def test_every_supported_kubernetes_knows_every_field(folder: Path, version: str) -> None:
    """B14: its own schema, with nothing unknown."""
    command = [tool("kubernetes-validate"), "--strict", "--quiet", "-k", version, *sorted(folder.iterdir())]
    done = run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_checkov_finds_nothing(folder: Path) -> None:
    """F44: no check fails, but for those that a reason is given for, all of which are still needed."""
    command = [tool("checkov"), "--directory", folder, "--framework", "kubernetes", "--skip-download", "--output", "json"]
    report: dict[str, Any] = json.loads(run(command, capture_output=True, text=True, check=False).stdout)
    assert report["summary"]["resource_count"] > 0
    assert report["summary"]["parsing_errors"] == 0
    failed = report["results"]["failed_checks"]
    unknown, used = [], set()
    for each in failed:
        reasons = {(each["check_id"], each["resource"]), (each["check_id"], Path(each["file_path"]).stem)} & EXEMPT.keys()
        used |= reasons
        if not reasons:
            unknown.append(f"{each['check_id']} ({each['check_name']}): {each['resource']} in {each['file_path']}")
    assert not unknown, "\n".join(unknown)
    assert used == EXEMPT.keys()
