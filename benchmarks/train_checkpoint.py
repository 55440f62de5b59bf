"""A checkpoint of 200 MB: what it costs the training loop, and how long resuming takes.

Beside it tf.train.Checkpoint.write in the same process, in turn, which does not bring the file to the disk; and reading the bytes.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import PROGRAMS, Limit, Peer, job, report, runs_wanted

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Measure in one process: the first round has what is made at the first save."""
    runs = runs_wanted()
    with TemporaryDirectory(prefix="tfrun-bench-") as folder:
        env = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), "TF_CPP_MIN_LOG_LEVEL": "3"}
        with job([sys.executable, PROGRAMS / "checkpoint_cost.py", folder, runs], env) as program:
            rounds = [json.loads(program.line()[1]) for _ in range(runs)]
    found = {name: [one[name] for one in rounds] for name in rounds[0]}
    peer = "tf.train.Checkpoint.write"
    report("checkpoint of 200 MB: time in the call", "ms", found["call"], Limit(0.1, "ratio"), Peer(peer, found["their_call"]))
    what = "checkpoint of 200 MB: what the loop loses, with the writing beside it on the same processors"
    report(what, "ms", found["loop"], peer=Peer(peer, found["their_loop"]), still_writing=sum(ms > 50 for ms in found["finish"]))
    report("checkpoint of 200 MB: resume", "ms", found["resume"], Limit(1.3, "ratio"), Peer("reading the bytes", found["read"]))


if __name__ == "__main__":
    main()
