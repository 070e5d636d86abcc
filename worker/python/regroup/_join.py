"""How a rank comes from a generation that is over into the next one, and agrees there on where all of them are.

Ranks that were kept, and new ones, come to a generation at their own pace. First each says whether it is kept and in
which epoch (`come`). Who is behind the furthest epoch, as every new rank is, makes its groups with itself alone and goes
on in its script until it comes to that epoch. There all meet (`join`): the groups are made anew, and one of the ranks
that are furthest sends what the others lack.
"""
import os
import sys
from typing import Any, Dict, List, Optional

from . import _agree, _sharded, _worker
from ._client import Client, logger
from ._context import context
from ._groups import CannotGoOn, Interrupted, await_the_end, exchange, groups, is_replacement, store_of_generation
from ._state import State, rng_digest, seed_from, set_rng_state

PATIENCE_S = 30.0  # From a communication error to the word that this generation is over.
_COMMUNICATION = ("gloo", "connection closed", "connection reset", "broken pipe", "nccl", "timed out", "timeout", "socket",
                  "peer", "process group", "communicator")


class Place:
    """Where a rank is: `epoch`, how many batches of it are done, steps of its optimizers, and what its data needs."""

    def __init__(self) -> None:
        self.epoch = self.batches = self.step = self.samples = 0
        self.optimized = 0  # Calls of optimizers' step(): further than `batches` tells, if one of two was called.
        self.valid = False  # Whether this process has a state that others may take.
        self.rng_shared = True  # Whether random numbers are the same on all ranks.
        self.digests: Dict[str, str] = {}  # Of random numbers, before which batch.

    def order(self) -> List[int]:
        return [self.epoch, self.batches, self.optimized]

    def note_rng(self, state: Dict[str, Any]) -> None:
        self.digests[str(self.batches)] = rng_digest(state)
        for old in [key for key in self.digests if int(key) < self.batches - 1 or int(key) > self.batches]:
            del self.digests[old]


def loses(error: BaseException) -> bool:
    """Whether `error` comes of the end of this generation, which this process is to outlive."""
    client = _worker._client
    if client is None:
        return False
    if client.retire is not None:
        return True
    return is_communication(error) and client.await_retire(PATIENCE_S)


def is_communication(error: BaseException) -> bool:
    if isinstance(error, Interrupted):
        return True
    text = str(error).lower()
    return isinstance(error, (RuntimeError, OSError, TimeoutError)) and any(word in text for word in _COMMUNICATION)


def retire() -> None:
    """Leaves this generation; returns once this process's variables are those of the next one."""
    client = _client()
    client.retired()
    while True:
        said = client.await_new_generation(1.0)
        if said is not None:
            break
        if client._stopped:
            raise CannotGoOn("there is no agent to talk to")
    os.environ.update(said[1])
    client.adopt()
    _worker.finished()  # A notice that was seen was of the generation before.


def come(epoch: int) -> bool:
    """After retire(): meets the store of the new generation. False: this process is behind, and alone until it is not."""
    groups.store.target = groups.base = store_of_generation()
    groups.break_off_now()
    _agree.forget()
    groups.forget_destroyed()
    met = exchange(groups.base, "come", {"kept": True, "epoch": epoch, "was": groups.rank, "world": groups.world}, _timeout_s())
    why_not = groups.why_not_take_in(met)
    if why_not is not None:
        raise CannotGoOn(why_not)
    groups.awaited = max(rank["epoch"] for rank in met if rank["kept"])
    if epoch < groups.awaited:
        groups.configure_alone()
        return False
    return True


def join(place: Place, state: State) -> bool:
    """All ranks meet; the groups work again, and all are where the furthest was. Whether this one has been moved."""
    groups.store.target = groups.base
    was_valid = place.valid
    state.put_back()
    said = exchange(groups.base, "join", {
        "handles": {group.name: group.handles() for group in groups.all if group.ranks is None},
        "some": {group.name: [group.ranks, group.handles()] for group in groups.all if group.ranks is not None},
        "was": groups.rank, "world": groups.world, "valid": was_valid, "order": place.order(), "digests": place.digests,
        "count": _world().group_count, "shard": state.shard()}, _timeout_s())
    valid = [rank for rank, line in enumerate(said) if line["valid"]]
    if not valid:
        raise CannotGoOn("no rank with a whole state is left")
    furthest = max(said[rank]["order"] for rank in valid)
    whole = [rank for rank in valid if said[rank]["order"] == furthest]
    donors = _sharded.donors_of(said, whole)
    _configure(said)
    moved = context().rank not in whole
    shared = _rng_shared([said[rank]["digests"] for rank in valid])
    if shared is not None:
        place.rng_shared = shared
    pg = groups.all[0].pg
    place.valid = not moved  # Until it is whole again, should this be interrupted.
    if any(line["shard"] for line in said):
        for rank, donor in donors.items():
            if context().rank in (rank, donor):
                _copy(place, state, _sharded.Pair(pg, donor, rank), donor, moved, new=not was_valid)
    elif donors:
        _copy(place, state, pg, whole[0], moved, new=not was_valid)
    place.valid = True
    renew_wrappers(state.model)
    return moved


def _configure(said: List[Dict[str, Any]]) -> None:
    ctx, c10d = context(), sys.modules["torch.distributed.distributed_c10d"]
    names = [sorted(line["handles"]) for line in said]
    if any(name != names[0] for name in names):
        raise CannotGoOn(f"ranks have not the same process groups: {names}")
    now = {rank: rank for rank in range(len(said))} if is_replacement(said) else {
        line["was"]: rank for rank, line in enumerate(said) if line["was"] is not None}
    _check_groups_of_some(said, now)
    for group in groups.all:
        if group.ranks is None:
            members = list(range(ctx.world_size))
            handles = [line["handles"][group.name] for line in said]
        else:
            members = [now[rank] for rank in group.ranks]
            handles = [said[rank]["some"][group.name][1] for rank in members]
        groups.configure(group, ctx.generation, handles)
        group.ranks = None if group.ranks is None else members
        c10d._world.pg_group_ranks[group.pg] = {rank: number for number, rank in enumerate(members)}
    groups.alone, groups.generation, groups.rank, groups.world = False, ctx.generation, ctx.rank, ctx.world_size
    _world().group_count = max(line["count"] for line in said)


def _check_groups_of_some(said: List[Dict[str, Any]], now: Dict[int, int]) -> None:
    """`now`: the numbers that ranks have, by those that they had. Every rank has the same `said`, and so finds the same."""
    for line in said:
        for name, (ranks, _) in line["some"].items():
            if any(rank not in now for rank in ranks):
                raise CannotGoOn(f"process group {name} of ranks {ranks} has lost one of them")
            for rank in ranks:
                theirs = said[now[rank]]["some"].get(name)
                if theirs is None or theirs[0] != ranks:
                    made = "none" if theirs is None else f"one of ranks {theirs[0]}"
                    raise CannotGoOn(f"process group {name} is of ranks {ranks}, and rank {now[rank]} has made {made} by that name")


def agree_by_collectives(place: Place, state: State) -> None:
    """The same, in groups that were made new: below PyTorch 2.15."""
    dist = sys.modules["torch.distributed"]
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    said: List[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(said, (place.valid, place.order()))
    valid = [rank for rank, (is_valid, _) in enumerate(said) if is_valid]
    if not valid:
        return  # The first generation: each has what it has made.
    whole = [rank for rank in valid if said[rank][1] == max(said[each][1] for each in valid)]
    if len(whole) < len(said):
        pg = sys.modules["torch.distributed.distributed_c10d"]._get_default_group()
        _copy(place, state, pg, whole[0], moved=dist.get_rank() not in whole, new=not place.valid)


def _rng_shared(digests: List[Dict[str, str]]) -> Optional[bool]:
    """By ranks that were at the same place. None: nothing to compare."""
    common = set.intersection(*(set(each) for each in digests))
    if len(digests) < 2 or not common:
        return None
    return len({each[max(common, key=int)] for each in digests}) == 1


def _copy(place: Place, state: State, pg: Any, donor: int, moved: bool, new: bool) -> None:
    if context().rank == donor:
        more = {name: getattr(place, name) for name in ("epoch", "batches", "step", "samples", "optimized", "rng_shared")}
        return state.send(pg, donor, {"place": more, "rng": state.rng_before()})
    rng = state.rng_before()
    if not moved:  # It has all of it, and takes part in the broadcast only.
        before, buffers = state._before, state._buffers
        state.receive(pg, donor)
        state._before, state._buffers = before, buffers
        return set_rng_state(rng)
    more = state.receive(pg, donor)
    place.__dict__.update(more["place"])
    place.digests = {}
    if place.rng_shared:
        set_rng_state(more["rng"])
    elif new:
        seed_from(more["rng"], context().rank)
    return None


def renew_wrappers(model: Any) -> None:
    """DistributedDataParallel's second iteration is a collective of its own, which a new rank's wrapper has yet to do and
    a kept one has done; and an iteration that was broken off leaves it half-way. So each is made anew, in its place."""
    if model is None:
        return
    kind = sys.modules["torch.nn.parallel.distributed"].DistributedDataParallel
    for module in list(model.modules()):
        if isinstance(module, kind):
            _renew(module)


def _renew(wrapper: Any) -> None:
    old = dict(wrapper.__dict__)
    made = old["_regroup_made"]
    hooks = {name: value for name, value in old.items() if name.endswith(("_hooks", "_with_kwargs", "_always_called"))}
    communication = list(old.get("_comm_hooks") or [])
    module, training = wrapper.module, wrapper.training
    old.clear()
    wrapper.__dict__.clear()  # The reducer goes, and with it its hooks of the parameters.
    wrapper.__init__(module, **{**made, "init_sync": False})
    wrapper.__dict__.update({name: value for name, value in hooks.items() if name in wrapper.__dict__ and name != "_comm_hooks"})
    wrapper.training = training
    for hook, state in communication:
        wrapper.register_comm_hook(state, hook)


def _client() -> Client:
    client = _worker.client()
    if client is None:
        raise CannotGoOn("there is no agent to talk to")
    return client


def _timeout_s() -> float:
    return float(groups.store.patience.total_seconds())


def _world() -> Any:
    return sys.modules["torch.distributed.distributed_c10d"]._world


def survive(attempt: Any) -> Any:
    """attempt() until it comes through; each generation that it met and that is over as well is left first."""
    while True:
        try:
            retire()
            return attempt()
        except CannotGoOn as error:
            await_the_end(str(error))
        except Exception as error:
            logger.debug("the next generation was not met", exc_info=True)
            if not loses(error):
                await_the_end(f"{type(error).__name__}: {error}")
