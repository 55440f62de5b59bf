"""The smallest program: prints what time it is."""

import os
import time

os.write(1, f"now {time.monotonic()}\n".encode())  # print under torchrun's `python -u` writes, and tears, word by word
