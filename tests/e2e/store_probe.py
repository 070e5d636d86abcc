"""A PyTorch worker that waits in the middle of its life for a file, then makes a new process group and uses the store."""
import argparse
import os
import time

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--log-dir", required=True)
parser.add_argument("--go", required=True)
args = parser.parse_args()
log = open(os.path.join(args.log_dir, f"{os.environ['TORCHELASTIC_RESTART_COUNT']}.{os.environ['RANK']}.{os.getpid()}.log"), "a",
           buffering=1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
print("ready", file=log)
while not os.path.exists(args.go):
    time.sleep(0.02)
group = dist.new_group(list(range(world)))
value = torch.full((4,), float(rank))
dist.all_reduce(value, group=group)
assert value.tolist() == [sum(range(world))] * 4, value
store = dist.distributed_c10d._get_default_store()
store.set(f"probe{rank}", str(rank))
assert store.get(f"probe{(rank + 1) % world}") == str((rank + 1) % world).encode()
print("done", file=log)
dist.destroy_process_group()
