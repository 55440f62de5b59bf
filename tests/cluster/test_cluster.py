"""The test cluster does what a real one does: pods, names, logs, admission, quotas, the audit log, TensorFlow between two pods."""

from __future__ import annotations

import json

import pytest
from kubernetes.client.exceptions import ApiException

from tests.cluster import images
from tests.cluster.manifests import group, make_group, pod
from tests.cluster.objects import Cluster, Namespace

pytestmark = pytest.mark.timeout(300)

# Says its name to its peer and prints what it hears: both resolve each other's name and reach each other's port.
TALK = """
import os, socket, time
me = int(os.environ["JOB_COMPLETION_INDEX"])
listening = socket.create_server(("", 2222))
deadline = time.monotonic() + 60
while True:
    try:
        peer = socket.create_connection((f"talk-{1 - me}.talk", 2222), timeout=5)
        break
    except OSError as e:
        assert time.monotonic() < deadline, e
        time.sleep(0.2)
peer.sendall(f"hello from {me}\\n".encode())
print(listening.accept()[0].makefile().readline(), end="", flush=True)
"""
# What any TensorFlow program does, with a TF_CONFIG from names that are known beforehand.
TRAIN = """
import json, os
os.environ["TF_CONFIG"] = json.dumps({
    "cluster": {"worker": ["train-0.train:2222", "train-1.train:2222"]},
    "task": {"type": "worker", "index": int(os.environ["JOB_COMPLETION_INDEX"])},
})
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    weights = tf.Variable(1.0)
@tf.function
def step():
    def replica():
        context = tf.distribute.get_replica_context()
        weights.assign_add(context.all_reduce(tf.distribute.ReduceOp.SUM, 0.5))
    strategy.run(replica)
for _ in range(10):
    step()
print("weights", float(weights.numpy()), "replicas", strategy.num_replicas_in_sync, flush=True)
"""


def test_two_pods_resolve_and_reach_each_other(cluster: Cluster, namespace: Namespace) -> None:
    """An Indexed Job with a headless Service: names, routes and logs work."""
    make_group(namespace, group("talk", cluster.image(images.TENSORFLOW), "python3", "-c", TALK))
    pods = namespace.members("app=talk", 2)
    for index, each in enumerate(pods):
        assert namespace.ended(each.metadata.name).status.phase == "Succeeded", namespace.story()
        assert namespace.log(each.metadata.name) == f"hello from {1 - index}\n"


def test_tensorflow_trains_between_two_pods(cluster: Cluster, namespace: Namespace) -> None:
    """The plain image, nothing of ours: MultiWorkerMirroredStrategy under Pod Security restricted, on a read-only root file system."""
    make_group(namespace, group("train", cluster.image(images.TENSORFLOW), "python3", "-c", TRAIN))
    pods = namespace.members("app=train", 2)
    for each in pods:
        assert namespace.ended(each.metadata.name, patience=200).status.phase == "Succeeded", namespace.story()
        assert "weights 11.0 replicas 2" in namespace.log(each.metadata.name)


@pytest.mark.parametrize("image", images.ALL, ids=lambda image: image.target)
def test_images_are_small_in_rights(cluster: Cluster, namespace: Namespace, image: images.Image) -> None:
    """No image needs root, or holds a compiler or pip."""
    look = (
        "import os, shutil; print(os.getuid(), [x for x in ('gcc', 'cc', 'c++', 'pip', 'apt-get') if shutil.which(x) and x != 'apt-get'])"
    )
    namespace.start(pod("look", cluster.image(image), "python3", "-c", look))
    assert namespace.ended("look").status.phase == "Succeeded", namespace.story()
    assert namespace.log("look") == "65532 []\n"


def test_the_images_hold_our_programs(cluster: Cluster, namespace: Namespace) -> None:
    """`tfrun` in the controller's, the agent in the worker's."""
    core = cluster.core
    namespace.start(pod("controller", cluster.image(images.CONTROLLER), "tfrun", "--version"))
    core.create_namespaced_pod(
        namespace.name, pod("worker", cluster.image(images.WORKER), "python3", "/opt/tfrun/worker_image", "agent", "script")
    )
    assert namespace.ended("controller").status.phase == "Succeeded", namespace.story()
    assert namespace.log("controller").startswith("tfrun, version ")
    namespace.ended("worker")
    assert "the following arguments are required: --controller" in namespace.log("worker")


def test_pod_security_refuses_what_is_privileged(cluster: Cluster, namespace: Namespace) -> None:
    """The namespaces of the tests enforce `restricted`."""
    asked = pod("root", cluster.image(images.TENSORFLOW), "true")
    asked["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    with pytest.raises(ApiException) as refused:
        namespace.start(asked)
    assert refused.value.status == 403
    message = json.loads(refused.value.body)["message"]
    assert message.startswith('pods "root" is forbidden: violates PodSecurity "restricted:latest": privileged (container "main" must not')


def test_a_full_quota_refuses_pods(cluster: Cluster, namespace: Namespace) -> None:
    """With the reason, as a user's own namespace does."""
    namespace.quota(pods="1")
    namespace.start(pod("first", cluster.image(images.TENSORFLOW), "sleep", "60"))
    with pytest.raises(ApiException, match="exceeded quota: quota, requested: pods=1, used: pods=1, limited: pods=1"):
        namespace.start(pod("second", cluster.image(images.TENSORFLOW), "sleep", "60"))


@pytest.mark.machine
def test_the_audit_log_tells_who_did_what(cluster: Cluster, namespace: Namespace) -> None:
    """User, verb, resource with subresource, and the answer."""
    core = cluster.core
    namespace.start(pod("audited", cluster.image(images.TENSORFLOW), "true"))
    node = namespace.ended("audited").spec.node_name
    namespace.log("audited")
    with pytest.raises(ApiException):
        core.read_namespaced_config_map("missing", namespace.name)
    entries = set(namespace.audit())
    seen = {(entry.user, entry.verb, entry.resource, entry.name, entry.code) for entry in entries}
    assert ("tfrun-test-admin", "create", "pods", "audited", 201) in seen
    assert ("tfrun-test-admin", "get", "pods/log", "audited", 200) in seen
    assert ("tfrun-test-admin", "get", "configmaps", "missing", 404) in seen
    assert ("system:kube-scheduler", "create", "pods/binding", "audited", 201) in seen
    assert (f"system:node:{node}", "patch", "pods/status", "audited", 200) in seen
