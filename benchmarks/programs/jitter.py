"""Reports steps that take 1 ms to 3 s, any length of time as likely as ten times it. jitter.py MINUTES; no TensorFlow."""

import math
import os
import random
import sys
import time

from worker_image import report

SHORTEST, LONGEST = 0.001, 3.0  # seconds

chance = random.Random(int(os.environ["TFRUN_WORKER"]))
end = time.monotonic() + 60 * float(sys.argv[1])
steps = 0
while time.monotonic() < end:
    time.sleep(math.exp(chance.uniform(math.log(SHORTEST), math.log(LONGEST))))
    steps += 1
    report.progress(steps)
print("steps", steps, flush=True)
