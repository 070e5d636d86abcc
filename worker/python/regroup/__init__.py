"""What a training script tells Regroup, and hears from it.

    import regroup

    ctx = regroup.context()                      # rank, world size, generation, ...; defaults without Regroup
    regroup.progress(step=step, loss=loss)       # shown by `regroup ps`; makes hangs, restarts and notices exact
    if regroup.should_stop_together():           # this machine is about to be taken away
        regroup.checkpoint.save(step, "model.pt", lambda path: torch.save(state, path))
        regroup.leave()                          # waits to be stopped; the job goes on elsewhere

Everything is a no-op in a process that Regroup did not start, in its forked children and in DataLoader workers. Nothing
here waits for anybody unless it says so, and nothing raises into a training unless it says so. Any thread may call it.
A thread in the background talks to this node's agent; the agent may restart at any time.
"""
from . import callbacks, checkpoint
from ._agree import should_stop_together
from ._context import Context, context
from ._elastic import elastic
from ._record import record
from ._sampler import ElasticSampler
from ._steps import steps
from ._wire import Notice
from ._worker import finished, flush, leave, notice, on_notice, progress, should_stop, torch_imports

__all__ = [
    "Context", "ElasticSampler", "Notice", "callbacks", "checkpoint", "context", "elastic", "finished", "flush", "leave", "notice",
    "on_notice", "progress", "record", "should_stop", "should_stop_together", "steps", "torch_imports",
]
__version__ = "0.1.0"
