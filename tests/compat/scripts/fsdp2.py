"""FSDP2 (`fully_shard`) on CPU ranks over gloo."""
import argparse
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--pause", type=float, default=0.0)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    inputs = torch.randn(32, 16, generator=torch.Generator().manual_seed(rank))
    losses = []
    for step in range(args.steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        time.sleep(args.pause)
        if rank == 0:
            print(f"step {step} loss {losses[-1]:.4f}", flush=True)
    assert losses[-1] < losses[0], losses
    total = sum(p.to_local().numel() for p in model.parameters())
    assert total < sum(p.numel() for p in model.parameters()) or world == 1, "nothing was sharded"
    print(f"finished rank={rank} world={world}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
