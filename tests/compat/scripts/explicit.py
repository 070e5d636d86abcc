"""Rank, world size and meeting point are given to init_process_group, not left to env://."""
import argparse
import os
import time

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--pause", type=float, default=0.0)
args = parser.parse_args()

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
if ":" in host:
    host = f"[{host}]"
dist.init_process_group("gloo", init_method=f"tcp://{host}:{port}", rank=rank, world_size=world)
assert (dist.get_rank(), dist.get_world_size()) == (rank, world)
for step in range(args.steps):
    ranks = torch.tensor([float(rank)])
    dist.all_reduce(ranks)
    assert ranks.item() == world * (world - 1) / 2
    time.sleep(args.pause)
    if rank == 0:
        print(f"step {step}", flush=True)
print(f"finished rank={rank} world={world}", flush=True)
dist.destroy_process_group()
