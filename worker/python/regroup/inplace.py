"""`import regroup.inplace`: from now on torch.distributed makes process groups whose members can change.

A rank that is in regroup.steps() or in a function of @regroup.elastic then outlives its generation: when another rank
fails, or the job grows, it keeps its process, its model and its optimizer. Import it before init_process_group() is
called and DistributedDataParallel is made. Without Regroup, and below PyTorch 2.15, nothing changes.
"""
import importlib.util

from . import _groups, _steps

if importlib.util.find_spec("torch") is not None:
    import torch
    if torch.distributed.is_available():
        import torch.nn.parallel.distributed
        _groups.install()
        _steps.install()
