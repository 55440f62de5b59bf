"""Says "waiting" and waits. waits.py [deaf|polite|family|leaves]"""

import os
import signal
import subprocess
import sys
import time

how = sys.argv[1] if len(sys.argv) > 1 else ""
if how == "deaf":
    signal.signal(signal.SIGTERM, lambda *_: print("SIGTERM ignored", flush=True))
if how == "polite":

    def leave(*_: object) -> None:
        print("told to end", flush=True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, leave)
if how in ("family", "leaves"):
    subprocess.Popen(["sleep", "1000"])
    subprocess.Popen(["sleep", "1001"], start_new_session=True)
print("waiting", os.environ["TFRUN_WORKER"], os.environ["TFRUN_ATTEMPT"], flush=True)
if how != "leaves":
    while True:
        time.sleep(1000)
