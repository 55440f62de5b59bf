"""The smallest program: prints what time it is."""

import time

print("now", time.monotonic(), flush=True)
