"""The outline that the manual page of torch.distributed.run gives for a training script, filled in."""
import argparse
import os
import sys
import time

import torch
import torch.distributed


class State:
    def __init__(self):
        self.epoch, self.total_num_epochs = 0, 0
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 1)


def parse_args(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint-path", default="state.pt")
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--pause", type=float, default=0.0)
    return parser.parse_args(argv)


def load_checkpoint(path):
    state = State()
    if os.path.exists(path):
        saved = torch.load(path)
        state.epoch = saved["epoch"]
        state.model.load_state_dict(saved["model"])
        print(f"rank {os.environ['RANK']} resumes at {state.epoch}", flush=True)
    return state


def save_checkpoint(state, path):
    temporary = f"{path}.{os.getpid()}"
    torch.save({"epoch": state.epoch, "model": state.model.state_dict()}, temporary)
    os.replace(temporary, path)


def main():
    args = parse_args(sys.argv[1:])
    state = load_checkpoint(args.checkpoint_path)
    state.total_num_epochs = args.steps

    # torch.distributed.run ensures that this will work
    # by exporting all the env vars needed to initialize the process group
    torch.distributed.init_process_group(backend=args.backend)

    for epoch in range(state.epoch, state.total_num_epochs):
        state.model(torch.randn(8, 4)).square().mean().backward()
        for parameter in state.model.parameters():
            torch.distributed.all_reduce(parameter.grad)
            parameter.data -= 0.01 * parameter.grad / torch.distributed.get_world_size()
            parameter.grad = None
        time.sleep(args.pause)
        state.epoch += 1
        if torch.distributed.get_rank() == 0:
            save_checkpoint(state, args.checkpoint_path)
            print(f"step {epoch}", flush=True)
    print(f"finished rank={torch.distributed.get_rank()} world={torch.distributed.get_world_size()}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
