"""The end of a script whose process group outlives destroy_process_group(), as one does that DistributedDataParallel used.

A thread of gloo lets go of a collective's tensors after the collective has returned. If that is while the interpreter ends,
PyTorch 2.15 ends the process with "terminate called without an active exception" (pytorch#190489); 4 ms late are enough.
"""
import time

import torch.distributed as dist


def destroy_process_group():
    time.sleep(0.5)
    dist.destroy_process_group()
