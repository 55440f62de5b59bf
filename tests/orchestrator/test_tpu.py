"""The table of TPU slices: it agrees with itself, and whatever a job asks for is found as it is meant or refused with a reason."""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections import Counter

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import fields, spec, tables, tpu, tpu_plan
from orchestrator.cli import tfrun
from orchestrator.errors import InvalidJobError
from orchestrator.tpu_capacity import Capacity
from orchestrator.tpu_table import ACCELERATORS, EXPERIMENTAL, NO, TABLE, Accelerator, Slice
from tests.conftest import REPO, TFRUN

ON_DEMAND = Capacity()
USABLE = [one for one in TABLE if one.accelerator.tensorflow != NO]
REFUSED = [one for one in ACCELERATORS if one.tensorflow == NO]

any_usable = st.sampled_from(USABLE)


def refused(accelerator: str, topology: str, chips_per_pod: int | None = None) -> str:
    with pytest.raises(InvalidJobError) as caught:
        tpu.find(accelerator, topology, chips_per_pod)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 2
    return message


# ---- the table ----


def test_every_slice_agrees_with_itself() -> None:
    """The product of the topology is hosts × chips per host; the machine type says the chips; the sources allow the dimensions."""
    assert len(TABLE) > 500
    for one in TABLE:
        assert math.prod(one.dimensions) == one.chips == one.hosts * one.chips_per_host, one
        assert one.machine.endswith(f"-{one.chips_per_host}t"), one
        assert list(one.dimensions) == sorted(one.dimensions) or one.topology == "2x2x1", one
        assert all(n in (1, 2) or n % 4 == 0 for n in one.dimensions), one
        assert one.accelerator in ACCELERATORS, one
        assert one.listed or (one.chips > 64 and len(one.dimensions) == 3 and one.dimensions[0] % 4 == 0), one


def test_nothing_is_in_the_table_twice() -> None:
    """An accelerator, a topology and the chips of a host name one slice; a machine alone has one topology."""
    assert max(Counter((one.accelerator, one.topology, one.chips_per_host) for one in TABLE).values()) == 1
    assert max(Counter(one.machine for one in TABLE if one.hosts == 1).values()) == 1


def test_an_accelerator_is_of_one_kind() -> None:
    """Each has a family of machines of its own, one number of dimensions, and sources."""
    families = {(one.accelerator.label, one.machine.split("-")[0], len(one.dimensions)) for one in TABLE}
    assert len(families) == len({label for label, _, _ in families}) == len({family for _, family, _ in families})
    assert all(known.sources and known.because for known in ACCELERATORS)


def test_the_ambiguous_shapes_are_two() -> None:
    """2x4 of v5e and of v6e: one machine of 8 chips, or two of 4."""
    found = {(one.accelerator.label, one.topology): one for one in TABLE if tpu.is_ambiguous(one)}
    assert set(found) == {("tpu-v5-lite-podslice", "2x4"), ("tpu-v6e-slice", "2x4")}
    for label, topology in found:
        assert {(tpu.find(label, topology, chips).hosts, chips) for chips in (4, 8)} == {(1, 8), (2, 4)}


@pytest.mark.parametrize(
    ("accelerator", "topology", "name"),
    [
        ("tpu-v4-podslice", "2x2x4", "v4-32"),
        ("tpu-v5-lite-podslice", "4x4", "v5litepod-16"),
        ("tpu-v5p-slice", "2x2x1", "v5p-8"),
        ("tpu-v6e-slice", "4x4", "v6e-16"),
    ],
)
def test_cloud_tpus_own_names(accelerator: str, topology: str, name: str) -> None:
    """v4 and v5p count two cores for each chip there, v5e and v6e one."""
    assert tpu.find(accelerator, topology).cloud_name == name


# ---- what is found ----


def test_every_slice_is_found_or_refused() -> None:
    """Whole, with and without its chips per pod where that is not ambiguous; never another one."""
    for one in TABLE:
        label = one.accelerator.label
        if one.accelerator.tensorflow == NO:
            assert one.accelerator.because in refused(label, one.topology)
            continue
        assert tpu.find(label, one.topology, one.chips_per_host) is one
        assert tpu.is_ambiguous(one) or tpu.find(label, one.topology) is one


def test_what_the_pods_of_a_slice_need() -> None:
    """The labels tell its nodes from every other slice's, and a pod takes the chips of its host."""
    for one in TABLE:
        assert tpu.node_selector(one)[tpu.ACCELERATOR_LABEL] == one.accelerator.label
        assert tpu.node_selector(one)[tpu.TOPOLOGY_LABEL] == one.topology
        assert int(tpu.resources(one)["google.com/tpu"]) * one.pods == one.chips
    assert max(Counter(tuple(tpu.node_selector(one).items()) for one in TABLE).values()) == 1


def test_what_tensorflow_can_use() -> None:
    """Several hosts are experimental where anything works at all, and there is always a reason."""
    for one in TABLE:
        word, sentence = tpu.tensorflow(one)
        assert sentence
        assert (word == EXPERIMENTAL) == (one.hosts > 1 and one.accelerator.tensorflow != NO)


@given(any_usable, st.data())
def test_every_host_knows_its_place(one: Slice, data: st.DataObject) -> None:
    """The names of all hosts are the same on each, and the host's own stands where its number says."""
    index = data.draw(st.integers(0, one.hosts - 1))
    found = tpu.environment("job", one, index)
    hosts = found["TPU_WORKER_HOSTNAMES"].split(",")
    assert set(found) <= set(fields.RESERVED)
    assert len(set(hosts)) == len(hosts) == one.hosts
    assert found["TPU_WORKER_ID"] == str(index)
    assert hosts[index] == ("localhost" if one.hosts == 1 else f"job-{index}.job")
    with pytest.raises(ValueError, match="has no host"):
        tpu.environment("job", one, one.hosts)


def test_names_that_do_not_fit_are_refused() -> None:
    """1,536 hosts with the longest name of a job are more than one variable takes."""
    largest = tpu.find("tpu-v5p-slice", "16x16x24")
    assert tpu.environment("j", largest, 0)
    with pytest.raises(InvalidJobError, match="give the job a shorter name"):
        tpu.environment("j" * 50, largest, 0)


# ---- what is refused ----


@given(st.sampled_from([known for known in ACCELERATORS if known.tensorflow != NO]), st.lists(st.integers(1, 64), min_size=2, max_size=3))
def test_a_topology_that_does_not_exist(known: Accelerator, dimensions: list[int]) -> None:
    """The nearest ones by number of chips, none of which is farther away than one that is left out."""
    topology = "x".join(map(str, dimensions))
    there = {one.topology: one.chips for one in TABLE if one.accelerator is known}
    if topology in there:
        return
    message = refused(known.label, topology)
    assert f"has no topology {topology} ({math.prod(dimensions)} chips)" in message
    named = re.findall(r"(\d+x[\dx]+) \((\d+)\)", message)
    assert 1 <= len(named) <= 3
    assert all(there[name] == int(chips) for name, chips in named)
    far = [abs(math.log(chips / math.prod(dimensions))) for chips in there.values()]
    closest = min(far)
    # The same dimensions in another order come first; then the closest.
    assert closest in {abs(math.log(int(chips) / math.prod(dimensions))) for _, chips in named}


@given(st.text(max_size=12))
def test_what_is_no_topology(text: str) -> None:
    """Any text but a topology is refused with an example of one."""
    if not re.fullmatch(r"\d+(x\d+)+", text, re.ASCII):
        assert "is no topology; it is written with its dimensions, such as 1x1" in refused("tpu-v6e-slice", text)


@given(any_usable, st.integers(-1, 16))
def test_chips_per_pod_that_do_not_match(one: Slice, chips: int) -> None:
    """A pod takes all chips of its host; what would be right is said."""
    right = {other.chips_per_host for other in TABLE if (other.accelerator, other.topology) == (one.accelerator, one.topology)}
    if chips in right:
        return
    message = refused(one.accelerator.label, one.topology, chips)
    assert f"can't have {chips} chips per pod" in message
    assert message.endswith(("give 8 or 4", *(f"give {n}" for n in right)))


@pytest.mark.parametrize("accelerator", ["tpu-v5-lite-podslice", "tpu-v6e-slice"])
def test_chips_per_pod_are_asked_for_where_they_decide(accelerator: str) -> None:
    """Never guessed; each choice is explained."""
    machine = {"tpu-v5-lite-podslice": "ct5lp-hightpu", "tpu-v6e-slice": "ct6e-standard"}[accelerator]
    assert refused(accelerator, "2x4") == (
        f"{accelerator} 2x4 comes in 2 forms, 1 pod of 8 chips on {machine}-8t or 2 pods of 4 chips on {machine}-4t; "
        "say which with chips_per_pod (--chips-per-pod), since node pools of both have the same labels"
    )


@pytest.mark.parametrize("label", [known.label for known in REFUSED])
def test_generations_that_a_job_can_not_have(label: str) -> None:
    """TPU v3 and v7, with the reason, whatever the topology; and what to take instead."""
    message = refused(label, "2x2")
    assert next(known.because for known in REFUSED if known.label == label) in message
    assert "tpu-v6e-slice" in message


@pytest.mark.parametrize(
    ("accelerator", "says"),
    [
        ("tpu-v2-podslice", "GKE has no node pools of TPU v2"),
        ("v2-8", "GKE has no node pools of TPU v2"),
        ("v5e", "you may mean tpu-v5-lite-device or tpu-v5-lite-podslice"),
        ("v5litepod-16", "you may mean tpu-v5-lite-podslice,"),
        ("v6e-8", "you may mean tpu-v6e-slice,"),
        ("tpu-v5p-podslice", "you may mean tpu-v5p-slice"),
        ("nvidia-l4", "take one of tpu-v4-lite-device,"),
        ("", "take one of tpu-v4-lite-device,"),
    ],
)
def test_an_accelerator_that_does_not_exist(accelerator: str, says: str) -> None:
    """Generations and Cloud TPU's own names lead to the label, and so do slips."""
    assert says in refused(accelerator, "4x4")


@given(any_usable, st.integers(-1, 8))
def test_a_training_has_one_slice(one: Slice, slices: int) -> None:
    """More are refused, with a slice as large as all of them where there is one."""
    if slices == 1:
        tpu.check_slices(one, slices)
        return
    with pytest.raises(InvalidJobError) as caught:
        tpu.check_slices(one, slices)
    if slices > 1:
        instead = re.search(r"take one slice of ([\dx]+) \((\d+) chips\), or submit", str(caught.value))
        chips = {other.chips for other in TABLE if other.accelerator is one.accelerator}
        assert bool(instead) == (one.chips * slices in chips)
        assert "TensorFlow has no multislice" in str(caught.value)


# ---- the plan ----


@given(any_usable, st.sampled_from([ON_DEMAND, Capacity(spot=True), Capacity(reservation="team-1"), Capacity(flex_start=True)]))
def test_the_command_makes_the_slice(one: Slice, capacity: Capacity) -> None:
    """As many nodes as hosts, the topology where there is more than one, and never two kinds of capacity."""
    if capacity.flex_start and not one.accelerator.flex_start:
        with pytest.raises(InvalidJobError, match="flex-start does not provide"):
            tpu_plan.document(one, capacity)
        return
    document = tpu_plan.document(one, capacity)
    flags = dict(word.removeprefix("--").partition("=")[::2] for word in document["nodePool"][5:])
    assert flags["machine-type"] == one.machine
    assert flags.get("tpu-topology") == (one.topology if one.hosts > 1 else None)
    assert int(flags["max-nodes" if capacity.flex_start else "num-nodes"]) == one.hosts
    assert len({"spot", "reservation", "flex-start"} & set(flags)) == (capacity != ON_DEMAND)
    assert document["nodeSelector"].items() >= tpu.node_selector(one).items()
    assert len(document["nodeSelector"]) - len(tpu.node_selector(one)) == (capacity != ON_DEMAND)
    assert f"google.com/tpu: {one.chips_per_host}" in tpu_plan.text(one, capacity)
    assert any("no source names it" in line for line in document["unknown"]) != one.listed


@pytest.mark.parametrize(
    ("capacity", "says"),
    [
        (Capacity(spot=True, reservation="a"), "exclude each other"),
        (Capacity(spot=True, flex_start=True), "exclude each other"),
        (Capacity(reservation=""), "is no name of a reservation"),
        (Capacity(reservation="x; rm -rf ~"), "is no name of a reservation"),
    ],
)
def test_a_capacity_that_does_not_exist(capacity: Capacity, says: str) -> None:
    """Nothing that a shell would take apart gets into the command."""
    with pytest.raises(InvalidJobError, match=says):
        tpu_plan.text(tpu.find("tpu-v6e-slice", "4x4"), capacity)


SEVERAL_HOSTS = """\
slice       tpu-v5-lite-podslice 4x4: TPU v5e, 16 chips; Cloud TPU calls it v5litepod-16
hosts       4 of ct5lp-hightpu-4t, 4 chips in each
pods        4, each with google.com/tpu: 4, all chips of its host
labels      cloud.google.com/gke-tpu-accelerator: tpu-v5-lite-podslice
            cloud.google.com/gke-tpu-topology: 4x4
            cloud.google.com/gke-spot: "true"
tensorflow  experimental: one program drives a TensorFlow server on each host; for several hosts Google documents JAX and PyTorch only

The node pool (the words in capitals are yours to fill in):

gcloud container node-pools create NODE_POOL \\
    --cluster=CLUSTER \\
    --location=LOCATION \\
    --node-locations=ZONE \\
    --machine-type=ct5lp-hightpu-4t \\
    --tpu-topology=4x4 \\
    --num-nodes=4 \\
    --spot

Cost:
- 16 chips × the hours that the node pool has its machines, with a job or without; a chip's price includes its host
- a slice is had as a whole or not at all; delete the node pool, or let it scale to 0, when nothing runs
- spot is cheaper, and Google may take the machines at any time: checkpoint often
- if one host fails, GKE makes all 4 anew: what all 16 chips did since the last checkpoint is lost
- prices differ by region and change: https://cloud.google.com/tpu/pricing

A job file can't ask for it yet, since tfrun can't start TensorFlow's servers on several hosts; it is to render:
- one Indexed Job: completions and parallelism 4, restartPolicy Never, a toleration of the nodes' taint google.com/tpu
- in each pod google.com/tpu: 4 as request and limit, and the labels above as nodeSelector
- a headless Service for the pods' names, and in each pod TPU_WORKER_ID and TPU_WORKER_HOSTNAMES
- if several node pools have this shape, select one with cloud.google.com/gke-nodepool: pods of one Job may land on two of them

Not known, since nothing of this ran on a TPU:
- whether GKE keeps TPU_WORKER_ID and TPU_WORKER_HOSTNAMES where a job sets them itself
- whether your project has quota and your zone has these machines
"""

ONE_HOST = """\
slice       tpu-v6e-slice 2x4: TPU v6e, 8 chips; Cloud TPU calls it v6e-8
hosts       1 of ct6e-standard-8t, 8 chips in each
pods        1, each with google.com/tpu: 8, all chips of its host
labels      cloud.google.com/gke-tpu-accelerator: tpu-v6e-slice
            cloud.google.com/gke-tpu-topology: 2x4
            cloud.google.com/gke-accelerator-count: "8"
            cloud.google.com/gke-flex-start: "true"
tensorflow  documented: Google's keras-rs tutorial trains on it with tensorflow-tpu 2.19.1

The node pool (the words in capitals are yours to fill in):

gcloud container node-pools create NODE_POOL \\
    --cluster=CLUSTER \\
    --location=LOCATION \\
    --node-locations=ZONE \\
    --machine-type=ct6e-standard-8t \\
    --flex-start \\
    --reservation-affinity=none \\
    --enable-autoscaling \\
    --num-nodes=0 \\
    --min-nodes=0 \\
    --max-nodes=1

In the job file, beside kubernetes.image and kubernetes.resources:

strategy: tpu
kubernetes:
  tpu: {accelerator: tpu-v6e-slice, topology: 2x4, chips_per_pod: 8, flex_start: true}

Cost:
- 8 chips × the hours that the node pool has its machines, with a job or without; a chip's price includes its host
- the smallest unit is one machine; delete the node pool, or let it scale to 0, when nothing runs
- flex-start is cheaper, begins when the machines are free, and ends after at most 7 days
- prices differ by region and change: https://cloud.google.com/tpu/pricing

What that renders:
- one Indexed Job: completions and parallelism 1, restartPolicy Never, a toleration of the nodes' taint google.com/tpu
- in each pod google.com/tpu: 8 as request and limit, and the labels above as nodeSelector
- TPU_WORKER_ID and TPU_WORKER_HOSTNAMES, as GKE's device plugin sets them on one host

Not known, since nothing of this ran on a TPU:
- whether your project has quota and your zone has these machines
"""


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ("--accelerator tpu-v5-lite-podslice --topology 4x4 --spot", SEVERAL_HOSTS),
        ("--accelerator tpu-v6e-slice --topology 2x4 --chips-per-pod 8 --slices 1 --flex-start", ONE_HOST),
    ],
)
def test_the_plan_as_it_is_printed(words: str, printed: str) -> None:
    """Whole, for a slice of several hosts and one of a single host."""
    result = CliRunner().invoke(tfrun, ["tpu", "plan", *words.split()])
    assert result.output == printed


def test_the_plan_for_a_program() -> None:
    """The same as JSON, with the command word by word."""
    words = ["tpu", "plan", "--accelerator", "tpu-v4-podslice", "--topology", "4x4x8", "--reservation", "team-1", "-o", "json"]
    document = json.loads(CliRunner().invoke(tfrun, words).output)
    one = tpu.find("tpu-v4-podslice", "4x4x8")
    assert document == json.loads(json.dumps(tpu_plan.document(one, Capacity(reservation="team-1"))))
    assert document["tolerations"] == [{"key": "google.com/tpu", "operator": "Exists"}]
    assert document["nodePool"][-3:] == ["--num-nodes=32", "--reservation-affinity=specific", "--reservation=team-1"]
    assert document["nodeSelector"]["cloud.google.com/reservation-name"] == "team-1"


def test_a_refusal_is_one_line_and_exit_code_2() -> None:
    """As of every other verb."""
    words = ["tpu", "plan", "--accelerator", "tpu-v6e-slice", "--topology", "4x4", "--slices", "2"]
    done = subprocess.run([TFRUN, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "tfrun: one training can't span 2 slices: TensorFlow has no multislice (JAX and PyTorch do), and MultiWorkerMirroredStrategy does "
        "not span TPUs; take one slice of 4x8 (32 chips), or submit 2 jobs of one slice each\n"
    )


# ---- the list ----


def test_the_list_as_text() -> None:
    """One row a line and nothing else, the largest only with `-o wide`."""
    lines = CliRunner().invoke(tfrun, ["tpu"]).output.splitlines()
    assert lines[0].split("   ")[0] == "ACCELERATOR"
    assert "tpu-v6e-slice          2x4        8       1       8            ct6e-standard-8t    v6e   documented" in lines
    assert len(lines) == 1 + sum(one.chips <= tpu_plan.SHOWN_LIMIT for one in TABLE)
    wide = CliRunner().invoke(tfrun, ["tpu", "-o", "wide"]).output.splitlines()
    assert len(wide) == 1 + len(TABLE)
    assert wide[0].endswith("SOURCES")


def test_the_list_for_a_program() -> None:
    """Everything, with the labels of the nodes."""
    document = json.loads(CliRunner().invoke(tfrun, ["tpu", "-o", "json"]).output)
    assert [(row["accelerator"], row["topology"], row["hosts"]) for row in document] == [
        (one.accelerator.label, one.topology, one.hosts) for one in TABLE
    ]
    assert all(row["chips"] == row["hosts"] * row["chipsPerHost"] for row in document)
    assert document[-1]["tensorflow"]["support"] == NO


def test_the_list_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what the columns mean, and what was left out."""
    monkeypatch.setattr(tables, "is_terminal", lambda: True)
    shown = CliRunner().invoke(tfrun, ["tpu"]).output
    assert "cloud.google.com/gke-tpu-topology" in shown
    assert "are only in `tfrun tpu -o wide`" in shown
    assert "only in" not in CliRunner().invoke(tfrun, ["tpu", "-o", "wide"]).output


# ---- around it ----


def test_the_page_tells_of_every_accelerator() -> None:
    """docs/tpu.md has each accelerator, and each word of the column TENSORFLOW."""
    page = (REPO / "docs" / "tpu.md").read_text()
    assert all(f"`{known.label}`" in page for known in ACCELERATORS)
    assert all(f"| {tpu.tensorflow(one)[0]} |" in page for one in TABLE)


def test_the_variables_of_a_host_are_not_the_jobs_to_set() -> None:
    """A job file that sets them is refused, since tfrun does."""
    with pytest.raises(InvalidJobError, match="TPU_WORKER_HOSTNAMES"):
        spec.make({"program": "train.py", "env": {"TPU_WORKER_HOSTNAMES": "a"}}, "x")
