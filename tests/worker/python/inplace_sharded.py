"""A training of inplace_sharded_test.py: a model whose parameters are distributed over ranks of a mesh.

OPTIONS, besides those of inplace_train.py: `mode`: "hsdp", "fsdp", "tp" (replicas by replicate()), "tp-ddp"; `mesh`: its
shape, `swapped`: of other ranks; `clip`, `accumulate`, `evaluate` (between epochs), `prefetch`,
`checkpoint`, `full` (tensors, before the loop), `elastic`.
"""
import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.checkpoint as dcp
from inplace_train import OPTIONS, Numbers, happens, loader_of, log
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
from torch.nn.parallel import DistributedDataParallel

import regroup

MODE, STEP = OPTIONS.get("mode", "hsdp"), [0]


class Moment(torch.nn.Module):
    """Where a rank is lost; it counts its calls in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        if torch.is_grad_enabled():
            self.calls += 1
            happens(STEP[0], "in forward")
            x.register_hook(lambda _: happens(STEP[0], "in backward"))
        return x


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def digest(model, optimizer):
    """Of this rank's part of everything. A function that is called again has buffers of the call that was broken off."""
    tensors = [*model.parameters(), *([] if OPTIONS.get("elastic") else model.buffers())]
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        tensors += [value for _, value in sorted(optimizer.state.get(parameter, {}).items())]
    data = b"".join(local(tensor).detach().contiguous().numpy().tobytes() for tensor in tensors)
    return hashlib.sha256(data).hexdigest()[:16]


def whole(model):
    parameters = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    return [value for parameter in parameters for value in parameter.flatten().tolist()]


def mesh_of():
    ranks = torch.arange(4).view(OPTIONS.get("mesh", [2, 2]))
    return DeviceMesh("cpu", ranks.T if OPTIONS.get("swapped") else ranks, mesh_dim_names=("a", "b")[:ranks.ndim])


def model_of(mesh):
    torch.manual_seed(11)
    model = torch.nn.Sequential(torch.nn.Linear(8, 15), torch.nn.Tanh(), Moment(), torch.nn.Linear(15, 6), torch.nn.Tanh(),
                                torch.nn.Linear(6, 1))
    if MODE.startswith("tp"):
        gathered = ColwiseParallel(output_layouts=Replicate())
        parallelize_module(model, mesh["b"], {"0": gathered, "3": RowwiseParallel(input_layouts=Replicate())})
        if MODE == "tp":
            return replicate(model, mesh=mesh["a"])
        _pre_dp_module_transform(model)
        return DistributedDataParallel(model, process_group=mesh["a"].get_group())
    for layer in (model[0], model[3], model[5]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def part_of(model):
    """What ranks have the same of everything."""
    return [[mesh.size(dim), mesh.get_coordinate()[dim]] for p in model.parameters() if isinstance(p, DTensor)
            for mesh in [p.device_mesh] for dim, placement in enumerate(p.placements) if not placement.is_replicate()][:1]


def batch_of(mesh, indices, x, y, data, step):
    """Ranks that work on parts of one model have the same samples."""
    if not MODE.startswith("tp"):
        return x, y
    chosen = torch.randperm(len(data), generator=torch.Generator().manual_seed(step))[mesh.get_coordinate()[0]::2][:6]
    return data.x[chosen], data.y[chosen]


def train():
    mesh = mesh_of()
    model = model_of(mesh)
    checkpoint = os.path.join(os.environ["LOGS"], "checkpoint")
    if os.path.exists(os.path.join(checkpoint, ".metadata")):
        dcp.load({"model": model.state_dict()}, checkpoint_id=checkpoint)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.999)
    data, accumulate, last = Numbers(OPTIONS["samples"]), OPTIONS.get("accumulate", 1), 0
    loader, sampler = loader_of(data)
    if OPTIONS.get("full"):
        assert all(p.full_tensor().shape == p.shape for p in model.parameters())
    if OPTIONS.get("prefetch"):
        model.set_modules_to_forward_prefetch([model[0], model[3]])
        model[0].set_modules_to_forward_prefetch([model[3]])
        model._set_unshard_async_op(True)
        model.unshard(async_op=True)
    for epoch in range(OPTIONS["epochs"]):
        sampler.set_epoch(epoch)
        for indices, x, y in (loop := regroup.steps(loader, model, optimizer, scheduler)):
            if regroup.context().generation != last:
                last = regroup.context().generation
                log("changed", step=loop.step, digest=digest(model, optimizer), part=part_of(model), moments=moments(optimizer))
            number = STEP[0] = len(sampler) * epoch + loop.batch + 1
            happens(number, "before forward")
            x, y = batch_of(mesh, indices, x, y, data, number)
            loss = torch.nn.functional.mse_loss(model(x), y) / accumulate
            if MODE == "tp":
                check_shapes((mesh, 1))
            happens(number, "before backward")
            loss.backward()
            happens(number, "after backward")
            if number % accumulate == 0:
                if OPTIONS.get("clip"):
                    # Of layers on one mesh: PyTorch cannot add others up.
                    layers = [model[0], model[3]] if MODE == "tp" else [model]
                    norm = torch.nn.utils.clip_grad_norm_([p for layer in layers for p in layer.parameters()], 0.5)
                    (norm.full_tensor() if isinstance(norm, DTensor) else norm).item()
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                happens(number, "after step")
                log("step", step=loop.step, indices=indices.tolist())
            if OPTIONS.get("checkpoint") and number == 4:
                dcp.save({"model": model.state_dict()}, checkpoint_id=checkpoint)
            time.sleep(OPTIONS["sleep"])
        if OPTIONS.get("evaluate"):
            with torch.no_grad():
                model(data.x[:4]).sum().item()
    log("end", digest=digest(model, optimizer), part=part_of(model), calls=next(model.buffers()).item(),
        lr=scheduler.get_last_lr(), parameters=whole(model))


def check_shapes(group):
    """Of functional collectives, in a step that is lost as in any other; and those of FSDP2."""
    tensor = torch.ones(4, 2)
    for shape, result in (((4, 2), funcol.all_reduce(tensor, "sum", group)),
                          ((8, 2), funcol.all_gather_single(tensor, 0, group)),
                          ((4, 4), funcol.all_gather_single(tensor, 1, group)), ((4, 2), funcol.broadcast(tensor, 0, group)),
                          ((2, 2), funcol.reduce_scatter_single(tensor, "sum", 0, group)),
                          ((4, 2), funcol.all_to_all_single(tensor, None, None, group)),
                          ((4, 2), funcol.all_to_all_single(tensor, [2, 2], [2, 2], group)),
                          ((4, 2), funcol.all_reduce_coalesced([tensor], "sum", group)[0]),
                          ((8, 2), funcol.all_gather_single_coalesced([tensor], group)[0]),
                          ((2, 2), funcol.reduce_scatter_single_coalesced([tensor], "sum", [0], group)[0])):
        assert tuple(result.shape) == shape and (result + 0).isfinite().all(), (shape, result)
    dist.all_gather_single(torch.empty(8, 2), tensor, group=group[0].get_group(group[1]))
    dist.reduce_scatter_single(torch.empty(2, 2), tensor, group=group[0].get_group(group[1]))


def moments(optimizer):
    """Whether an optimizer's state is distributed as its parameters are."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for name, value in optimizer.state.get(parameter, {}).items():
                if name != "step" and isinstance(parameter, DTensor):
                    if not isinstance(value, DTensor) or value._spec != parameter._spec:
                        return f"{name}: {getattr(value, '_spec', None)}, not {parameter._spec}"
    return "as parameters"


@regroup.elastic
def train_again(kept):
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    mesh = kept.once("mesh", mesh_of)
    model = kept.once("model", lambda: model_of(mesh))
    optimizer = kept.once("optimizer", lambda: torch.optim.AdamW(model.parameters(), lr=0.01))
    kept.agree()
    log("changed", step=kept.step, digest=digest(model, optimizer), part=part_of(model), moments=moments(optimizer))
    data = Numbers(48)
    while kept.step < OPTIONS["steps"]:
        number = STEP[0] = kept.step + 1
        x, y = (each[3 * regroup.context().rank:][:3] for each in (data.x, data.y))
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        happens(number, "after step")
        log("step", step=number, indices=[])
        kept.done()
        time.sleep(OPTIONS["sleep"])
    log("end", digest=digest(model, optimizer), part=part_of(model), parameters=whole(model))


if __name__ == "__main__":
    if OPTIONS.get("elastic"):
        train_again()
    else:
        if not OPTIONS.get("checkpoint"):  # Or by the mesh.
            dist.init_process_group("gloo")
        train()
    sys.stdout.flush()
