"""The DDP tutorial's way: one process starts the others itself, and says where they meet."""
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

import ending


def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def demo_basic(rank, world_size, pause):
    setup(rank, world_size)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(10, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(5):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(torch.randn(20, 10)), torch.randn(20, 5))
        loss.backward()
        optimizer.step()
        if rank == 0:
            time.sleep(pause)
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    print(f"finished rank={rank} world={dist.get_world_size()}", flush=True)
    ending.destroy_process_group()


def run_demo(demo_fn, world_size, pause):
    mp.spawn(demo_fn, args=(world_size, pause), nprocs=world_size, join=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--pause", type=float, default=0.0)
    run_demo(demo_basic, 2, parser.parse_args().pause)
