"""Every name, port and address that tfrun makes, in one place."""

from __future__ import annotations

import re
import time
from pathlib import Path

LOOPBACK = "127.0.0.1"
RUNS = Path(".tfrun")  # in the current folder, so that the logs of a project stay with it
LATEST = "latest"

MOUNT = "/tfrun"  # where a worker's pod has what tfrun brings

# A job's name becomes part of DNS names: a label of at most 63 characters, of which "-worker-99999" takes 13.
NAME_LIMIT = 50
NAME_RULE = f"lower-case letters, digits and '-', beginning with a letter and not ending in '-', at most {NAME_LIMIT} characters"
_NAME = re.compile(rf"(?=.{{1,{NAME_LIMIT}}}\Z)[a-z]([a-z0-9-]*[a-z0-9])?\Z")


def is_name(text: str) -> bool:
    """Whether a text is a job name as NAME_RULE says."""
    return bool(_NAME.match(text))


def name_from(program: str) -> str:
    """A job name made of a program's: "My_Train.py" gives "my-train"."""
    stem = re.sub(r"\.py$", "", program.rsplit("/", 1)[-1].rsplit(":", 1)[-1])
    name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    name = name if name[:1].isalpha() else f"job-{name}".strip("-")
    return name[:NAME_LIMIT].rstrip("-")


def run_folder(name: str, at: time.struct_time) -> str:
    """The folder of one run, such as "digits-20261121-093000"; a number is added when that exists."""
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S', at)}"


def worker_folder(worker: int) -> str:
    """Where a worker's logs are, inside the run folder."""
    return f"worker-{worker}"


# ---- on Kubernetes ----

JOB_LABEL, ROLE_LABEL, WORKER_LABEL, INCARNATION_LABEL = "tfrun.dev/job", "tfrun.dev/role", "tfrun.dev/worker", "tfrun.dev/incarnation"
STATUS, STOP = "tfrun.dev/status", "tfrun.dev/stop"  # annotations of the controller's Job: what it writes, what it is asked
TF_CONFIG = "tfrun.dev/tf-config"  # annotation of a Job that `render --workers` prints: what its program gets
SPEC = "tfrun.dev/spec"  # annotation of the controller's Job: a digest of the objects that were submitted
PORT = 2220  # of the controller's rendezvous
STATIC_PORT = 2222  # of TensorFlow's servers, where no controller tells them of free ones


def selector(job: str, role: str = "") -> str:
    """The label selector of a job's objects, or of its pods with a role."""
    return f"{JOB_LABEL}={job}" + (f",{ROLE_LABEL}={role}" if role else "")


def controller(job: str) -> str:
    """The controller's Job, Service, ServiceAccount, Role and RoleBinding."""
    return f"{job}-controller"


def key(job: str) -> str:
    """The Secret with the group's key, and the ServiceAccount whose token that is."""
    return f"{job}-key"


def files(job: str) -> str:
    """The ConfigMap with what the pods read."""
    return f"{job}-files"


def worker_job(job: str, worker: int, incarnation: int) -> str:
    """The Job of one worker that replaces a lost one: at most 63 characters up to worker 99999 and incarnation 999999."""
    return f"{job}-{worker}-{incarnation}"


def static_worker(job: str, worker: int) -> str:
    """The Job and the host name of one worker of a static set."""
    return f"{job}-{worker}"


def static_address(job: str, worker: int) -> str:
    """Where the others find that worker: its host name in the Service of its job, and the port."""
    return f"{static_worker(job, worker)}.{job}:{STATIC_PORT}"
