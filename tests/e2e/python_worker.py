"""A worker that uses the package `regroup`, as the README shows it; run by python_test.py.

    python_worker.py FOLDER STEPS [--plain] [--torch] [--fail-at STEP]

Trains nothing: a step is a pause (with --torch also an all-reduce), the state is its number in FOLDER/state.json. Lines in
FOLDER/log: start and end of each life, notices and saves. --plain tells of progress and of nothing else.
"""
import argparse
import json
import os
import time

import regroup

STEP_S = 0.02


def log(options, *words):
    ctx = regroup.context()
    with open(os.path.join(options.folder, "log"), "a") as f:
        f.write(" ".join(map(str, (ctx.generation, ctx.rank, ctx.world_size, *words))) + "\n")


def load(options):
    path = os.path.join(options.folder, "state.json")
    if not os.path.exists(path):
        return 0
    with open(path) as f:
        step = json.load(f)["step"]
    regroup.checkpoint.restored(step)
    return step


def save(options, step):
    def write(path):
        with open(path, "w") as f:
            json.dump({"step": step}, f)
    if regroup.context().rank == 0:
        answer = regroup.checkpoint.save(step, os.path.join(options.folder, "state.json"), write)
        log(options, "saved", step, answer.accepted, answer.why_not)


def synchronise(options):
    if options.torch:
        import torch
        torch.distributed.all_reduce(torch.ones(1))
    time.sleep(STEP_S)


@regroup.record
def main(options):
    if options.torch:
        import torch.distributed
        torch.distributed.init_process_group("gloo")
    step = load(options)
    log(options, "start", step, regroup.context().restart_count, regroup.context().resume_step)
    while step < options.steps:
        step += 1
        synchronise(options)
        regroup.progress(step=step, loss=1 / step, samples=8 * step)
        if step == options.fail_at:
            raise RuntimeError(f"no step after {step}")
        if not options.plain and regroup.should_stop_together():
            heard = regroup.notice()
            log(options, "notice", step, heard.remaining if heard else "another's")
            save(options, step)
            if options.torch:
                import torch.distributed
                torch.distributed.barrier()
            regroup.leave()
    log(options, "done", step)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("steps", type=int)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--fail-at", type=int)
    main(parser.parse_args())
