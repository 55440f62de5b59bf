"""`kubernetes.pod`: what a patch makes of every worker's pod, what it may not touch, and what it is warned of."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import pod_patch, static
from orchestrator.errors import InvalidJobError
from orchestrator.kubernetes_spec import Kubernetes
from orchestrator.manifests import is_of_workers, job_objects, warnings, worker_objects
from tests.orchestrator.test_manifests import job


def patched(patch: dict[str, Any], **kubernetes: Any) -> dict[str, Any]:
    """The pod template of the group's Job."""
    made = job(kubernetes={"pod": patch, **kubernetes})
    (group,) = filter(is_of_workers, job_objects(made, None))
    template: dict[str, Any] = group["spec"]["template"]
    return template


def of_worker(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "worker", **fields}]}}


def worker(template: dict[str, Any]) -> dict[str, Any]:
    """Its container."""
    found: dict[str, Any] = template["spec"]["containers"][0]
    return found


def test_every_worker_gets_it() -> None:
    """The group's pods, a replacement's, those of a static set; the controller's pod does not."""
    made = job(kubernetes={"pod": {"metadata": {"annotations": {"team": "vision"}}}})
    pods = [*job_objects(made, None), *worker_objects(made, 1, 2), *static.job_objects(made, None)]
    jobs = [each for each in pods if each["kind"] == "Job"]
    with_it = [each["metadata"]["name"] for each in jobs if "annotations" in each["spec"]["template"]["metadata"]]
    assert with_it == ["digits", "digits-1-2", "digits-0", "digits-1"]
    assert "digits-controller" in [each["metadata"]["name"] for each in jobs]


def test_mappings_are_merged_and_null_removes() -> None:
    """What the patch does not name stays."""
    spec = patched(
        {"spec": {"nodeSelector": {"zone": "b"}, "securityContext": {"fsGroup": 7, "runAsGroup": None}}}, node_selector={"a": "b"}
    )
    assert spec["spec"]["nodeSelector"] == {"a": "b", "zone": "b"}
    assert spec["spec"]["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "fsGroup": 7,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_named_things_are_merged_by_their_name() -> None:
    """A variable, a volume, a mount, a container of a name that is there is changed; another one is added."""
    before = patched({})
    patch = of_worker(
        env=[{"name": "NCCL_DEBUG", "value": "INFO"}],
        volumeMounts=[{"mountPath": "/scratch", "name": "scratch"}],
        resources={"limits": {"ephemeral-storage": "1Gi"}},
    )
    volumes = [{"name": "scratch", "emptyDir": {}}, {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}]
    after = patched({"spec": {**patch["spec"], "volumes": volumes, "initContainers": [{"name": "fetch", "image": "a:1"}]}})
    assert worker(after)["env"] == [*worker(before)["env"], {"name": "NCCL_DEBUG", "value": "INFO"}]
    assert worker(after)["volumeMounts"] == [*worker(before)["volumeMounts"], {"mountPath": "/scratch", "name": "scratch"}]
    assert worker(after)["resources"]["limits"] == {"cpu": "1", "memory": "2Gi", "ephemeral-storage": "1Gi"}
    assert [v["name"] for v in after["spec"]["volumes"]] == ["files", "key", "tmp", "scratch"]
    assert after["spec"]["volumes"][2] == {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}
    assert after["spec"]["initContainers"] == [{"name": "fetch", "image": "a:1"}]


def test_a_volume_gets_another_source() -> None:
    """It can have only one, so the one before goes."""
    claim = {"name": "tmp", "persistentVolumeClaim": {"claimName": "scratch"}}
    assert patched({"spec": {"volumes": [claim]}})["spec"]["volumes"][2] == claim


def test_the_result_is_a_copy() -> None:
    """A replacement is asked to avoid a node: that must not become part of the job, and so of every later one."""
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {"matchExpressions": []}}]}
    made = job(kubernetes={"pod": {"spec": {"affinity": {"nodeAffinity": preferred}}}})
    for incarnation in (1, 2):
        (replacement,) = worker_objects(made, 0, incarnation, avoid="node-1")
        affinity = replacement["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
        assert len(affinity["preferredDuringSchedulingIgnoredDuringExecution"]) == 2


def test_other_lists_are_replaced() -> None:
    """As Kubernetes does with those whose items have no key."""
    before = {"tolerations": [{"key": "a", "operator": "Exists"}]}
    assert patched({"spec": {"tolerations": [{"key": "b"}]}}, **before)["spec"]["tolerations"] == [{"key": "b"}]


NAMES = ["spec", "metadata", "labels", "containers", "name", "env", "volumes", "securityContext", "hostPath", "worker", "ports"]
ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=12,
)


UNTOUCHED = patched({})


@given(st.dictionaries(st.sampled_from(["spec", "metadata"]), ANY))
@settings(max_examples=1000, deadline=None)
def test_whatever_it_is_it_is_merged_or_refused(patch: dict[str, Any]) -> None:
    """Never another error; and what the group stands on is as it was."""
    before = UNTOUCHED
    try:
        after = pod_patch.applied(before, patch)
    except InvalidJobError:
        return
    pod_patch.warnings(after)
    assert worker(after)["command"] == worker(before)["command"]
    assert after["metadata"]["labels"].items() >= before["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("patch", "sentence"),
    [
        ({"sepc": {}}, "there is no key kubernetes.pod.sepc; a pod template has metadata and spec"),
        ({"metadata": {"name": "x"}}, "kubernetes.pod.metadata.name is not a worker's to choose"),
        ({"metadata": {"labels": {"tfrun.dev/job": "other"}}}, "changes the label tfrun.dev/job, by which the group knows its pods"),
        ({"metadata": {"labels": {"tfrun.dev/new": "x"}}}, "changes the label tfrun.dev/new"),
        ({"metadata": {"labels": {"job-name": "x"}}}, "changes the label job-name"),
        ({"metadata": {"labels": None}}, "changes the label tfrun.dev/job"),
        ({"metadata": {"labels": "x"}}, "kubernetes.pod.metadata.labels must be a mapping, as in a pod"),
        ({"spec": []}, "kubernetes.pod.spec must be a mapping, as in a pod"),
        ({"spec": {5: 1}}, "has the key 5, which is not text"),
        ({"spec": {"schedulerName": "a\0"}}, "kubernetes.pod.spec.schedulerName has a NUL character"),
        ({"spec": {"restartPolicy": "Always"}}, "changes spec.restartPolicy, on which the group depends; remove it"),
        ({"spec": {"restartPolicy": {"a": 1}}}, "kubernetes.pod.spec.restartPolicy must be a plain value"),
        ({"spec": {"hostname": "x"}}, "changes spec.hostname"),
        ({"spec": {"subdomain": "x"}}, "changes spec.subdomain"),
        (
            {"spec": {"hostNetwork": True}},
            "sets hostNetwork, where the group's names are not known; add dnsPolicy: ClusterFirstWithHostNet",
        ),
        ({"spec": {"dnsPolicy": "Default"}}, "sets a dnsPolicy that does not know the group's names"),
        ({"spec": {"containers": None}}, "removes the container worker, which is the worker itself"),
        ({"spec": {"containers": {"name": "worker"}}}, "kubernetes.pod.spec.containers must be a list, as in a pod"),
        ({"spec": {"containers": [{"image": "x"}]}}, "kubernetes.pod.spec.containers[0] has no name"),
        ({"spec": {"volumes": None}}, "changes the volume files, which brings the worker"),
        ({"spec": {"volumes": [{"name": "key", "emptyDir": {}}]}}, "changes the volume key"),
        ({"spec": {"volumes": [{"name": "x", "hostPath": "/"}]}}, "kubernetes.pod.spec.volumes[0].hostPath must be a mapping"),
        (of_worker(command=["sh"]), "changes the command of the container worker; the program is what `program` says"),
        (of_worker(args=["x"]), "changes the args of the container worker; use the job's args"),
        (of_worker(image="x:1"), "changes the image of the container worker; set kubernetes.image"),
        (of_worker(env=None), "takes variables from the container worker that tfrun sets"),
        (
            of_worker(env=[{"name": "TF_CONFIG", "value": "{}"}]),
            "[0].env[0] sets TF_CONFIG, which tfrun sets for each worker",
        ),
        (of_worker(env=[{"name": "TFRUN_WORKERS", "value": "5"}]), "sets TFRUN_WORKERS"),
        (of_worker(env=[{"name": "JOB_COMPLETION_INDEX", "value": "5"}]), "sets JOB_COMPLETION_INDEX"),
        (of_worker(env=[{"name": "API_KEY", "value": "canary"}]), "env[0] holds a secret in API_KEY; put it into a Secret"),
        (of_worker(env=[{"name": "A", "value": "x" * 131_071}]), "env[0] has 131,074 bytes in A, and Linux takes at most 131,072"),
        (of_worker(env=["API_KEY=canary"]), "env[0] must be a mapping"),
        (of_worker(volumeMounts=[{"mountPath": "/tfrun", "name": "tmp"}]), "changes what is mounted at /tfrun"),
        (of_worker(volumeMounts=[{"mountPath": "/tfrun/x", "name": "tmp"}]), "mounts something at /tfrun/x, inside /tfrun"),
        (of_worker(securityContext="none"), "containers[0].securityContext must be a mapping"),
    ],
)
def test_what_would_break_the_group_is_refused(patch: dict[str, Any], sentence: str) -> None:
    """Before anything is sent, in one sentence, which never tells a secret."""
    with pytest.raises(InvalidJobError) as refused:
        patched(patch)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "canary" not in str(refused.value)


def test_a_static_set_has_an_address_for_each_worker() -> None:
    """Pods in their node's network may share one."""
    made = job(kubernetes={"pod": {"spec": {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}}})
    with pytest.raises(InvalidJobError, match="sets hostNetwork, where two workers may have one address; run it with a controller"):
        static.job_objects(made, None)


def security(**fields: Any) -> dict[str, Any]:
    return of_worker(securityContext=fields)


@pytest.mark.parametrize(
    ("patch", "sentence"),
    [
        ({"spec": {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}}, "sets hostNetwork, which takes away the wall"),
        ({"spec": {"hostPID": True}}, "sets hostPID"),
        ({"spec": {"hostIPC": True}}, "sets hostIPC"),
        ({"spec": {"volumes": [{"name": "x", "hostPath": {"path": "/etc"}}]}}, "mounts the node's own /etc (hostPath)"),
        ({"spec": {"automountServiceAccountToken": True}}, "gives the workers a token for the cluster's API"),
        ({"spec": {"automountServiceAccountToken": None}}, "gives the workers a token for the cluster's API"),
        ({"spec": {"securityContext": {"runAsUser": 0}}}, "may run as root (runAsUser, runAsNonRoot) (container worker)"),
        ({"spec": {"securityContext": {"runAsNonRoot": False}}}, "may run as root"),
        ({"spec": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}}, "may make every system call (seccompProfile)"),
        (security(privileged=True), "runs privileged, as root of the node (container worker)"),
        (security(runAsUser=0), "may run as root"),
        (security(allowPrivilegeEscalation=True), "may gain privileges (allowPrivilegeEscalation)"),
        (security(capabilities={"add": ["SYS_ADMIN"]}), "has more capabilities (SYS_ADMIN)"),
        (security(capabilities={"drop": []}), "keeps capabilities"),
        (security(seccompProfile={"type": "Unconfined"}), "may make every system call"),
        (security(readOnlyRootFilesystem=False), "may write into its image's files (readOnlyRootFilesystem)"),
        (of_worker(ports=[{"containerPort": 80, "hostPort": 80}]), "opens a port of its node (hostPort)"),
        (
            {"spec": {"initContainers": [{"name": "fetch", "image": "a:1"}]}},
            "(allowPrivilegeEscalation) (container fetch)",
        ),
        ({"spec": {"containers": [{"name": "proxy", "image": "a:1"}]}}, "adds the container proxy, and a worker is over only when"),
    ],
)
def test_what_weakens_the_hardening_is_allowed_with_a_warning(patch: dict[str, Any], sentence: str) -> None:
    """One sentence that says what, and where; without a patch there is none."""
    assert warnings(job()) == []
    found = warnings(job(kubernetes={"pod": patch}))
    assert any(warning.startswith("kubernetes.pod ") and sentence in warning for warning in found), found


@pytest.mark.parametrize(
    ("image", "warned"),
    [
        ("registry.example:5000/team/train", True),
        ("train:latest", True),
        ("train", True),
        ("train:1.2", False),
        ("registry.example:5000/team/train:1", False),
        (f"train@sha256:{'a' * 64}", False),
    ],
)
def test_an_image_that_may_change_is_warned_of(image: str, warned: bool) -> None:
    """A8: without a tag or digest, or with `latest`, a replaced worker may get another one."""
    for part in ({"image": image}, {"controller": {"image": image}}):
        assert any(image in warning for warning in warnings(job(kubernetes=part))) is warned


def test_the_patch_survives_the_job_file() -> None:
    """The controller reads the job again, and makes replacements with the same patch."""
    made = job(kubernetes={"pod": {"spec": {"priorityClassName": None, "nodeSelector": {"a": "b"}}}})
    assert made.kubernetes
    assert Kubernetes.model_validate(made.kubernetes.model_dump(mode="json", exclude_defaults=True)) == made.kubernetes
