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
        print("step", dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"], os.getpid(), time.monotonic(), flush=True)
        first = False
    time.sleep(PAUSE)
