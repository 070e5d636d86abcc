"""Who this process is in its job."""
import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Context:
    """A worker's place in its job. Without Regroup or torchrun: rank 0 of a world of 1."""

    under_regroup: bool = False
    job: str = ""  # train-4
    generation: int = 0  # One incarnation of the job's group, from 1; 0 without Regroup.
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node: int = 0  # This node's number among `nodes` (GROUP_RANK).
    nodes: int = 1
    restart_count: int = 0  # The same on every rank.
    max_restarts: int = 0
    resume_step: int = 0  # Of the newest checkpoint that Regroup accepted; 0: of none.


def context() -> Context:
    """This process's place, read from the environment at each call."""
    return Context(
        under_regroup=bool(os.environ.get("REGROUP_SOCKET")),
        job=os.environ.get("REGROUP_JOB", ""),
        generation=_number("REGROUP_GENERATION", 0),
        rank=_number("RANK", 0),
        world_size=_number("WORLD_SIZE", 1),
        local_rank=_number("LOCAL_RANK", 0),
        local_world_size=_number("LOCAL_WORLD_SIZE", 1),
        node=_number("GROUP_RANK", 0),
        nodes=_number("GROUP_WORLD_SIZE", 1),
        restart_count=_number("TORCHELASTIC_RESTART_COUNT", 0),
        max_restarts=_number("TORCHELASTIC_MAX_RESTARTS", 0),
        resume_step=_number("REGROUP_RESUME_STEP", 0),
    )


def local_rank_for_agent() -> int:
    """Who this process is to its agent, whatever a program makes of LOCAL_RANK."""
    return _number("REGROUP_LOCAL_RANK", _number("LOCAL_RANK", 0))


def token_for_agent() -> str:
    """By what its agent knows this rank."""
    return os.environ.get("REGROUP_WORKER_TOKEN", "")


def _number(name: str, default: int) -> int:
    try:
        return int(os.environ.get(name, ""))
    except ValueError:
        return default
