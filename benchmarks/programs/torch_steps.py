"""The peer of steps.py: an all-reduce in a loop under torchrun, gloo, on the processor. Prints the same line after its first step."""

import os
import time

import torch
import torch.distributed as dist

PAUSE = 0.02  # seconds between two steps, as in steps.py

dist.init_process_group("gloo")
value = torch.ones(16, 4)
first = True
while True:
    dist.all_reduce(value)
    if first:
        said = ("step", dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"], os.getpid(), time.monotonic())
        os.write(1, (" ".join(map(str, said)) + "\n").encode())  # print under torchrun's `python -u` writes, and tears, word by word
        first = False
    time.sleep(PAUSE)
