"""`kubernetes.tpu`: every slice of one host becomes pods that agree with the table, and what can't be is refused with a reason."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from orchestrator import manifests, pod_patch, spec, static, tpu, tpu_plan
from orchestrator.errors import InvalidJobError
from orchestrator.localrun import job_from
from orchestrator.spec import JobSpec
from orchestrator.tpu_capacity import Capacity
from orchestrator.tpu_table import NO, TABLE, Slice
from tests.conftest import REPO
from tests.orchestrator.test_manifests import KUBERNETES

PAGE = REPO / "docs" / "tpu.md"
SINGLE_HOST = [one for one in TABLE if one.hosts == 1 and one.accelerator.tensorflow != NO]
SEVERAL_HOSTS = [one for one in TABLE if one.hosts > 1 and one.accelerator.tensorflow != NO]
V5E = {"accelerator": "tpu-v5-lite-podslice", "topology": "2x2"}
CAPACITIES = (Capacity(), Capacity(spot=True), Capacity(reservation="team-1"), Capacity(flex_start=True), Capacity(reservation="null"))


def job(tpu_: dict[str, Any] | None = None, **fields: Any) -> JobSpec:
    kubernetes = {**KUBERNETES, "tpu": V5E if tpu_ is None else tpu_, **fields.pop("kubernetes", {})}
    return spec.make({"task": "a.b", "name": "digits", "strategy": "tpu", **fields, "kubernetes": kubernetes}, "the job")


def pods(made: JobSpec) -> list[dict[str, Any]]:
    """The pod of every Job that can be a worker's: of the group, of a replacement, as `--workers` shows it, of a static set."""
    objects = (
        *manifests.job_objects(made, None),
        *manifests.worker_objects(made, worker=0, incarnation=7, avoid="node-1"),
        *manifests.each_worker(made),
        *static.job_objects(made, None),
    )
    found = [each["spec"]["template"]["spec"] for each in objects if manifests.is_of_workers(each)]
    assert len(found) == 4
    return found


def asked_for(one: Slice) -> dict[str, Any]:
    chips = {"chips_per_pod": one.chips_per_host} if tpu.is_ambiguous(one) else {}
    return {"accelerator": one.accelerator.label, "topology": one.topology, **chips}


@pytest.mark.parametrize("one", SINGLE_HOST, ids=lambda one: f"{one.accelerator.label}-{one.topology}")
def test_every_slice_of_one_host_is_rendered(one: Slice) -> None:
    """Selector, request and limit are the table's, in whichever Job; the nodes' taint is tolerated; the pod knows it is alone."""
    for pod in pods(job(asked_for(one))):
        (container,) = pod["containers"]
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert container["resources"]["limits"]["google.com/tpu"] == str(one.chips)
        assert pod["nodeSelector"] == tpu.node_selector(one)
        assert pod["tolerations"] == [{"key": "google.com/tpu", "operator": "Exists"}]
        env = {each["name"]: each.get("value") for each in container["env"]}
        assert (env["TPU_WORKER_ID"], env["TPU_WORKER_HOSTNAMES"], env["TFRUN_STRATEGY"]) == ("0", "localhost", "tpu")
        assert pod["terminationGracePeriodSeconds"] <= 30  # what spot gives


@given(st.sampled_from(SEVERAL_HOSTS))
def test_every_slice_of_several_hosts_is_refused(one: Slice) -> None:
    """With the topologies that would do."""
    with pytest.raises(InvalidJobError) as refused:
        job({**asked_for(one)})
    assert str(refused.value).startswith(
        f"the job: kubernetes.tpu: {one.accelerator.label} {one.topology} has {one.hosts} hosts, and tfrun "
    )
    alone = [other.topology for other in SINGLE_HOST if other.accelerator is one.accelerator]
    assert alone
    assert all(topology in str(refused.value).split("yet; ")[1] for topology in alone)


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("one", SINGLE_HOST, ids=lambda one: f"{one.accelerator.label}-{one.topology}")
def test_the_lines_of_the_plan_make_what_it_says(one: Slice, capacity: Capacity) -> None:
    """What `tfrun tpu plan` prints for the job file, read back, selects the nodes that it names."""
    if capacity.flex_start and not one.accelerator.flex_start:
        return
    plan = tpu_plan.document(one, capacity)
    lines = tpu_plan.text(one, capacity).split("kubernetes.resources:\n\n")[1].split("\n\n")[0]
    asked = YAML(typ="safe", pure=True).load(lines)
    assert asked == plan["jobFile"]
    made = job(asked["kubernetes"]["tpu"], kubernetes={key: value for key, value in asked["kubernetes"].items() if key != "tpu"})
    assert [pod["nodeSelector"] for pod in pods(made)] == [plan["nodeSelector"]] * 4


def test_a_tpu_has_no_standby() -> None:
    """An imported process that waits could never get the TPU, whose lock the training has."""
    (with_tpu, without) = (manifests.job_objects(made, None) for made in (job(), job(strategy="auto", kubernetes={"tpu": None})))
    commands = [each["spec"]["template"]["spec"]["containers"][0]["command"] for each in (with_tpu[-1], without[-1])]
    assert ["--no-standby" in command for command in commands] == [True, False]


def test_a_toleration_of_the_jobs_own_is_there_once() -> None:
    """Also where it is the one that tfrun adds."""
    own = [{"key": "google.com/tpu", "operator": "Exists"}, {"key": "team", "operator": "Exists", "effect": "NoSchedule"}]
    assert pods(job(kubernetes={"tolerations": own}))[0]["tolerations"] == own


@pytest.mark.parametrize(
    ("tpu_", "says"),
    [
        (5, "the job: kubernetes.tpu is 5; it must be a mapping"),
        ({}, "kubernetes.tpu.accelerator is missing"),
        ({**V5E, "topolgy": "2x2"}, "there is no key kubernetes.tpu.topolgy; did you mean topology?"),
        ({**V5E, "accelerator": "v5e"}, "kubernetes.tpu: there is no TPU accelerator v5e; you may mean tpu-v5-lite-device or"),
        ({**V5E, "accelerator": "tpu-v2-podslice"}, "kubernetes.tpu: tpu-v2-podslice can't be had: GKE has no node pools of TPU v2"),
        ({**V5E, "accelerator": "tpu-v3-device"}, "kubernetes.tpu: tpu-v3-device can't be used, since it is TPU v3"),
        ({**V5E, "accelerator": "tpu7x"}, "kubernetes.tpu: tpu7x can't be used, since it is TPU v7x: Google's documentation says"),
        ({**V5E, "topology": "3x3"}, "kubernetes.tpu: tpu-v5-lite-podslice has no topology 3x3 (9 chips); the nearest are"),
        ({**V5E, "topology": "{0} {x}"}, "kubernetes.tpu: '{0} {x}' is no topology"),
        ({**V5E, "topology": 4}, "kubernetes.tpu.topology is 4; it must be text"),
        ({**V5E, "topology": "2x4"}, "comes in 2 forms, 1 pod of 8 chips on ct5lp-hightpu-8t or 2 pods of 4 chips"),
        (
            {**V5E, "topology": "2x4", "chips_per_pod": 4},
            "can't start TensorFlow's servers on several hosts yet; the topologies 1x1, 2x2 and 2x4 with chips_per_pod: 8 have one host",
        ),
        ({"accelerator": "tpu-v5p-slice", "topology": "2x2x2"}, "yet; the topology 2x2x1 has one host"),
        ({**V5E, "chips_per_pod": 2}, "can't have 2 chips per pod: a pod takes all chips of its host"),
        ({**V5E, "chips_per_pod": "4"}, "kubernetes.tpu.chips_per_pod is '4'; it must be a whole number, without quotes"),
        ({**V5E, "node_pool": "My_Pool"}, "kubernetes.tpu.node_pool is 'My_Pool'; it must be lower-case letters"),
        ({**V5E, "reservation": "A"}, "kubernetes.tpu: 'A' is no name of a reservation"),
        ({**V5E, "reservation": "a", "flex_start": True}, "kubernetes.tpu: spot, reservation and flex-start exclude each other"),
        ({**V5E, "accelerator": "tpu-v5-lite-device", "flex_start": True}, "GKE's flex-start does not provide tpu-v5-lite-device, only"),
        ({**V5E, "flex_start": "yes"}, "kubernetes.tpu.flex_start is 'yes'; it must be true or false"),
    ],
)
def test_what_is_no_slice_is_refused(tpu_: Any, says: str) -> None:
    """One sentence that begins with the field."""
    with pytest.raises(InvalidJobError) as refused:
        job(tpu_)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("kubernetes", "says"),
    [
        ({"resources": {"memory": "2Gi", "gpu": 1}}, "kubernetes.tpu: resources.gpu is 1, and TPU machines have no GPU; remove one"),
        ({"spot": True, "tpu": {**V5E, "reservation": "a"}}, "kubernetes.tpu: spot, reservation and flex-start exclude each other"),
        ({"spot": True, "tpu": {**V5E, "flex_start": True}}, "kubernetes.tpu: spot, reservation and flex-start exclude each other"),
        (
            {"node_selector": {tpu.TOPOLOGY_LABEL: "4x4"}},
            "kubernetes.tpu: node_selector has cloud.google.com/gke-tpu-topology: 4x4, and the slice's nodes have 2x2; remove it",
        ),
        ({"node_selector": {tpu.ACCELERATOR_LABEL: "tpu-v6e-slice"}}, "and the slice's nodes have tpu-v5-lite-podslice; remove it"),
        ({"node_selector": {tpu.COUNT_LABEL: "8"}}, "and the slice's nodes have 4; remove it"),
        ({"node_selector": {"node.kubernetes.io/instance-type": "n2-standard-4"}}, "and the slice's nodes have ct5lp-hightpu-4t"),
        ({"node_selector": {tpu.NODE_POOL_LABEL: "a"}, "tpu": {**V5E, "node_pool": "b"}}, "and the slice's nodes have b; remove it"),
        ({"node_selector": {"cloud.google.com/gke-spot": "false"}, "spot": True}, "and the slice's nodes have true; remove it"),
        (
            {"node_selector": {"cloud.google.com/gke-spot": "true"}, "tpu": {**V5E, "reservation": "a"}},
            "node_selector has cloud.google.com/gke-spot, and no node also has cloud.google.com/reservation-name, which the job asks for",
        ),
        ({"resources": {}}, "kubernetes.resources.memory is missing"),
    ],
)
def test_what_can_not_be_beside_a_tpu(kubernetes: dict[str, Any], says: str) -> None:
    """Each with the next thing to do; what is wrong by itself comes first."""
    with pytest.raises(InvalidJobError) as refused:
        job(kubernetes=kubernetes)
    assert says in str(refused.value)


def test_labels_that_agree_are_taken() -> None:
    """A node selector may say the same, or more."""
    same = {tpu.TOPOLOGY_LABEL: "2x2", tpu.COUNT_LABEL: "4", tpu.NODE_POOL_LABEL: "a", "cloud.google.com/gke-spot": "true", "team": "b"}
    assert pods(job(kubernetes={"node_selector": same}))[0]["nodeSelector"] == {**same, tpu.ACCELERATOR_LABEL: V5E["accelerator"]}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"strategy": "mirrored"}, "has the strategy mirrored beside kubernetes.tpu, and only TPUStrategy trains on a TPU; write"),
        ({"strategy": "multi_worker_mirrored", "workers": 2}, "has the strategy multi_worker_mirrored beside kubernetes.tpu"),
        ({"strategy": "default"}, "has the strategy default beside kubernetes.tpu"),
        ({"kubernetes": {"tpu": None}}, "has the strategy tpu and no kubernetes.tpu, so its pod would get no TPU; add kubernetes.tpu"),
        ({"workers": 3}, "the job digits has 3 workers on tpu-v5-lite-podslice 2x2, which is one host, and MultiWorkerMirroredStrategy"),
        ({"workers": 3}, "does not span TPUs; set workers to 1, and submit 3 jobs for as many slices"),
    ],
)
def test_a_job_that_contradicts_its_tpu_is_refused(fields: dict[str, Any], says: str) -> None:
    """On a cluster, in whatever shape; a local run doesn't look at it."""
    made = job(**fields)
    for shape in (manifests.job_objects, static.job_objects):
        with pytest.raises(InvalidJobError) as refused:
            shape(made, None)
        assert says in str(refused.value)


def test_a_local_run_does_not_look_at_it(tmp_path: Any) -> None:
    """The job file of a TPU can be tried on this machine, with more workers too."""
    (tmp_path / "job.yaml").write_text(
        "task: a.b\nkubernetes:\n  image: x\n  resources: {memory: 1Gi}\n  tpu: {accelerator: tpu-v6e-slice, topology: 1x1}\n"
    )
    assert job_from(str(tmp_path / "job.yaml"), (), 2, False).workers == 2


def test_a_tpu_that_is_elsewhere_needs_none_here() -> None:
    """TPU_NAME says where it is."""
    assert manifests.job_objects(job(env={"TPU_NAME": "grpc://10.0.0.1:8470"}, kubernetes={"tpu": None}), None)


@pytest.mark.parametrize(
    ("pod", "says"),
    [
        ({"nodeSelector": {tpu.TOPOLOGY_LABEL: "4x4"}}, "changes the node selector cloud.google.com/gke-tpu-topology"),
        ({"nodeSelector": {tpu.ACCELERATOR_LABEL: None}}, "changes the node selector cloud.google.com/gke-tpu-accelerator"),
        ({"nodeSelector": None}, "changes the node selector"),
        ({"nodeSelector": {tpu.NODE_POOL_LABEL: "b"}}, "changes the node selector cloud.google.com/gke-nodepool"),
        ({"containers": [{"name": "worker", "resources": {"limits": {"google.com/tpu": "1"}}}]}, "changes google.com/tpu, which is all"),
        ({"containers": [{"name": "worker", "resources": None}]}, "changes google.com/tpu, which is all chips of the host"),
    ],
)
def test_a_patch_can_not_part_a_pod_from_its_tpu(pod: dict[str, Any], says: str) -> None:
    """kubernetes.pod comes last, and could."""
    with pytest.raises(InvalidJobError) as refused:
        pods(job({**V5E, "node_pool": "a"}, kubernetes={"pod": {"spec": pod}}))
    assert says in str(refused.value)
    assert pods(job(kubernetes={"pod": {"spec": {"nodeSelector": {"team": "a"}}}}))[0]["nodeSelector"]["team"] == "a"


def test_what_a_tpu_is_paid_for_in_vain_is_warned_of() -> None:
    """A training that goes on without it, or begins anew; a deadline that is over before the machines are there."""
    kept = {"checkpoints": {"directory": "gs://a/b"}}
    (auto,) = manifests.warnings(job(strategy="auto", **kept))
    assert auto.startswith("strategy is auto, so a program that can't use the TPU trains without it; write `strategy: tpu`")
    (late,) = manifests.warnings(job({**V5E, "flex_start": True}, **kept))
    assert "the job ends if they are not there after 600 s; give a longer deadlines.start" in late
    assert not manifests.warnings(job({**V5E, "flex_start": True}, deadlines={"start": "1d"}, **kept))
    (anew,) = manifests.warnings(job())
    assert anew.startswith("checkpoints.directory is missing, so a lost machine's training begins anew; give a bucket")


def test_the_pod_stays_hardened() -> None:
    """Nothing of Pod Security `restricted` is given up for a TPU."""
    (template,) = (each["spec"]["template"] for each in manifests.worker_objects(job(), worker=0, incarnation=1))
    assert not pod_patch.warnings(template)


def test_the_examples_of_the_page_are_jobs() -> None:
    """docs/tpu.md: the job file gives nothing to warn of, and what takes the hardening back is taken, and warned of."""
    first, second = (YAML(typ="safe", pure=True).load(each.split("```")[0]) for each in PAGE.read_text().split("```yaml\n")[1:])
    assert not manifests.warnings(spec.make(first, "the page"))
    weaker = {**first, "kubernetes": {**first["kubernetes"], **second["kubernetes"]}}
    assert len(manifests.warnings(spec.make(weaker, "the page"))) == 2
