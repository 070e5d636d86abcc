"""A function of @regroup.elastic, for inplace_test.py. OPTIONS: `old`: as below PyTorch 2.15."""
import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

OPTIONS = json.loads(os.environ["OPTIONS"])
if OPTIONS.get("old"):
    c10d, begin = dist.distributed_c10d, dist.distributed_c10d.init_process_group

    def init_process_group(backend=None):
        begin(backend)
    dist.init_process_group = c10d.init_process_group = init_process_group

import regroup  # noqa: E402 (PyTorch is to look older first)
import regroup.inplace  # noqa: E402,F401
from inplace_train import digest, log  # noqa: E402


@regroup.elastic
def train(kept):
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    model = kept.once("model", lambda: torch.nn.Linear(8, 4))
    optimizer = kept.once("optimizer", lambda: torch.optim.Adam(model.parameters(), 0.01))
    ddp = DistributedDataParallel(model)
    kept.agree()
    log("changed", step=kept.step, digest=digest(model), ids=[id(model), id(optimizer)])
    while True:
        optimizer.zero_grad()
        ddp(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        log("step", step=kept.step + 1)
        kept.done()
        time.sleep(0.01)


train()
