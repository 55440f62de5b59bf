"""No TensorFlow and hardly any work: says that it runs, then reports steps for ever."""

import itertools
import json
import os
import time

from worker_image import report

worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
print(json.dumps({"event": "first", "worker": worker, "attempt": int(os.environ["TFRUN_ATTEMPT"]), "at": time.monotonic()}), flush=True)
for step in itertools.count(1):
    report.progress(step, loss=1 / step)
    time.sleep(0.1)
