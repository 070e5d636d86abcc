"""A training of inplace_test.py: DDP over gloo, an elastic sampler. It writes what it does to $LOGS/PID.log.

OPTIONS: samples, batch, epochs, sleep, memory; `accumulate`: batches a step; `several`: an optimizer for each of two parts,
of which the second steps every other time; `plan`: [{"local": N, "step": N, "where": W, "do": D}]: what the first process of
that local rank does to itself at that step (of the whole job).
"""
import contextlib
import ctypes
import faulthandler
import gc
import hashlib
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import regroup
import regroup.inplace  # noqa: F401 (it changes torch.distributed)

OPTIONS = {"samples": 96, "batch": 12, "epochs": 1000, "sleep": 0.01, "plan": [], "model": "plain", "sampler": "elastic",
           "momentum": 0.9, **json.loads(os.environ["OPTIONS"])}
LOG = open(os.path.join(os.environ["LOGS"], f"{os.getpid()}.log"), "a", buffering=1, encoding="utf-8")
faulthandler.enable()
faulthandler.register(signal.SIGUSR1)  # Where it is, when a test wants to know.
LOCAL = int(os.environ["REGROUP_LOCAL_RANK"])
FIRST = os.environ["REGROUP_GENERATION"] == "1"


def log(kind, **more):
    ctx = regroup.context()
    print(json.dumps({"kind": kind, "at": time.monotonic(), "pid": os.getpid(), "local": LOCAL, "rank": ctx.rank,
                      "world": ctx.world_size, "generation": ctx.generation, **more}), file=LOG)


class Numbers(Dataset):
    def __init__(self, size):
        generator = torch.Generator().manual_seed(3)
        self.x = torch.randn(size, 8, generator=generator)
        self.y = self.x @ torch.randn(8, 1, generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return index, self.x[index], self.y[index]


def digest(*modules):
    tensors = [t.detach().contiguous() for m in modules for t in m.state_dict().values()]
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors)).hexdigest()[:16]


def heap_bytes():
    """What malloc() has given out, once nothing waits for the garbage collector. None: this C library cannot tell."""
    class Info(ctypes.Structure):
        _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
                                                         "uordblks", "fordblks", "keepcost")]
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return None
    gc.collect()
    mallinfo.restype = Info
    info = mallinfo()
    return info.uordblks + info.hblkhd


def happens(step, where):
    for plan in OPTIONS["plan"]:
        if FIRST and plan["local"] == LOCAL and plan["step"] == step and plan["where"] == where:
            if plan["do"] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif plan["do"] == "stop":
                log("stops")
                os.kill(os.getpid(), signal.SIGSTOP)
            elif plan["do"] == "lose":
                raise RuntimeError("gloo: Connection closed by peer, says a test")


def model_of():
    torch.manual_seed(11)
    layers = [torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)]
    if OPTIONS["model"] == "batchnorm":
        layers.insert(1, torch.nn.BatchNorm1d(16))
    return torch.nn.Sequential(*layers)


def loader_of(data):
    if OPTIONS["sampler"] == "elastic":
        sampler = regroup.ElasticSampler(data, OPTIONS["batch"], seed=5)
        return DataLoader(data, batch_sampler=sampler, num_workers=OPTIONS.get("workers", 0)), sampler
    sampler = torch.utils.data.DistributedSampler(data, seed=5)
    return DataLoader(data, batch_size=4, sampler=sampler), sampler


def main():
    dist.init_process_group("gloo")
    log("init", alone=dist.get_world_size() != regroup.context().world_size)
    whole = dist.new_group() if OPTIONS.get("groups") else None
    some = dist.new_group([0, 1]) if OPTIONS.get("some") else None
    parts = groups_of_some(FIRST or not OPTIONS.get("other_order")) if OPTIONS.get("parts") else []
    model = model_of()
    ddp = DistributedDataParallel(model)
    if OPTIONS.get("accumulate") or OPTIONS.get("several"):
        return train_by_several(model, ddp)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=OPTIONS["momentum"])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.999)
    loader, sampler = loader_of(Numbers(OPTIONS["samples"]))
    step_in_backward = [0]
    next(ddp.parameters()).register_hook(lambda _: happens(step_in_backward[0], "in backward"))
    last = (0, 0)
    for epoch in range(OPTIONS["epochs"]):
        sampler.set_epoch(epoch)
        loop = regroup.steps(loader, ddp, optimizer, scheduler)
        for indices, x, y in loop:
            now = (regroup.context().generation, regroup.context().world_size)
            if now != last:
                log("changed", step=loop.step, digest=digest(model), ids=[id(ddp), id(optimizer)], epoch=sampler.epoch)
                if now[0] in OPTIONS.get("memory", []):
                    log("memory", heap=heap_bytes(), objects=len(gc.get_objects()))
                last = now
            step = step_in_backward[0] = loop.step + 1
            happens(step, "before forward")
            loss = torch.nn.functional.mse_loss(ddp(x), y) * getattr(sampler, "weight", 1.0)
            happens(step, "before backward")
            optimizer.zero_grad()
            loss.backward()
            happens(step, "after backward")
            before = loop.step
            optimizer.step()
            scheduler.step()
            happens(step, "after step")
            if whole is not None:
                dist.all_reduce(torch.ones(1), group=whole)
            if some is not None and dist.get_rank(some) >= 0:
                dist.all_reduce(torch.ones(1), group=some)
            sums = [add_ranks(part) for part in parts]
            regroup.should_stop_together() if OPTIONS.get("vote") else None
            if loop.step > before:
                log("step", step=loop.step, epoch=sampler.epoch, indices=indices.tolist(), sums=sums, lr=optimizer.param_groups[0]["lr"])
            time.sleep(OPTIONS["sleep"])
    log("end", digest=digest(model), parameters=[v for p in model.parameters() for v in p.flatten().tolist()])


def groups_of_some(as_others):
    """All of them from a script's top, in the same order on each rank: of neighbours, of a mesh of two dimensions."""
    world, rank = regroup.context().world_size, regroup.context().rank
    lists = [[0, 1], [1, world - 1], [0, 2, world - 1]]
    made = [dist.new_group(sorted(set(ranks))) for ranks in (lists if as_others else lists[::-1])]
    if world == 4:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        assert mesh.get_coordinate() == [rank // 2, rank % 2] or mesh.get_coordinate() == (rank // 2, rank % 2), mesh
        made += [mesh.get_group("replicate"), mesh["shard"].get_group()]
    mine = [group for group in made if group is not dist.GroupMember.NON_GROUP_MEMBER]
    for group in mine:
        members = dist.get_process_group_ranks(group)
        assert dist.get_world_size(group) == len(members) and members[dist.get_rank(group)] == rank, (members, rank)
        dist.broadcast(torch.ones(1), src=members[-1], group=group)
    return mine


def add_ranks(group):
    """[members, the sum of their numbers by a collective]"""
    total = torch.tensor(float(regroup.context().rank))
    dist.all_reduce(total, group=group)
    return [dist.get_process_group_ranks(group), total.item()]


def train_by_several(model, ddp):
    """Some batches a step, or some optimizers a batch. No momentum of sums: Adam counts its steps in its state."""
    several, accumulate = OPTIONS.get("several"), OPTIONS.get("accumulate", 1)
    parts = [[*model[0].parameters()], [*model[2].parameters()]] if several else [[*model.parameters()]]
    optimizers = [torch.optim.Adam(part, lr=0.01) for part in parts]
    loader, sampler = loader_of(Numbers(OPTIONS["samples"]))
    moment = [0]
    next(ddp.parameters()).register_hook(lambda _: happens(moment[0], "in backward"))
    last = 0
    for epoch in range(OPTIONS["epochs"]):
        sampler.set_epoch(epoch)
        loop = regroup.steps(loader, ddp, *optimizers)
        for _, x, y in loop:
            if regroup.context().generation != last:
                last = regroup.context().generation
                log("changed", step=loop.step, digest=digest(model), ids=[])
            number = moment[0] = len(sampler) * epoch + loop.batch + 1
            happens(number, "before forward")
            full = number % accumulate == 0
            with contextlib.nullcontext() if full else ddp.no_sync():
                loss = torch.nn.functional.mse_loss(ddp(x), y) * sampler.weight / accumulate
                loss.backward()
            happens(number, "after backward")
            if full:
                optimizers[0].step()
                happens(number, "between optimizers")
                for optimizer in optimizers[1:] if number % 2 == 0 else []:
                    optimizer.step()
                for optimizer in optimizers:
                    optimizer.zero_grad()
                log("step", step=loop.step, indices=[])
            time.sleep(OPTIONS["sleep"])
    counts = [int(state["step"]) for optimizer in optimizers for state in optimizer.state.values()]
    log("end", digest=digest(model), counts=counts, parameters=[v for p in model.parameters() for v in p.flatten().tolist()])


def lose_backward(function):
    def call(*args, **kwargs):
        function(*args, **kwargs)
        happens(LOOP_STEP(), "behind")
    return call


def LOOP_STEP():
    from regroup import _steps
    return _steps._place.step + 1


if any(plan["where"] == "behind" for plan in OPTIONS["plan"]):
    # Inside of what regroup.steps() guards: this rank loses a step that the others have done.
    run = torch.autograd.Variable._execution_engine.run_backward
    from torch.autograd import graph
    torch.autograd._engine_run_backward = lose_backward(torch.autograd._engine_run_backward)
if __name__ == "__main__":
    main()
    sys.stdout.flush()
