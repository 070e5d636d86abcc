"""`@record`: what goes wrong in a rank is written where the launcher looks for it."""
import argparse
import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--bad-batch", type=int, default=-1)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    for step in range(args.steps):
        if step == args.bad_batch and rank == world - 1:
            raise ValueError(f"batch {step} has no label")
        dist.all_reduce(torch.ones(4))
        time.sleep(args.pause)
        if rank == 0:
            print(f"step {step}", flush=True)
    print(f"finished rank={rank} world={world}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
