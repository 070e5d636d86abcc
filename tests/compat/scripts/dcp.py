"""Distributed checkpoints (DCP) of a sharded model: saved by one world, loaded by another of any size."""
import argparse
import glob
import os
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import ending


def newest(folder):
    """The newest whole checkpoint: its metadata is written last."""
    steps = [int(os.path.basename(os.path.dirname(path))) for path in glob.glob(os.path.join(folder, "*", ".metadata"))]
    return max(steps, default=0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--checkpoint", default="checkpoints")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    found = [newest(args.checkpoint)]
    dist.broadcast_object_list(found, src=0)
    first = found[0]
    if first:
        parameters, moments = get_state_dict(model, optimizer)
        state = {"model": parameters, "optimizer": moments, "total": torch.zeros(1)}
        dcp.load(state, checkpoint_id=os.path.join(args.checkpoint, str(first)))
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        total = sum(p.full_tensor().double().sum() for p in model.parameters()).float().reshape(1)
        torch.testing.assert_close(total, state["total"], rtol=1e-5, atol=1e-5)
        print(f"rank {rank} resumes at {first}", flush=True)
    inputs = torch.randn(32, 8, generator=torch.Generator().manual_seed(rank))
    for step in range(first, args.steps):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True)).backward()
        optimizer.step()
        time.sleep(args.pause)
        parameters, moments = get_state_dict(model, optimizer)
        total = sum(p.full_tensor().double().sum() for p in model.parameters()).float().reshape(1)
        dcp.save({"model": parameters, "optimizer": moments, "total": total},
                 checkpoint_id=os.path.join(args.checkpoint, str(step + 1)))
        if rank == 0:
            print(f"step {step}", flush=True)
    print(f"finished rank={rank} world={world}", flush=True)
    ending.destroy_process_group()


if __name__ == "__main__":
    main()
