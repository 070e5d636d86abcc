"""Every collective that gloo has, and what each rank must have afterwards."""
import argparse
import datetime
import time

import torch
import torch.distributed as dist


def one(value):
    return torch.full((3,), float(value))


def equal(tensor, value):
    assert torch.equal(tensor, one(value)), (tensor, value)


def reductions(rank, world):
    x = one(rank + 1)
    dist.all_reduce(x)
    equal(x, world * (world + 1) / 2)
    x = one(rank + 1)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    equal(x, world)
    x = one(rank + 1)
    dist.reduce(x, dst=world - 1)
    if rank == world - 1:
        equal(x, world * (world + 1) / 2)
    x = one(0)
    dist.reduce_scatter(x, [one(rank + other) for other in range(world)])
    equal(x, sum(other + rank for other in range(world)))
    x = one(0)
    dist.reduce_scatter_tensor(x, torch.cat([one(other) for other in range(world)]))
    equal(x, rank * world)
    work = dist.all_reduce(x := one(1), async_op=True)
    work.wait()
    equal(x, world)


def movements(rank, world):
    x = one(rank)
    dist.broadcast(x, src=world - 1)
    equal(x, world - 1)
    parts = [one(-1) for _ in range(world)]
    dist.all_gather(parts, one(rank))
    for other, part in enumerate(parts):
        equal(part, other)
    whole = torch.empty(3 * world)
    dist.all_gather_into_tensor(whole, one(rank))
    assert torch.equal(whole, torch.cat(parts))
    dist.gather(one(rank), parts if rank == 0 else None, dst=0)
    x = one(-1)
    dist.scatter(x, [one(10 * other) for other in range(world)] if rank == 0 else None, src=0)
    equal(x, 10 * rank)
    received = torch.empty(world)
    dist.all_to_all_single(received, torch.full((world,), float(rank)))
    assert torch.equal(received, torch.arange(float(world)))
    received = [torch.empty(1) for _ in range(world)]
    dist.all_to_all(received, [torch.full((1,), float(rank * world + other)) for other in range(world)])
    assert [int(t) for t in received] == [other * world + rank for other in range(world)]


def points_and_barriers(rank, world):
    if world > 1:
        x = one(-1)
        request = dist.irecv(x, src=(rank - 1) % world)
        dist.send(one(rank), dst=(rank + 1) % world)
        request.wait()
        equal(x, (rank - 1) % world)
        to, of = one(rank), one(-1)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, to, (rank + 1) % world),
                                            dist.P2POp(dist.irecv, of, (rank - 1) % world)]):
            work.wait()
        equal(of, (rank - 1) % world)
    dist.barrier()
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=30))


def objects(rank, world):
    found = [None] * world
    dist.all_gather_object(found, {"rank": rank})
    assert found == [{"rank": other} for other in range(world)]
    said = ["hello", world] if rank == 0 else [None, None]
    dist.broadcast_object_list(said, src=0)
    assert said == ["hello", world]
    mine = [None]
    dist.scatter_object_list(mine, list(range(world)) if rank == 0 else None, src=0)
    assert mine == [rank]
    gathered = [None] * world if rank == 0 else None
    dist.gather_object(rank, gathered, dst=0)
    assert gathered in (None, list(range(world)))


def groups(rank, world):
    evens = dist.new_group(list(range(0, world, 2)))
    if rank % 2 == 0:
        x = one(1)
        dist.all_reduce(x, group=evens)
        equal(x, (world + 1) // 2)
        dist.destroy_process_group(evens)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--pause", type=float, default=0.0)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    for step in range(args.steps):
        for part in (reductions, movements, points_and_barriers, objects, groups):
            part(rank, world)
        time.sleep(args.pause)
        if rank == 0:
            print(f"step {step}", flush=True)
    print(f"finished rank={rank} world={world}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
