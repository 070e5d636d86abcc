"""Hugging Face's Trainer with its own checkpoints."""
import argparse
import glob
import os
import time

import torch
import transformers


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

    def on_save(self, arguments, state, control, **_):
        if state.is_world_process_zero:
            print(f"step {state.global_step}", flush=True)


def step_of(checkpoint):
    return int(checkpoint.rpartition("-")[2])


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
    whole = [os.path.dirname(path) for path in glob.glob(os.path.join(args.checkpoint, "checkpoint-*", "trainer_state.json"))]
    last = max(whole, key=step_of, default=None)  # trainer_state.json is written last.
    if last:
        print(f"rank {os.environ['RANK']} resumes at {step_of(last)}", flush=True)
    trainer.train(resume_from_checkpoint=last)
    print(f"finished rank={arguments.process_index} world={arguments.world_size}", flush=True)


if __name__ == "__main__":
    main()
