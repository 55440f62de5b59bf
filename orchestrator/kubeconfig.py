"""Which cluster, as whom: --kubeconfig, KUBECONFIG, ~/.kube/config, or the service account of the pod that this runs in."""

from __future__ import annotations

import os
from pathlib import Path

from kubernetes.aio import client, config

from orchestrator.access import Access
from orchestrator.errors import InvalidJobError

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


async def load(access: Access) -> tuple[client.Configuration, str]:
    """(configuration, its namespace). Raises InvalidJobError, which never quotes a file: it may hold a token."""
    # No limit of connections and small buffers: every worker's log may be followed at once.
    found = client.Configuration(connection_pool_maxsize=0, client_session_kwargs={"read_bufsize": 1 << 16})
    given = str(access.kubeconfig) if access.kubeconfig else os.environ.get("KUBECONFIG", "")
    if not given and not Path("~/.kube/config").expanduser().exists() and "KUBERNETES_SERVICE_HOST" in os.environ:
        return _inside(found)
    paths = given or str(Path("~/.kube/config").expanduser())
    for path in _readable(paths, bool(access.kubeconfig)):
        _check_private(path)
    try:
        loader = await config.load_kube_config(paths, access.context, found, persist_config=False)
    except Exception as e:  # whatever a broken file brings; its own text may quote the file, and so a token
        chosen = f"for the context {access.context}" if access.context else "with its current context"
        raise InvalidJobError(
            f"the kubeconfig {paths} can't be used {chosen} ({type(e).__name__}); `kubectl config get-contexts` shows what it has"
        ) from None
    return found, loader.current_context["context"].get("namespace") or "default"


def _inside(found: client.Configuration) -> tuple[client.Configuration, str]:
    try:
        config.load_incluster_config(found)
        return found, (_ACCOUNT / "namespace").read_text().strip()
    except (config.ConfigException, OSError) as e:
        raise InvalidJobError(f"this pod has no service account's token ({e}); mount one, or give a --kubeconfig") from e


def _readable(paths: str, asked_for: bool) -> list[Path]:
    found = [path for path in (Path(text).expanduser() for text in filter(None, paths.split(os.pathsep))) if path.exists()]
    if not found:
        origin = "--kubeconfig" if asked_for else "KUBECONFIG" if "KUBECONFIG" in os.environ else "no --kubeconfig, no KUBECONFIG, and"
        raise InvalidJobError(f"there is no kubeconfig {paths} ({origin}); give the file that `kubectl` uses")
    return found


def _check_private(path: Path) -> None:
    if path.stat().st_mode & 0o002:
        raise InvalidJobError(
            f"everyone may change the kubeconfig {path}, and so the commands it runs and where your credentials go; `chmod 600 {path}`"
        )
