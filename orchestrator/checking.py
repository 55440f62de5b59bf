"""`tfrun check`: what a cluster lacks for a job. Everything is read or tried (server-side dry run); nothing is made."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from orchestrator import names, refusals
from orchestrator.client import Connection, Json, RefusedError, place, resource
from orchestrator.kubernetes_spec import Volume, amount
from orchestrator.spec import JobSpec
from orchestrator.templates import Manifest
from orchestrator.worker_pod import kubernetes_of

WARNING = "warning: "  # before what may go well
# What the verbs do beside creating: (verb, kind, part).
_USED = (
    *((verb, "Job", "") for verb in ("get", "list", "watch", "patch", "delete")),
    *((verb, "Pod", "") for verb in ("get", "list", "watch")),
    ("get", "Pod", "log"),
    ("list", "Event", ""),
)


async def check(connection: Connection, job: JobSpec, objects: list[Manifest]) -> list[str]:
    """What is missing, a sentence each; what may go well begins with WARNING."""
    namespace = kubernetes_of(job).namespace
    if await _found(connection, place("Namespace", name=namespace)) is None:
        return [f"there is no namespace {namespace}; create it (kubectl create namespace {namespace}), or choose another with -n"]
    forbidden = await _forbidden(connection, namespace, objects)
    quotas, *others = await asyncio.gather(
        _quotas(connection, namespace, objects),
        *(_claim(connection, namespace, volume, job.workers) for volume in kubernetes_of(job).volumes),
        *_secrets(connection, job),
        _tried(connection, job, [each for each in objects if ("create", each["kind"], "") not in forbidden]),
        _pods_tried(connection, objects, forbidden),
    )
    # One pod too many says less than all of them.
    rest = [finding for findings in others for finding in findings if not (quotas and "the quota " in finding)]
    return list(dict.fromkeys([*(_right(each) for each in sorted(forbidden) if each[:2] != ("create", "Pod")), *quotas, *rest]))


# ---- rights ----


async def _forbidden(connection: Connection, namespace: str, objects: list[Manifest]) -> set[tuple[str, str, str]]:
    """What the job or its verbs need and whoever asks may not do; also ("create", "Pod", ""), which only the trial needs."""
    needed = sorted({("create", each["kind"], "") for each in objects} | set(_USED) | {("create", "Pod", "")})

    async def may(verb: str, kind: str, part: str) -> bool:
        group, plural = resource(kind)
        asked = {"namespace": namespace, "verb": verb, "group": group, "resource": plural, "subresource": part}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "metadata": {}}
        answer = await connection.create({**review, "spec": {"resourceAttributes": asked}})
        return bool(answer["status"]["allowed"])

    allowed = await asyncio.gather(*(may(*each) for each in needed))
    return {each for each, yes in zip(needed, allowed, strict=True) if not yes}


def _right(missing: tuple[str, str, str]) -> str:
    verb, kind, part = missing
    group, plural = resource(kind)
    what = f"{plural}/{part}" if part else plural
    return f"you may not {verb} {what} here; ask for a Role with the verb {verb} on {what} in the API group '{group}'"


# ---- what has to be there ----


async def _found(connection: Connection, path: str) -> Json | None:
    """The object, None if there is none, {} if whoever asks may not know."""
    try:
        return await connection.get(path)
    except RefusedError as e:
        if e.status in (403, 404):
            return None if e.status == 404 else {}
        raise


async def _claim(connection: Connection, namespace: str, volume: Volume, workers: int) -> list[str]:
    found = await _found(connection, place("PersistentVolumeClaim", namespace, volume.claim))
    if found is None:
        return [f"there is no PersistentVolumeClaim {volume.claim}; create it, or change kubernetes.volumes"]
    if not found:
        return [f"{WARNING}you may not read PersistentVolumeClaims, so whether {volume.claim} is there and can be shared is unknown"]
    modes, who = found["spec"].get("accessModes", []), f"the PersistentVolumeClaim {volume.claim}"
    if found.get("status", {}).get("phase") == "Lost":
        return [f"{who} has lost its volume; `kubectl describe pvc {volume.claim}` says which"]
    if workers == 1 or "ReadWriteMany" in modes:
        return []
    if "ReadOnlyMany" in modes:
        return [] if volume.read_only else [f"{who} can be shared for reading only; say read_only: true, or use one with ReadWriteMany"]
    if "ReadWriteOnce" in modes:
        return [f"{WARNING}{who} is ReadWriteOnce, so all {workers} workers must find room on one node; use one with ReadWriteMany"]
    return [f"{who} is for one pod ({', '.join(modes)}), and the job has {workers} workers; use one with ReadWriteMany"]


def _secrets(connection: Connection, job: JobSpec) -> Iterable[Any]:
    kubernetes = kubernetes_of(job)
    wanted: list[tuple[str, str | None, str]] = [(name, None, "kubernetes.pull_secrets") for name in kubernetes.pull_secrets]
    wanted += [(each.secret, each.key, f"kubernetes.secrets.{variable}") for variable, each in kubernetes.secrets.items()]
    return (_secret(connection, kubernetes.namespace, *each) for each in wanted)


async def _secret(connection: Connection, namespace: str, name: str, key: str | None, field: str) -> list[str]:
    found = await _found(connection, place("Secret", namespace, name))
    if found is None:
        return [f"there is no Secret {name}; create it, or change {field}"]
    if not found:
        return [f"{WARNING}you may not read Secrets, so whether {name} is there is unknown ({field})"]
    if key and key not in found.get("data", {}):
        return [f"the Secret {name} has no key {key}; add it, or change {field}"]
    return []


# ---- quotas ----


async def _quotas(connection: Connection, namespace: str, objects: list[Manifest]) -> list[str]:
    try:
        quotas = await connection.items(place("ResourceQuota", namespace))
    except RefusedError as e:
        if e.status != 403:
            raise
        return [f"{WARNING}you may not list ResourceQuotas, so whether they leave room for all workers is unknown"]
    needs = _needs(objects)
    # A quota with scopes counts some pods only; the dry run of one pod tells whether it counts ours.
    plain = [quota for quota in quotas if not quota["spec"].get("scopes") and not quota["spec"].get("scopeSelector")]
    return [finding for quota in plain for finding in _lacking(quota, needs)]


def _needs(objects: list[Manifest]) -> dict[str, Decimal]:
    """What the job takes of a quota, under each name that a quota may have for it."""
    needs: Counter[str] = Counter()  # of whole numbers first
    amounts: dict[str, Decimal] = {}
    for each in objects:
        group, plural = resource(each["kind"])
        needs[f"count/{plural}{f'.{group}' if group else ''}"] += 1
        needs[plural] += 1
        if each["kind"] == "Job":
            count = each["spec"].get("completions", 1)
            needs["pods"] += count
            for container in each["spec"]["template"]["spec"]["containers"]:
                for key, quantity in _named(container.get("resources", {})):
                    amounts[key] = amounts.get(key, Decimal(0)) + count * amount(str(quantity))
    needs["count/pods"] = needs["pods"]
    return {**amounts, **{key: Decimal(number) for key, number in needs.items()}}


def _named(resources: Json) -> Iterable[tuple[str, str]]:
    for name, quantity in resources.get("requests", {}).items():
        yield from ((f"requests.{name}", quantity), (name, quantity))
    for name, quantity in resources.get("limits", {}).items():
        yield f"limits.{name}", quantity


def _lacking(quota: Json, needs: dict[str, Decimal]) -> Iterable[str]:
    used = quota.get("status", {}).get("used", {})
    for key, limit in quota["spec"].get("hard", {}).items():
        taken = used.get(key, "0")
        if key in needs and needs[key] > amount(limit) - amount(taken):
            yield (
                f"the quota {quota['metadata']['name']} allows {limit} of {key}, {taken} is in use, and this needs {_number(needs[key])}; "
                "end something else in the namespace, ask for a larger quota, or use fewer workers"
            )


def _number(value: Decimal) -> str:
    gibi = value / 2**30
    return f"{gibi.normalize():f}Gi" if value >= 2**30 and gibi == gibi.quantize(Decimal("0.01")) else f"{value.normalize():f}"


# ---- server-side dry run ----


async def _tried(connection: Connection, job: JobSpec, objects: list[Manifest]) -> list[str]:
    refused = await asyncio.gather(*(_try(connection, each) for each in objects))
    taken = [each for each, refusal in zip(objects, refused, strict=True) if refusal and refusal.status == 409]
    findings = [_sentence(each, refusal) for each, refusal in zip(objects, refused, strict=True) if refusal and refusal.status != 409]
    if any((each["kind"], each["metadata"]["name"]) == ("Job", names.controller(job.name)) for each in taken):
        findings.append(f"a job {job.name} is there already; `tfrun stop {job.name}` ends and removes it, or give this one another name")
    else:
        findings += [
            f"a {each['kind']} {each['metadata']['name']} is there already; delete it or give the job another name" for each in taken
        ]
    return findings


async def _pods_tried(connection: Connection, objects: list[Manifest], forbidden: set[tuple[str, str, str]]) -> list[str]:
    """What admission says to the pods themselves: Pod Security, limits, accounts and priorities are not looked at in a Job."""
    if ("create", "Pod", "") in forbidden:
        return [f"{WARNING}you may not create pods, so whether Pod Security, limits and quotas take them could not be tried"]
    pods = [_pod(each) for each in objects if each["kind"] == "Job"]
    refused = await asyncio.gather(*(_try(connection, pod) for pod in pods))
    return [_sentence(pod, refusal) for pod, refusal in zip(pods, refused, strict=True) if refusal]


def _pod(job: Manifest) -> Manifest:
    """A pod as the Job makes it, but that the controller's account is not there yet."""
    template = job["spec"]["template"]
    spec = {key: value for key, value in template["spec"].items() if value != job["metadata"]["name"]}
    metadata = {**template["metadata"], "namespace": job["metadata"]["namespace"], "generateName": f"{job['metadata']['name']}-"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


async def _try(connection: Connection, manifest: Manifest) -> RefusedError | None:
    try:
        await connection.create(manifest, dryRun="All", fieldValidation="Strict")
    except RefusedError as e:
        if e.status == 404 and manifest["kind"] == "RoleBinding":
            return None  # its Role is to come
        return e
    return None


def _sentence(manifest: Manifest, refusal: RefusedError) -> str:
    why, remedy = refusals.explain(refusal.said)
    what = f"{manifest['kind']} {manifest['metadata'].get('name') or manifest['metadata']['generateName'] + '…'}"
    return f"the cluster would refuse the {what}: {why}{f'; {remedy}' if remedy else ''}"
