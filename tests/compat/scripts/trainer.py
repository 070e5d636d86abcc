"""Hugging Face's Trainer with its own checkpoints."""
import argparse
import os
import time

import torch
import transformers
from transformers.trainer_utils import get_last_checkpoint


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        x = torch.tensor([float(index % 7)])
        return {"x": x, "labels": 3 * x}


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x, labels=None):
        out = self.layer(x)
        return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}


class Say(transformers.TrainerCallback):
    def __init__(self, pause):
        self.pause = pause

    def on_step_end(self, arguments, state, control, **_):
        time.sleep(self.pause)
        if state.is_world_process_zero:
            print(f"step {state.global_step}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--checkpoint", default="trainer-output")
    args = parser.parse_args()
    arguments = transformers.TrainingArguments(
        output_dir=args.checkpoint, max_steps=args.steps, per_device_train_batch_size=2, save_steps=2, save_total_limit=3, report_to=[],
        use_cpu=True, disable_tqdm=True, learning_rate=1e-3)
    trainer = transformers.Trainer(model=Line(), args=arguments, train_dataset=Numbers(), callbacks=[Say(args.pause)])
    last = get_last_checkpoint(args.checkpoint) if os.path.isdir(args.checkpoint) else None
    if last and not os.path.exists(os.path.join(last, "trainer_state.json")):
        last = None  # Not whole.
    if last:
        print(f"rank {os.environ['RANK']} resumes at {last.rpartition('-')[2]}", flush=True)
    trainer.train(resume_from_checkpoint=last)
    print(f"finished rank={arguments.process_index} world={arguments.world_size}", flush=True)


if __name__ == "__main__":
    main()
