"""What the API server and its admission say, as sentences with the next thing to do. Pure."""

from __future__ import annotations

import re

_LONGEST = 300  # characters of words that are not ours


def explain(said: str) -> tuple[str, str]:
    """(what is wrong, what to do) of a refusal in the API's words; the second is empty where there is nothing better than the first."""
    for pattern, what, remedy in _KNOWN:
        found = pattern.search(said)
        if found:
            return what.format(**_cleaned(found)), remedy.format(**_cleaned(found))
    return short(said) or "no reason was given", ""


def sentence(status: int, said: str, what: str) -> str:
    """The error for a refused request; `what` is the request as a verb with its object."""
    if status == 401:
        return "the cluster does not know who you are (401 Unauthorized); log in again, or choose another --context"
    why, remedy = explain(said)
    return f"the cluster refused to {what} ({status}): {why}{f'; {remedy}' if remedy else ''}"


def scheduling(said: str) -> tuple[str, str]:
    """(why no node takes a pod, what to do) of the scheduler's message, such as "0/5 nodes are available: 5 Insufficient cpu. …"."""
    found = re.match(r"0/(?P<nodes>\d+) nodes are available: (?P<reasons>.*?)\.(?: |\Z)", " ".join(said.split()))
    if not found:
        return short(said) or "the scheduler has not said why", ""
    reasons = re.sub(r"(?<![\w.])(\d+) (?=\w)", lambda count: f"{count[1]} of {found['nodes']}: ", found["reasons"])
    remedies = (remedy for mark, remedy in _SCHEDULING if mark in found["reasons"])
    return f"no node takes it ({short(reasons)})", next(remedies, "wait for a node, or ask whoever looks after the cluster")


def short(text: str) -> str:
    """One line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


_SCHEDULING = (  # the first that is in the message says what to do
    ("persistentvolumeclaim", "create the PersistentVolumeClaim, or change kubernetes.volumes"),
    ("unbound immediate PersistentVolumeClaims", "`kubectl get pvc` shows what keeps the claim from being bound"),
    ("volume node affinity", "the volume is bound to other nodes; use one that all nodes reach"),
    ("Insufficient", "ask for less in kubernetes.resources, or wait until others end or nodes are added"),
    ("node affinity/selector", "change kubernetes.node_selector to labels that nodes have (`kubectl get nodes --show-labels`)"),
    ("untolerated taint", "add what the nodes want to kubernetes.tolerations"),
    ("unschedulable", "the nodes are closed for new pods (cordoned); open one, or wait"),
)


def _cleaned(found: re.Match[str]) -> dict[str, str]:
    return {name: short(value or "").rstrip(".") for name, value in found.groupdict().items()}


_KNOWN = [
    (re.compile(pattern, re.DOTALL), what, remedy)
    for pattern, what, remedy in (
        (
            r'User "(?P<user>[^"]+)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"',
            "{user} may not {verb} {resource} here",
            "ask for a Role with the verb {verb} on {resource} in the API group '{group}', or choose another namespace with -n",
        ),
        (
            r"is attempting to grant RBAC permissions not currently held:\s*(?P<rules>.*)",
            "nobody can give a controller more rights than they have themselves, and these are missing: {rules}",
            "ask for these rights, or for the verb escalate on roles",
        ),
        (
            r"exceeded quota: (?P<quota>[^,]+), requested: (?P<asked>.+?), used: (?P<used>.+?), limited: (?P<limit>.+)",
            "the quota {quota} allows {limit}, {used} is in use, and this needs {asked} more",
            "end something else in the namespace, or ask for a larger quota",
        ),
        (
            r"failed quota: (?P<quota>[^:]+): must specify (?P<what>.+)",
            "the quota {quota} wants every pod to say {what}",
            "ask whoever looks after the namespace for defaults (a LimitRange)",
        ),
        (
            r'violates PodSecurity "(?P<level>[^"]+)": (?P<what>.+)',
            "the namespace's Pod Security level {level} forbids {what}",
            "leave that out of kubernetes.pod, or use a namespace that allows it",
        ),
        (
            r'admission webhook "(?P<hook>[^"]+)" denied the request:?\s*(?P<what>.*)',
            "the cluster's webhook {hook} denied it: {what}",
            "change the job as it says, or ask whoever looks after the cluster",
        ),
        (
            r'failed calling webhook "(?P<hook>[^"]+)".*?: (?P<what>[^:]+)\Z',
            "the cluster's webhook {hook} does not answer ({what})",
            "ask whoever looks after the cluster, and try again",
        ),
        (
            r'serviceaccount "(?P<account>[^"]+)" not found',
            "there is no ServiceAccount {account} in the namespace",
            "create it, or change kubernetes.service_account",
        ),
        (
            r"no PriorityClass with name (?P<name>\S+) was found",
            "there is no PriorityClass {name}",
            "`kubectl get priorityclasses` shows which there are; change kubernetes.priority_class",
        ),
        (
            r"(?P<rule>(?:maximum|minimum) \S+ usage per \w+ is [^,]+), but (?P<what>[^.]+)",
            "a LimitRange of the namespace says: {rule}, but {what}",
            "change kubernetes.resources",
        ),
        (
            r'namespaces? "?(?P<namespace>[a-z0-9-]+)"? (?:not found|because it is being terminated)',
            "there is no namespace {namespace}, or it is being deleted",
            "create it (kubectl create namespace {namespace}), or choose another with -n",
        ),
    )
]
