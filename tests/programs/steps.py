"""Reports steps; no TensorFlow. steps.py STEPS PAUSE [hang|saver]"""

import os
import sys
import time

from worker_image import report

me, attempt = os.environ["TFRUN_WORKER"], os.environ["TFRUN_ATTEMPT"]
steps, pause, how = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
print("begin", me, attempt, flush=True)
for step in range(1, steps + 1):
    time.sleep(pause)
    report.progress(step, steps, loss=1 / step)
    if step == 3:
        print("stepping", me, attempt, flush=True)
    if how == ["hang"] and step == 5 and me == "1" and attempt == "0":
        time.sleep(1000)
    if how == ["saver"] and report.save_due():
        print("saved at", step, flush=True)
        report.saved(step)
        sys.exit(42)
print("end", me, attempt)
