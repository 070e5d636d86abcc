"""A training loop over Accelerate."""
import argparse
import os
import time

import accelerate
import torch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--checkpoint", default="accelerate-state")
    args = parser.parse_args()
    accelerator = accelerate.Accelerator(cpu=True)
    inputs = torch.randn(64, 4)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = torch.nn.Linear(4, 1)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01),
                                                   torch.utils.data.DataLoader(data, batch_size=8, shuffle=True))
    first = 0
    steps = [int(name) for name in os.listdir(args.checkpoint)] if os.path.isdir(args.checkpoint) else []
    steps = [n for n in steps if os.path.exists(os.path.join(args.checkpoint, str(n), "whole"))]
    accelerator.wait_for_everyone()
    if steps:
        first = max(steps)
        accelerator.load_state(os.path.join(args.checkpoint, str(first)))
        print(f"rank {accelerator.process_index} resumes at {first}", flush=True)
    for epoch in range(first, args.steps):
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        time.sleep(args.pause)
        folder = os.path.join(args.checkpoint, str(epoch + 1))
        accelerator.save_state(folder)
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            open(os.path.join(folder, "whole"), "w").close()
            print(f"step {epoch} loss {loss.item():.4f}", flush=True)
    accelerator.wait_for_everyone()
    print(f"finished rank={accelerator.process_index} world={accelerator.num_processes}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
