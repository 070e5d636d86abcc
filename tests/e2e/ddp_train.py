"""A plain PyTorch training script that knows nothing of Regroup: gloo, DDP, DistributedSampler, own checkpoint.

It is what people bring, and a little that a test needs: it appends what it does, as one line per data epoch, to
LOG_DIR/<earlier starts>.<rank>.<pid>.log, so that a test can follow which process trained which epoch from which state,
and rank 0 saves after every epoch by write and rename; at its end each rank logs its parameters. How often the job was
started before is for the name of that log only (the restart count does not rise when a node is lost).
"""
import argparse
import os
import signal
import time


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--log-dir", required=True)
    parser.add_argument("--step-seconds", type=float, default=0.02)
    parser.add_argument("--hold", help="the last epoch waits until this file exists: a test's kill comes before the end")
    return parser.parse_args()


def stat(pid):
    """Of a process: its state, its parent and what follows."""
    with open(f"/proc/{pid}/stat") as f:
        return f.read().rpartition(")")[2].split()


def is_over(pid):
    """Whether it runs no instruction of its own any more: it has ended, or SIGKILL has come and the kernel takes it apart, which for
    350 MB on a busy machine takes a while. A node that a test kills is as dead then as one without power."""
    with open(f"/proc/{pid}/status") as f:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in f)
    killed = (int(status["SigPnd"], 16) | int(status["ShdPnd"], 16)) >> (signal.SIGKILL - 1) & 1
    state, flags = stat(pid)[0], int(stat(pid)[6])
    return state in "ZX" or killed == 1 or flags & 4 != 0  # PF_EXITING


def processes_of_earlier_restarts(folder, restarts):
    """Pids that logged under a lower restart count and still live."""
    found = []
    for name in os.listdir(folder):
        count, _, pid, _ = name.split(".")
        if int(count) < restarts:
            try:
                if not is_over(pid):
                    found.append(int(pid))
            except OSError:
                continue
    return found


def begin(folder):
    """Opens the log and writes who is here. Importing PyTorch takes seconds, after which who should be gone may be gone."""
    restarts = int(os.environ.get("REGROUP_GENERATION", "1")) - 1
    old = processes_of_earlier_restarts(folder, restarts)
    opened = open(os.path.join(folder, f"{restarts}.{os.environ['RANK']}.{os.getpid()}.log"), "a", buffering=1)
    # A node's agent is what started the supervisor of its ranks.
    print(f"start old={old} agent={stat(os.getppid())[1]} local={os.environ['LOCAL_RANK']} world={os.environ['WORLD_SIZE']}",
          file=opened)
    return opened


args = arguments()
log = begin(args.log_dir)

import torch  # noqa: E402 (see begin())
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from torch.utils.data.distributed import DistributedSampler  # noqa: E402


def main():
    print("joins", file=log)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"init rank={rank} world={world} master={os.environ['MASTER_ADDR']}", file=log)

    torch.manual_seed(7)
    inputs = torch.randn(96, 8)
    targets = inputs @ torch.randn(8, 1)
    data = TensorDataset(inputs, targets)
    # One batch holds a rank's whole share, so every epoch is one full-batch step: the parameters after n epochs do not
    # depend on how many ranks there were, only on rounding.
    sampler = DistributedSampler(data, world, rank, shuffle=True)
    loader = DataLoader(data, batch_size=96, sampler=sampler)

    torch.manual_seed(11)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    first = 0
    if os.path.exists(args.checkpoint):
        state = torch.load(args.checkpoint, map_location="cpu")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"]
    ddp = DistributedDataParallel(model)
    for epoch in range(first, args.epochs):
        while args.hold and epoch == args.epochs - 1 and not os.path.exists(args.hold):
            time.sleep(0.01)
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(ddp(x), y)
            loss.backward()
            optimizer.step()
            time.sleep(args.step_seconds)
        print(f"epoch={epoch} loss={loss.item():.6f}", file=log)
        if rank == 0:
            temporary = f"{args.checkpoint}.{os.getpid()}.tmp"
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}, temporary)
            time.sleep(args.step_seconds)
            os.replace(temporary, args.checkpoint)
        dist.barrier()
    print("parameters", *(x for p in model.parameters() for x in p.flatten().tolist()), file=log)
    print(f"done rank={rank}", file=log)
    dist.destroy_process_group()


main()
