"""What Kubernetes refuses for its size, told before anything is sent."""

from __future__ import annotations

import base64
import json

from orchestrator.errors import InvalidJobError
from orchestrator.templates import Manifest

CONFIG_MAP = 1_048_576  # bytes of the values together: kubernetes.io/docs/concepts/configuration/configmap
OBJECT = 1_572_864  # bytes: etcd takes no larger request (etcd.io/docs, "System limits")
ANNOTATIONS = 262_144  # bytes: kubectl apply keeps the whole object in one, unless the server does the applying
_WAYS_OUT = {
    "code.zip": "put the code into the image, and give its path there as the program",
    "static.json": "run it with a controller (without --static), which needs no list of addresses",
}


def check(job: str, objects: list[Manifest]) -> None:
    """Raise InvalidJobError for an object that is too large, with the reason and a way out."""
    for each in objects:
        if each["kind"] == "ConfigMap":
            _check_files(job, each)
        size = len(json.dumps(each))
        if size > OBJECT:
            what = f"the {each['kind']} {each['metadata']['name']}"
            raise InvalidJobError(f"{what} is {size:,} bytes, and Kubernetes stores at most {OBJECT:,}; put long args and env into files")


def warnings(objects: list[Manifest]) -> list[str]:
    """What a plain `kubectl apply` would refuse, a sentence each."""
    large = [each for each in objects if len(json.dumps(each)) > ANNOTATIONS * 0.95]  # kubectl's own spelling of it may be longer
    text = "is too large for a plain kubectl apply, which keeps a copy of it in itself; use kubectl apply --server-side"
    return [f"the {each['kind']} {each['metadata']['name']} {text}" for each in large]


def _check_files(job: str, config_map: Manifest) -> None:
    sizes = {name: len(text.encode(errors="surrogatepass")) for name, text in config_map.get("data", {}).items()}
    sizes.update({name: len(base64.b64decode(text)) for name, text in config_map.get("binaryData", {}).items()})
    largest, size = max(sizes.items(), key=lambda item: item[1])
    if sum(sizes.values()) > CONFIG_MAP:
        way_out = _WAYS_OUT.get(largest, "put long args and env into files of the image")
        raise InvalidJobError(
            f"what {job} brings along is {sum(sizes.values()):,} bytes ({largest} {size:,}), "
            f"and a ConfigMap holds at most {CONFIG_MAP:,}; {way_out}"
        )
