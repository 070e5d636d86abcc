"""Models whose parameters are distributed over ranks (DTensor): FSDP2, HSDP, tensor parallelism.

A rank that is lost takes its shards with it. They live on where other ranks hold the same ones: in a mesh with a dimension
of replicas. So each rank tells which shard it holds, and takes what it lacks from a rank with the same.
"""
import functools
import hashlib
import math
import sys
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

from ._context import context
from ._groups import CannotGoOn, groups, is_replacement

_RESET = "reset_iter_state"
_FLAT = "its parts of a model with tensor parallelism are plain tensors, for DistributedDataParallel"


def local(tensor: Any) -> Any:
    """This rank's part of it."""
    return tensor._local_tensor if is_distributed(tensor) else tensor


def is_distributed(tensor: Any) -> bool:
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


# ---- which shard ----------------------------------------------------------------------------------


def shard_of(tensors: Iterable[Any]) -> Optional[List[str]]:
    """The shard that this rank holds, for people, and the same with all that it depends on; None: nothing is distributed.

    Two ranks hold the same if they have the same coordinates in each dimension of a mesh over which a tensor is split.
    """
    words: Dict[str, None] = {}
    digest = hashlib.sha256()
    distributed = False
    for tensor in tensors:
        if hasattr(tensor, "_st_info"):
            raise CannotGoOn(_FLAT)
        parts = _parts(tensor) if is_distributed(tensor) else []
        distributed = distributed or is_distributed(tensor)
        digest.update(repr((tuple(tensor.shape), tensor.dtype, parts)).encode())
        if parts:
            words[" and ".join(f"{place} of {size}" for size, place in parts)] = None
    return [", ".join(words) or "0 of 1", digest.hexdigest()[:16]] if distributed else None


def _parts(tensor: Any) -> List[Tuple[int, int]]:
    """[(size, coordinate)] of the dimensions that split it."""
    place = tensor.device_mesh.get_coordinate()
    return [(tensor.device_mesh.size(dim), -1 if place is None else place[dim])
            for dim, placement in enumerate(tensor.placements) if not placement.is_replicate()]


def why_not(model: Any, tensors: Iterable[Any]) -> Optional[str]:
    """Why a lost rank's shards are lost with it."""
    for module in modules_of(model):
        if not hasattr(module, _RESET):
            return "this PyTorch cannot put back FSDP2 after an error"
    for tensor in tensors:
        if hasattr(tensor, "_st_info"):
            return _FLAT
        if is_distributed(tensor):
            ways = math.prod(size for size, _ in _parts(tensor))
            if context().world_size // ways < 2:
                return "each of its shards is on one rank only"
    return None


def donors_of(said: List[Dict[str, Any]], whole: List[int]) -> Dict[int, int]:
    """{rank that is to move: the rank of `whole` from which it takes its shard}. `said` is the same on every rank."""
    shards = [line["shard"] for line in said]
    if any(shards) and not is_replacement(said):
        raise CannotGoOn("its parameters are distributed over a mesh of ranks, which stays as it is only where each lost rank is "
                         "replaced by one of the same number")
    donors: Dict[int, int] = {}
    for rank in range(len(said)):
        if rank in whole:
            continue
        able = [other for other in whole if shards[other] == shards[rank]]
        if not able:
            part = "of a model that is not distributed" if shards[rank] is None else f"of shard {shards[rank][0]}"
            raise CannotGoOn(f"rank {rank} lacks the newest state {part}, which is left on no rank")
        donors[rank] = able[len([1 for other in donors.values() if other in able]) % len(able)]
    return donors


class Pair:
    """Two ranks of `group`, as a group: what one broadcasts is a message to the other."""

    def __init__(self, group: Any, sender: int, receiver: int) -> None:
        self._group, self._sender, self._receiver = group, sender, receiver
        self._device_types = group._device_types

    def broadcast(self, tensors: List[Any], _: Any) -> Any:
        if context().rank == self._sender:
            return self._group.send(tensors, self._receiver, 0)
        return self._group.recv(tensors, self._sender, 0)


# ---- a distributed tensor on its way --------------------------------------------------------------


def meshes_of(tensors: Iterable[Any]) -> List[Any]:
    """Each once, in the order of `tensors`: the same on every rank."""
    meshes: List[Any] = []
    for tensor in tensors:
        if is_distributed(tensor) and tensor.device_mesh not in meshes:
            meshes.append(tensor.device_mesh)
    return meshes


class Plan:
    """How a tensor is distributed, without its ranks' objects."""

    def __init__(self, tensor: Any, meshes: List[Any]) -> None:
        if tensor.device_mesh not in meshes:
            raise CannotGoOn("an optimizer's state is distributed over a mesh that no parameter has")
        self._mesh, self._placements = meshes.index(tensor.device_mesh), tuple(tensor.placements)
        self._shape, self._stride = tuple(tensor.shape), tuple(tensor.stride())

    def wrap(self, part: Any, meshes: List[Any]) -> Any:
        torch, spec = sys.modules["torch"], sys.modules["torch.distributed.tensor._dtensor_spec"]
        meta = spec.TensorMeta(torch.Size(self._shape), self._stride, part.dtype)
        return sys.modules["torch.distributed.tensor"].DTensor(
            part, spec.DTensorSpec(meshes[self._mesh], self._placements, tensor_meta=meta), requires_grad=False)


# ---- FSDP2 ----------------------------------------------------------------------------------------


def modules_of(model: Any) -> List[Any]:
    """Those to which fully_shard() or replicate() has been applied."""
    return [] if model is None else [module for module in model.modules() if is_fsdp2(module)]


def is_fsdp2(module: Any) -> bool:
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    return kind is not None and isinstance(module, kind)


def put_back(model: Any) -> None:
    """After a forward or a backward that was broken off: parameters are sharded, without gradients, and nothing is awaited."""
    for module in modules_of(model):
        state = module._get_fsdp_state()
        if state._is_root:
            for group in _groups_of(state):
                if group._all_gather_result is not None:  # Its work has failed, or will: it is not waited for.
                    group._all_gather_result = group._all_gather_result._replace(all_gather_work=None)
            getattr(module, _RESET)()


def _groups_of(state: Any) -> Iterator[Any]:
    for one in state._state_ctx.all_states:
        yield from one._fsdp_param_groups


def _unshard_alone(group: Any) -> None:
    """With this rank's shard in place of all others: for a step that is lost, and a process that is alone for a while."""
    group._all_gather_result = None
    if group.is_unsharded:
        return
    torch = sys.modules["torch"]
    mesh = group.post_forward_mesh_info if group.is_sharded_post_forward else group.mesh_info
    ways = getattr(mesh, "shard_mesh_size", 1)
    with torch.no_grad():
        for parameter in group.fsdp_params:
            parts = parameter.all_gather_inputs
            parameter.init_all_gather_outputs([p.numel() for p in parts], [p.dtype for p in parts], ways, group.device)
            parameter.alloc_all_gather_outputs()
            for whole, part in zip(parameter.all_gather_outputs, parts):
                with torch.autograd._unsafe_preserve_version_counter(whole):
                    whole.view(ways, -1).copy_(part.view(1, -1))
            parameter.init_unsharded_param()
    group._to_unsharded()


Guard = Callable[[Callable[..., Any], Callable[..., Any]], Callable[..., Any]]


def install(guarded: Guard) -> None:
    """Once a mesh is made, for what is distributed over it."""
    from torch.distributed.device_mesh import DeviceMesh
    make = DeviceMesh.__init__

    @functools.wraps(make)
    def init(*args: Any, **kwargs: Any) -> None:
        make(*args, **kwargs)  # Which may make the default group.
        if groups.active:
            _install_for_meshes(guarded)
    DeviceMesh.__init__ = init  # type: ignore[method-assign]


@functools.lru_cache(maxsize=None)
def _install_for_meshes(guarded: Guard) -> None:
    import torch.distributed.fsdp
    import torch.distributed.tensor
    from torch.distributed.fsdp._fully_shard import _fsdp_common, _fsdp_param_group
    from torch.distributed.tensor import placement_types
    _install_functional(guarded)
    group = _fsdp_param_group.FSDPParamGroup
    group.unshard = _unless_alone(guarded(group.unshard, lambda *_, **__: None), lambda *_, **__: None)
    group.wait_for_unshard = _unless_alone(guarded(group.wait_for_unshard, _unshard_alone), _unshard_alone)
    for info, kind in ((_fsdp_common.FSDPMeshInfo, "shard"), (_fsdp_common.DDPMeshInfo, "replicate")):
        info.__post_init__ = _numbered(info.__post_init__, kind)
    if groups.alone:
        _load_alone()
    placement_types.mesh_scatter = _unless_alone(placement_types.mesh_scatter, _scatter_alone)
    placement_types.mesh_broadcast = _unless_alone(placement_types.mesh_broadcast, lambda *_, **__: None)


def _unless_alone(function: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return instead(*args, **kwargs) if groups.alone and groups.active else function(*args, **kwargs)
    return call


def _numbered(function: Callable[..., None], kind: str) -> Callable[..., None]:
    """The number of a process that is alone, in the group that it is about to be in."""
    @functools.wraps(function)
    def init(self: Any) -> None:
        function(self)
        members = _members_of(getattr(self, f"{kind}_process_group"))
        if members is not None:
            setattr(self, f"{kind}_mesh_rank", members.index(context().rank))
    return init


def _members_of(pg: Any) -> Optional[List[int]]:
    """Of a group of a process that is alone: whom it will have. None: a group that has met."""
    ours = groups.of(pg) if groups.alone and groups.active else None
    return None if ours is None else list(range(context().world_size)) if ours.ranks is None else ours.ranks


def _load_alone() -> None:
    """A checkpoint that a new rank reads before it meets the others."""
    from torch.distributed.checkpoint import utils
    make = utils._DistWrapper.__init__

    @functools.wraps(make)
    def init(self: Any, group: Any, use_dist: bool, coordinator_rank: int) -> None:
        make(self, group, use_dist and not groups.alone, coordinator_rank)
    utils._DistWrapper.__init__ = init  # type: ignore[method-assign]


def _scatter_alone(output: Any, parts: List[Any], mesh: Any, mesh_dim: int = 0, *_: Any, **__: Any) -> None:
    output.copy_(parts[mesh.get_coordinate()[mesh_dim]])


# ---- functional collectives -----------------------------------------------------------------------


def _install_functional(guarded: Guard) -> None:
    """Those of DTensor, in a lost step and in a process that is alone: tensors of the shapes that are expected."""
    functional, torch = sys.modules["torch.distributed._functional_collectives"], sys.modules["torch"]

    def size_of(group: Any, tag: str) -> int:
        pg = functional._resolve_group(group, tag)
        pg = sys.modules["torch.distributed.distributed_c10d"]._resolve_process_group(pg) if isinstance(pg, str) else pg
        return len(_members_of(pg) or range(pg.size()))

    def gathered(tensor: Any, gather_dim: int, group: Any, tag: str = "") -> Any:
        return torch.cat([tensor] * size_of(group, tag), dim=gather_dim)

    def scattered(tensor: Any, _: Any, scatter_dim: int, group: Any, tag: str = "") -> Any:
        return tensor.chunk(size_of(group, tag), dim=scatter_dim)[0].contiguous()

    def exchanged(tensor: Any, output_split_sizes: Optional[List[int]], *_: Any, **__: Any) -> Any:
        return tensor.clone() if output_split_sizes is None else tensor.new_zeros((sum(output_split_sizes), *tensor.shape[1:]))

    instead: Dict[str, Callable[..., Any]] = {
        "all_reduce": lambda tensor, *_, **__: tensor.clone(),
        "broadcast": lambda tensor, *_, **__: tensor.clone(),
        "permute_tensor": lambda tensor, *_, **__: tensor.clone(),
        "all_gather_single": gathered,
        "reduce_scatter_single": scattered,
        "all_to_all_single": exchanged,
        "all_reduce_coalesced": lambda tensors, *_, **__: [tensor.clone() for tensor in tensors],
        "all_gather_single_coalesced": lambda tensors, group, tag="": [gathered(tensor, 0, group, tag) for tensor in tensors],
        "reduce_scatter_single_coalesced": lambda tensors, op, dims, group, tag="": [
            scattered(tensor, op, dim, group, tag) for tensor, dim in zip(tensors, dims)],
    }
    for name, other in instead.items():
        if hasattr(functional, name):
            setattr(functional, name, _unless_alone(guarded(getattr(functional, name), other), other))
    functional.wait_tensor = guarded(functional.wait_tensor, _zeroed)


def _zeroed(tensor: Any) -> Any:
    """What has not come."""
    with sys.modules["torch"].no_grad():
        return tensor.zero_()
