"""A real node: containerd, the pod network, the kubelet."""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

from tests.cluster import layout
from tests.cluster.control_groups import folders
from tests.cluster.control_plane import answers
from tests.cluster.identities import CA, certificate, key
from tests.cluster.layout import NodeLayout
from tests.cluster.supervise import Component

PAUSE_IMAGE = f"localhost/{layout.NAME}/pause:1"
NAMESPACE = "k8s.io"  # containerd's, in which the kubelet's images and containers are
CNI_PLUGINS = "/usr/lib/cni"


def containerd(node: NodeLayout) -> Component:
    """The container runtime, with everything it keeps in the node's folder."""
    config = node.folder / "containerd.toml"
    text = f"""version = 2
root = "{node.folder}/containerd"
state = "{node.folder}/run"
[grpc]
  address = "{node.socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true  # without CAP_SYS_RESOURCE runc can't lower a score, and every sandbox fails
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PLUGINS}"
    conf_dir = "{node.folder}/cni"
"""
    command = ("/usr/bin/containerd", "--config", str(config), "--log-level", "warn")
    return Component(f"{node.name}-containerd", command, lambda: ctr(node, "version").returncode == 0, {config: text, **_network(node)})


def kubelet(node: NodeLayout) -> Component:
    """The kubelet. Its API listens at the node's address, which only this machine has."""
    config = node.folder / "kubelet.json"
    command = (
        *(str(layout.BIN / "kubelet"), f"--config={config}", f"--kubeconfig={layout.kubeconfig(node.name)}"),
        *(f"--hostname-override={node.name}", f"--node-ip={node.address}", f"--root-dir={node.folder / 'kubelet'}"),
    )
    for folder in folders(node.cgroup):
        folder.mkdir(exist_ok=True)
    files = {config: json.dumps(_configuration(node), indent=2)}
    # After an outage of the API server a kubelet backs off, and may take a minute to report again.
    return Component(f"{node.name}-kubelet", command, lambda: _is_ready(node), files, patience=120.0)


def ctr(node: NodeLayout, *arguments: str, stdin: IO[bytes] | None = None) -> subprocess.CompletedProcess[bytes]:
    """Containerd's own client; the caller looks at the return code."""
    command = ["ctr", "--address", str(node.socket), "--namespace", NAMESPACE, *arguments]
    return subprocess.run(command, stdin=stdin or subprocess.DEVNULL, capture_output=True, check=False)


def end_shims(node: NodeLayout) -> None:
    """End the processes that containerd started for its containers, which outlive it, and remove their sockets."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if words and words[0].endswith("containerd-shim-runc-v2") and str(node.socket) in words:
            with suppress(psutil.NoSuchProcess):
                process.kill()
    for file in (node.folder / "run").glob("io.containerd.runtime.v2.task/*/*/address"):
        Path(file.read_text().removeprefix("unix://")).unlink(missing_ok=True)


def _network(node: NodeLayout) -> dict[Path, str]:
    """Pods are routed, not bridged, so that Services and policies see every packet between two of them."""
    ranges = [[{"subnet": node.pods}]]
    ipam = {"type": "host-local", "dataDir": str(node.folder / "addresses"), "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]}
    config = {"cniVersion": "1.0.0", "name": f"{layout.NAME}-{node.name}", "plugins": [{"type": "ptp", "ipam": ipam}]}
    return {node.folder / "cni" / "10-pods.conflist": json.dumps(config, indent=2)}


def _configuration(node: NodeLayout) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{node.socket}",
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}, "x509": {"clientCAFile": str(CA)}},
        "authorization": {"mode": "Webhook"},
        "address": node.address,
        "port": node.kubelet_port,
        "healthzPort": node.health_port,
        "tlsCertFile": str(certificate(f"{node.name}-server")),
        "tlsPrivateKeyFile": str(key(f"{node.name}-server")),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": node.cgroup,
        "enforceNodeAllocatable": ["pods"],
        "failCgroupV1": False,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "clusterDNS": [layout.DNS],
        "clusterDomain": layout.DOMAIN,
        "resolvConf": "/dev/null",
        "podLogsDir": str(node.folder / "logs"),
        "nodeStatusUpdateFrequency": "2s",
        "nodeLeaseDurationSeconds": 8,
        "imageGCHighThresholdPercent": 100,  # off: the machine's disk is not the cluster's alone
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
    }


def _is_ready(node: NodeLayout) -> bool:
    answer = answers(f"/api/v1/nodes/{node.name}")
    conditions = json.loads(answer)["status"].get("conditions", []) if answer else []
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
