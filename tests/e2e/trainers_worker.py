"""Small trainings with the real Transformers, Lightning and Accelerate, each with the callback of `regroup`.

    trainers_worker.py transformers|lightning|accelerate FOLDER STEPS

FOLDER/log gets a line at start (with the step resumed from) and at the end of each rank's life.
"""
import glob
import os
import re
import sys
import time

import regroup
import torch

STEP_S = 0.05


def log(folder, *words):
    ctx = regroup.context()
    with open(os.path.join(folder, "log"), "a") as f:
        f.write(" ".join(map(str, (ctx.generation, ctx.rank, *words))) + "\n")


def newest(pattern):
    """(path, step) of the newest checkpoint, or (None, 0)."""
    found = [(int(re.search(r"(\d+)(\.ckpt)?$", path).group(1)), path) for path in glob.glob(pattern)]
    step, path = max(found, default=(0, None))
    return path, step


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        x = torch.tensor([float(index % 7)])
        return {"x": x, "labels": 3 * x}


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x, labels=None):
        time.sleep(STEP_S)
        out = self.layer(x)
        return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}


def with_transformers(folder, steps):
    import transformers
    arguments = transformers.TrainingArguments(
        output_dir=folder, max_steps=steps, per_device_train_batch_size=2, logging_steps=5, save_steps=40, report_to=[], use_cpu=True,
        disable_tqdm=True, learning_rate=1e-3)
    trainer = transformers.Trainer(model=Line(), args=arguments, train_dataset=Numbers(), callbacks=[regroup.callbacks.Transformers()])
    path, step = newest(os.path.join(folder, "checkpoint-*"))
    log(folder, "start", step)
    trainer.train(resume_from_checkpoint=path)
    return trainer.state.global_step


def with_lightning(folder, steps):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.line = Line()

        def training_step(self, batch, _):
            return self.line(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    path, step = newest(os.path.join(folder, "*.ckpt"))
    log(folder, "start", step)
    saver = lightning.pytorch.callbacks.ModelCheckpoint(dirpath=folder, filename="{step}", every_n_train_steps=40, save_top_k=-1,
                                                        auto_insert_metric_name=False)
    trainer = lightning.Trainer(max_steps=steps, accelerator="cpu", devices=regroup.context().local_world_size,
                                num_nodes=regroup.context().nodes, strategy="ddp", logger=False, enable_progress_bar=False,
                                enable_model_summary=False, callbacks=[regroup.callbacks.Lightning(folder), saver])
    trainer.fit(Module(), torch.utils.data.DataLoader(Numbers(), batch_size=2), ckpt_path=path)
    return trainer.global_step


def with_accelerate(folder, steps):
    import accelerate
    accelerator = accelerate.Accelerator(cpu=True)
    model = Line()
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3),
                                                   torch.utils.data.DataLoader(Numbers(), batch_size=2))
    session = regroup.callbacks.Accelerate(accelerator)
    path, step = newest(os.path.join(folder, "step-*"))
    log(folder, "start", step)
    if path:
        accelerator.load_state(path)
        session.restored(step)
    for batch in loader:
        if step >= steps:
            break
        step += 1
        loss = model(**batch)["loss"]
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        leaving = session.step(step, loss=loss)
        if leaving or step % 40 == 0:
            session.save(step, os.path.join(folder, f"step-{step}"))
        if leaving:
            session.leave()
    return step


@regroup.record
def main(kind, folder, steps):
    train = {"transformers": with_transformers, "lightning": with_lightning, "accelerate": with_accelerate}[kind]
    log(folder, "done", train(folder, int(steps)))


if __name__ == "__main__":
    main(*sys.argv[1:])
