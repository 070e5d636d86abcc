"""A training of inplace_trainers_test.py, with a trainer. It writes what it does to $LOGS/PID.log.

OPTIONS: trainer, samples, epochs, accumulate, sleep, `arguments` of the trainer; `plan`: [{"local": N, "step": N, "where": W}]:
where the first process of that local rank kills itself, or with "raises" raises that. A step is one of the optimizer, of the whole job.
"""
import csv
import hashlib
import json
import os
import signal
import sys
import time

import torch
from inplace_train import FIRST, LOCAL, Numbers, log
from torch.utils.data import DataLoader, IterableDataset

import regroup
import regroup.inplace  # noqa: F401 (it changes torch.distributed)

OPTIONS = {"trainer": "transformers", "samples": 96, "epochs": 2, "accumulate": 1, "sleep": 0.0, "plan": [], "arguments": {},
           **json.loads(os.environ["OPTIONS"])}


class Examples(Numbers):
    def __getitem__(self, index):
        return {"x": self.x[index], "labels": self.y[index], "index": index}


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(8))


class Model(torch.nn.Module):
    """Each forward of a training tells what samples it has seen."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(11)
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
        self.register_buffer("seen", torch.zeros(1))  # Batches, the same on all ranks.
        self.step = 0
        next(self.layers.parameters()).register_hook(lambda _: happens(self.step + 1, "in backward"))

    def forward(self, x, labels=None, index=None):
        if self.training:
            log("forward", step=self.step + 1, indices=index.tolist())
            self.seen += 1
            happens(self.step + 1, "before forward")
            time.sleep(OPTIONS["sleep"])
        else:
            happens(self.step + 1, "in evaluation")
        out = self.layers(x)
        return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}


def happens(step, where):
    for plan in OPTIONS["plan"]:
        if (FIRST or LOCAL >= 10) and (plan["local"], plan["step"], plan["where"]) == (LOCAL, step, where):
            if plan.get("raises"):
                raise RuntimeError(plan["raises"])
            os.kill(os.getpid(), signal.SIGKILL)


def end(model, optimizer, **more):
    tensors = [p.detach().contiguous() for p in model.parameters()]
    log("end", digest=hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors)).hexdigest()[:16],
        parameters=[v for t in tensors for v in t.flatten().tolist()], lr=optimizer.param_groups[0]["lr"],
        seen=int(next(model.buffers())), steps=int(next(iter(optimizer.state.values()))["step"]), **more)


def with_transformers():
    import transformers

    class Watch(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            model.step = state.global_step
            log("step", step=state.global_step)

        def on_step_end(self, args, state, control, **_):
            happens(state.global_step, "after step")

    model = Model()
    arguments = transformers.TrainingArguments(**{
        "output_dir": os.path.join(os.environ["LOGS"], "out"), "num_train_epochs": OPTIONS["epochs"], "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": OPTIONS["accumulate"], "logging_steps": 1, "save_strategy": "no", "report_to": [],
        "use_cpu": True, "disable_tqdm": True, "learning_rate": 0.01, "remove_unused_columns": False, **OPTIONS["arguments"]})
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=Examples(OPTIONS["samples"]),
                                   eval_dataset=Examples(24), callbacks=[regroup.callbacks.Transformers(), Watch()])
    trainer.train()
    history = [{name: value for name, value in line.items() if "runtime" not in name and "per_second" not in name}
               for line in trainer.state.log_history]
    end(model, trainer.optimizer.optimizer, step=trainer.state.global_step, epoch=trainer.state.epoch, history=history)


def with_accelerate():
    import accelerate
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=OPTIONS["accumulate"])
    session = regroup.callbacks.Accelerate(accelerator)
    torch.manual_seed(5)
    model, loader = Model(), DataLoader(Examples(OPTIONS["samples"]), batch_size=4, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 200)
    ddp, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for epoch in range(OPTIONS["epochs"]):
        for batch in (loop := session.steps(loader)):
            model.step = loop.step
            log("step", step=loop.step)
            with accelerator.accumulate(ddp):
                loss = ddp(**batch)["loss"]
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(ddp.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if loop.step > model.step:
                happens(loop.step, "after step")
            session.step(loop.step)
    end(model, optimizer.optimizer, step=loop.step, epoch=loader.iteration, inside=accelerator.gradient_state.in_dataloader)


def lightning_module():
    import lightning
    import torchmetrics

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.error = Model(), torchmetrics.MeanSquaredError()

        def forward(self, **batch):
            return self.model(**batch)

        def on_train_batch_start(self, _, batch_idx):
            happens(self.global_step + 1, "before the wrapper's forward")
            return -1 if batch_idx == OPTIONS.get("leave_at") else None

        def training_step(self, batch, _):
            self.model.step = self.global_step
            log("step", step=self.global_step)
            out = self(**batch)
            self.error(out["logits"], batch["labels"])
            self.log("error", self.error, on_step=False, on_epoch=True)
            self.log("loss", out["loss"], on_step=True, on_epoch=True, sync_dist=True)
            return out["loss"]

        def on_before_optimizer_step(self, _):
            happens(self.global_step + 1, "before optimizer")

        def optimizer_step(self, *args, **kwargs):
            super().optimizer_step(*args, **kwargs)
            happens(self.global_step, "after optimizer")
            torch.distributed.barrier()

        def validation_step(self, batch, _):
            log("validation")
            happens(self.global_step, "in validation")
            self.log("val", torch.nn.functional.mse_loss(self.model.layers(batch["x"]), batch["labels"]), sync_dist=True)

        def on_fit_start(self):
            happens(0, "at the begin of a new rank")

        def on_train_epoch_end(self):
            happens(self.global_step, "at the end of an epoch")
            log("epoch", epoch=self.current_epoch)

        def on_train_batch_end(self, *_):
            assert self.trainer.training and self.training
            happens(self.global_step, "after step")

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), 0.01)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=99)
            return [optimizer], [{"scheduler": torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 200), "interval": "step"},
                                 {"scheduler": plateau, "interval": "epoch", "monitor": "val"}]

        def lr_scheduler_step(self, scheduler, metric):
            super().lr_scheduler_step(scheduler, metric)
            if metric is not None:
                happens(self.global_step, "after the end of an epoch")

        def on_validation_end(self):
            happens(self.global_step, "after saving")
            torch.distributed.barrier()

    return Module()


def with_lightning():
    import lightning
    module, folder = lightning_module(), os.environ["LOGS"]
    saver = lightning.pytorch.callbacks.ModelCheckpoint(dirpath=os.path.join(folder, "saved"), monitor="val", save_top_k=2,
                                                          save_on_train_epoch_end=False)
    stopper = lightning.pytorch.callbacks.EarlyStopping("val", patience=99)
    trainer = lightning.Trainer(**{
        "max_epochs": OPTIONS["epochs"], "accelerator": "cpu", "strategy": "ddp", "devices": regroup.context().local_world_size,
        "accumulate_grad_batches": OPTIONS["accumulate"], "logger": lightning.pytorch.loggers.CSVLogger(folder), "log_every_n_steps": 1,
        "enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": folder,
        "callbacks": [regroup.callbacks.Lightning(folder), saver, stopper], **OPTIONS["arguments"]})
    trainer.fit(module, DataLoader(Examples(OPTIONS["samples"]), batch_size=4, shuffle=True), DataLoader(Examples(24), batch_size=4),
                ckpt_path=OPTIONS.get("checkpoint"))
    logged = {}
    if trainer.is_global_zero:
        with open(os.path.join(trainer.logger.log_dir, "metrics.csv"), encoding="utf-8") as f:
            logged = {line["step"]: float(line["loss_step"]) for line in csv.DictReader(f) if line.get("loss_step")}
    end(module, trainer.optimizers[0], step=trainer.global_step, epoch=trainer.current_epoch, wait=stopper.wait_count, logged=logged,
        loops=trainer.fit_loop.state_dict(),
        metrics={name: float(value) for name, value in trainer.callback_metrics.items()},
        saved=sorted(os.path.basename(path) for path in saver.best_k_models))


def refused_with_accelerate():
    import accelerate
    accelerator = accelerate.Accelerator(cpu=True)
    session = regroup.callbacks.Accelerate(accelerator)
    model, plain = Model(), DataLoader(Examples(8))
    ddp, loader = accelerator.prepare(model, plain)
    said = {"nothing": session.steps(loader), "loader": session.steps(plain), "wrapper": session.steps(loader, torch.nn.Linear(1, 1))}
    dispatched = accelerator.prepare(DataLoader(Stream()))
    accelerator.dataloader_config.dispatch_batches = False
    said.update({"dispatched": session.steps(dispatched), "iterable": session.steps(accelerator.prepare(DataLoader(Stream())))})
    accelerator.prepare(torch.nn.Linear(1, 1))
    said.update({"models": session.steps(loader), "named": session.steps(loader, ddp)})
    log("refused", why={what: steps._why_not() for what, steps in said.items()})


def refused_with_lightning():
    import lightning
    from regroup import _lightning
    why = {}

    class Watch(lightning.pytorch.callbacks.Callback):
        def on_train_start(self, trainer, module):
            why[self.case] = _lightning._why_not(trainer)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = torch.nn.Linear(1, 1)

        def training_step(self, batch, _):
            return self.model(batch).sum() if self.automatic_optimization else None

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    class Fetching(Module):
        def training_step(self, dataloader_iter):
            return self.model(next(dataloader_iter)[0]).sum()

    def one(case, module=None, dataset=None, callbacks=(), **arguments):
        watch, Watch.case = Watch(), case
        trainer = lightning.Trainer(**{
            "max_epochs": 1, "limit_train_batches": 1, "accelerator": "cpu", "strategy": "ddp", "devices": 2, "logger": False,
            "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
            "callbacks": [watch, *callbacks], **arguments})
        trainer.fit(module or Module(), DataLoader(dataset or torch.ones(8, 1)))

    class Floats(IterableDataset):
        def __iter__(self):
            return iter(torch.ones(8, 1))

    by_itself = Module()
    by_itself.automatic_optimization = False
    one("nothing")
    one("by itself", by_itself)
    one("fetching", Fetching())
    one("iterable", dataset=Floats())
    one("loaders", reload_dataloaders_every_n_epochs=1)
    one("average", callbacks=[lightning.pytorch.callbacks.StochasticWeightAveraging(0.1)])
    one("variables", plugins=[lightning.fabric.plugins.environments.LightningEnvironment()])
    log("refused", why=why)


if __name__ == "__main__":
    {"transformers": with_transformers, "accelerate": with_accelerate, "lightning": with_lightning, "refused": refused_with_accelerate,
     "refused by lightning": refused_with_lightning}[OPTIONS["trainer"]]()
    sys.stdout.flush()
