"""ddp_steps.py for ranks that outlive their generation: the same training in regroup.steps(). A step's note has its generation."""
import itertools
import os
import sys
import time

NOTES = open(os.path.join(sys.argv[1], f"{os.environ['RANK']}.{os.getpid()}"), "a", buffering=1, encoding="ascii")


def note(phase):
    NOTES.write(f"{phase} {time.monotonic_ns()}\n")


note("begun")
import torch  # noqa: E402 (what came before is measured too)
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import regroup  # noqa: E402
import regroup.inplace  # noqa: E402,F401

note("imported")


def main():
    dist.init_process_group("gloo")
    note("met")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loop = regroup.steps(itertools.repeat(None), model, optimizer)
    for _ in loop:
        before = loop.step
        optimizer.zero_grad()
        model(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()
        if loop.step > before:  # Not a step that is lost.
            note("step")
            note(f"step.{regroup.context().generation}")
        time.sleep(0.02)


main()
