"""The API server's own words, made into sentences."""

from __future__ import annotations

import pytest

from orchestrator import refusals


@pytest.mark.parametrize(
    ("said", "why", "remedy"),
    [
        (
            'services is forbidden: User "jane" cannot create resource "services" in API group "" in the namespace "ml"',
            "jane may not create services here",
            "ask for a Role with the verb create on services in the API group '', or choose another namespace with -n",
        ),
        (
            (
                'roles.rbac.authorization.k8s.io "x" is forbidden: user "jane" (groups=["a"]) is attempting to grant RBAC '
                "permissions not currently "
                'held:\n{APIGroups:[""], Resources:["pods"], Verbs:["delete"]}'
            ),
            (
                "nobody can give a controller more rights than they have themselves, and these are missing: "
                '{APIGroups:[""], Resources:["pods"], Verbs:["delete"]}'
            ),
            "ask for these rights, or for the verb escalate on roles",
        ),
        (
            (
                'services "x" is forbidden: exceeded quota: team, requested: count/services=1, used: count/services=0, limited: '
                "count/services=0"
            ),
            "the quota team allows count/services=0, count/services=0 is in use, and this needs count/services=1 more",
            "end something else in the namespace, or ask for a larger quota",
        ),
        (
            'pods "x" is forbidden: failed quota: team: must specify limits.cpu for: main',
            "the quota team wants every pod to say limits.cpu for: main",
            "ask whoever looks after the namespace for defaults (a LimitRange)",
        ),
        (
            'pods "x" is forbidden: violates PodSecurity "restricted:latest": privileged (container "worker" must not …)',
            'the namespace\'s Pod Security level restricted:latest forbids privileged (container "worker" must not …)',
            "leave that out of kubernetes.pod, or use a namespace that allows it",
        ),
        (
            'admission webhook "policy.example" denied the request: no images from there',
            "the cluster's webhook policy.example denied it: no images from there",
            "change the job as it says, or ask whoever looks after the cluster",
        ),
        (
            (
                'Internal error occurred: failed calling webhook "policy.example": failed to call webhook: Post "https://x": '
                "connection refused"
            ),
            "the cluster's webhook policy.example does not answer (connection refused)",
            "ask whoever looks after the cluster, and try again",
        ),
        (
            'pods "x" is forbidden: error looking up service account ml/train: serviceaccount "train" not found',
            "there is no ServiceAccount train in the namespace",
            "create it, or change kubernetes.service_account",
        ),
        (
            'pods "x" is forbidden: no PriorityClass with name high was found',
            "there is no PriorityClass high",
            "`kubectl get priorityclasses` shows which there are; change kubernetes.priority_class",
        ),
        (
            'pods "x" is forbidden: maximum cpu usage per Container is 1, but limit is 2',
            "a LimitRange of the namespace says: maximum cpu usage per Container is 1, but limit is 2",
            "change kubernetes.resources",
        ),
        (
            'namespaces "ml" not found',
            "there is no namespace ml, or it is being deleted",
            "create it (kubectl create namespace ml), or choose another with -n",
        ),
        ("something\nnew", "something new", ""),
        ("", "no reason was given", ""),
    ],
)
def test_a_refusal_says_what_is_wrong_and_what_to_do(said: str, why: str, remedy: str) -> None:
    """What the cluster says becomes a sentence; what is not known stays as it is, in one line."""
    assert refusals.explain(said) == (why, remedy)


@pytest.mark.parametrize(
    ("said", "why", "remedy"),
    [
        (
            "0/5 nodes are available: 1 node(s) had untolerated taint {gpu: }, 4 Insufficient nvidia.com/gpu. preemption: 0/5 nodes …",
            "no node takes it (1 of 5: node(s) had untolerated taint {gpu: }, 4 of 5: Insufficient nvidia.com/gpu)",
            "ask for less in kubernetes.resources, or wait until others end or nodes are added",
        ),
        (
            "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.",
            "no node takes it (2 of 2: node(s) didn't match Pod's node affinity/selector)",
            "change kubernetes.node_selector to labels that nodes have (`kubectl get nodes --show-labels`)",
        ),
        (
            '0/2 nodes are available: persistentvolumeclaim "data" not found. not found',
            'no node takes it (persistentvolumeclaim "data" not found)',
            "create the PersistentVolumeClaim, or change kubernetes.volumes",
        ),
        ("no nodes available to schedule pods", "no nodes available to schedule pods", ""),
        ("", "the scheduler has not said why", ""),
    ],
)
def test_the_scheduler_is_made_short(said: str, why: str, remedy: str) -> None:
    """What keeps a pod from every node, without what preemption would have done."""
    assert refusals.scheduling(said) == (why, remedy)


def test_an_unknown_user_is_told_to_log_in() -> None:
    """401 has nothing to do with the object that was asked for."""
    assert refusals.sentence(401, "Unauthorized", "create the Job x").startswith(
        "the cluster does not know who you are (401 Unauthorized); "
    )
