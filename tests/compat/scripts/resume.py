"""DistributedSampler, and a checkpoint that rank 0 saves, all wait for and load with map_location."""
import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import ending


def save(model, optimizer, epoch, path):
    torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, path + ".tmp")
    os.replace(path + ".tmp", path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10, help="epochs")
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--checkpoint", default="model.pt")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    inputs = torch.randn(24, 4)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=6, sampler=sampler)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    first = 0
    if os.path.exists(args.checkpoint):
        state = torch.load(args.checkpoint, map_location={"cuda:0": "cpu"})
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"]
        print(f"rank {rank} resumes at {first}", flush=True)
    dist.barrier()
    for epoch in range(first, args.steps):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        time.sleep(args.pause)
        if rank == 0:
            save(model, optimizer, epoch + 1, args.checkpoint)
            print(f"step {epoch} loss {loss.item():.4f}", flush=True)
        dist.barrier()
    print(f"finished rank={rank} world={world}", flush=True)
    ending.destroy_process_group()


if __name__ == "__main__":
    main()
