"""A training whose DataLoader has worker processes of its own."""
import argparse
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Squares(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.tensor([float(index)]), torch.tensor([float(index * index)])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10, help="epochs")
    parser.add_argument("--pause", type=float, default=0.0)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    data = Squares()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler, num_workers=2, persistent_workers=True)
    for epoch in range(args.steps):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for _, y in loader:
            total += y.sum()
        dist.all_reduce(total)
        assert total.item() >= sum(i * i for i in range(64))  # The sampler may pad.
        time.sleep(args.pause)
        if rank == 0:
            print(f"step {epoch}", flush=True)
    print(f"finished rank={rank} world={world}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
