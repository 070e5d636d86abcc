"""What a training consists of besides its groups, and how it comes from one rank to the others, bit for bit."""
import copy
import ctypes
import hashlib
import pickle
import random
import sys
from typing import Any, Dict, List, Optional, Tuple

from . import _sharded

MAX_SNAPSHOT_BYTES = 4 << 20  # Of a model's buffers.
_CHUNK_BYTES = 32 << 20


class _Tensor:
    """In place of a tensor that comes by itself."""

    def __init__(self, tensor: Any, meshes: List[Any]) -> None:
        part = _sharded.local(tensor)
        self.shape, self.dtype, self.device = tuple(part.shape), part.dtype, part.device.type
        self.plan = _sharded.Plan(tensor, meshes) if part is not tensor else None


def strip(value: Any, tensors: List[Any], meshes: List[Any]) -> Any:
    """`value` without its tensors, which are added to `tensors`; of those that are distributed, this rank's part."""
    if isinstance(value, sys.modules["torch"].Tensor):
        tensors.append(_sharded.local(value))
        return _Tensor(value, meshes)
    if isinstance(value, dict):
        return {name: strip(part, tensors, meshes) for name, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(strip(part, tensors, meshes) for part in value)
    return value


def fill(value: Any, tensors: List[Any], meshes: List[Any]) -> Any:
    """The other way round: new tensors, which are added to `tensors` to be filled."""
    if isinstance(value, _Tensor):
        tensors.append(sys.modules["torch"].empty(value.shape, dtype=value.dtype, device=value.device))
        return tensors[-1] if value.plan is None else value.plan.wrap(tensors[-1], meshes)
    if isinstance(value, dict):
        return {name: fill(part, tensors, meshes) for name, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(fill(part, tensors, meshes) for part in value)
    return value


class State:
    """A model, its optimizers, and what else has a state_dict() (small: it is copied at every step)."""

    def __init__(self, model: Any, optimizers: List[Any], others: List[Any]) -> None:
        self.model, self.optimizers, self.others = model, optimizers, others
        self._before: Dict[str, Any] = {}
        self._buffers: Dict[int, Tuple[int, Any]] = {}  # Of a buffer: its version, and a copy of it then.

    # ---- a step that may have to be done again ----------------------------------------------------

    def remember(self) -> None:
        """What a step changes before it is done; parameters and optimizer state only change when it is done."""
        self._before = {"rng": rng_state(), "options": [_options(optimizer) for optimizer in self.optimizers],
                        "others": [copy.deepcopy(other.state_dict()) for other in self.others]}
        buffers = list(self.model.buffers()) if self.model is not None else []
        if sum(b.numel() * b.element_size() for b in buffers) > MAX_SNAPSHOT_BYTES:
            return
        for number, buffer in enumerate(buffers):
            known = self._buffers.get(number)
            if known is None or known[0] != buffer._version:
                self._buffers[number] = (buffer._version, buffer.detach().clone())

    def settle(self) -> None:
        """The step is done: there is no way back."""
        self._before = {}

    def rewind(self) -> None:
        """Back to what remember() saw, unless that step is done; without gradients."""
        self.put_back()
        self.drop_gradients()
        if not self._before:
            return
        for optimizer, options in zip(self.optimizers, self._before["options"]):
            _set_options(optimizer, options)
        for other, state in zip(self.others, self._before["others"]):
            other.load_state_dict(copy.deepcopy(state))
        with sys.modules["torch"].no_grad():
            for number, buffer in enumerate(self.model.buffers() if self.model is not None else []):
                version, value = self._buffers.get(number, (buffer._version, None))
                if version != buffer._version and value.shape == buffer.shape:
                    buffer.copy_(value)
                    self._buffers[number] = (buffer._version, value)

    def put_back(self) -> None:
        """Of a forward or a backward that was broken off."""
        _sharded.put_back(self.model)

    def drop_gradients(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        for parameter in self.model.parameters() if self.model is not None else []:
            parameter.grad = None

    def rng_before(self) -> Any:
        """Random numbers before the step that goes on."""
        return self._before["rng"] if self._before else rng_state()

    # ---- from one rank to the others --------------------------------------------------------------

    def send(self, group: Any, rank: int, more: Dict[str, Any]) -> None:
        """REQUIRES: every other rank of `group` calls receive(group, rank); `rank` is ours."""
        tensors = self._model_tensors()
        plain = strip({"optimizers": [_content(o) for o in self.optimizers], "others": [o.state_dict() for o in self.others],
                       "more": more}, tensors, _sharded.meshes_of(self.parameters()))
        _broadcast_bytes(group, rank, pickle.dumps(plain))
        _broadcast(group, rank, tensors, take=False)

    def receive(self, group: Any, rank: int) -> Dict[str, Any]:
        """Becomes as `rank` is; returns what it sent besides."""
        tensors = self._model_tensors()
        said = fill(pickle.loads(_broadcast_bytes(group, rank, b"")), tensors, _sharded.meshes_of(self.parameters()))
        _broadcast(group, rank, tensors, take=True)
        for optimizer, content in zip(self.optimizers, said["optimizers"]):
            _set_content(optimizer, content)
        for other, state in zip(self.others, said["others"]):
            other.load_state_dict(state)
        self._before, self._buffers = {}, {}
        return dict(said["more"])

    def _model_tensors(self) -> List[Any]:
        if self.model is None:
            return []
        return [_sharded.local(tensor).data for tensor in (*self.model.parameters(), *self.model.buffers())]

    def parameters(self) -> List[Any]:
        """And buffers: of the model, and what the optimizers have. FSDP2 has others in the model for the time of a forward."""
        model = [] if self.model is None else [*self.model.parameters(), *self.model.buffers()]
        return [*model, *(parameter for optimizer in self.optimizers for parameter in _parameters(optimizer))]

    def shard(self) -> Optional[List[str]]:
        return _sharded.shard_of(self.parameters())


def _options(optimizer: Any) -> List[Dict[str, Any]]:
    return [{name: copy.deepcopy(value) for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def _set_options(optimizer: Any, options: List[Dict[str, Any]]) -> None:
    for group, said in zip(optimizer.param_groups, options):
        group.update(copy.deepcopy(said))


def _is_plain(optimizer: Any) -> bool:
    plain = sys.modules["torch"].optim.Optimizer
    return type(optimizer).state_dict is plain.state_dict and type(optimizer).load_state_dict is plain.load_state_dict


def _parameters(optimizer: Any) -> List[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _content(optimizer: Any) -> Any:
    if not _is_plain(optimizer):
        return optimizer.state_dict()
    return {"options": _options(optimizer), "state": [dict(optimizer.state.get(p, {})) for p in _parameters(optimizer)]}


def _set_content(optimizer: Any, content: Any) -> None:
    """Not by load_state_dict(), which casts to the parameters' type, where the optimizer has no other of its own."""
    if not _is_plain(optimizer):
        return optimizer.load_state_dict(content)
    _set_options(optimizer, content["options"])
    optimizer.state.clear()
    for parameter, state in zip(_parameters(optimizer), content["state"]):
        if state:
            optimizer.state[parameter] = state
    return None


# ---- by broadcast ---------------------------------------------------------------------------------


def _device(group: Any) -> Any:
    kinds = {device.type for device in group._device_types}
    return sys.modules["torch"].device("cpu" if "cpu" in kinds else "cuda")


def _wait_broadcast(group: Any, rank: int, tensor: Any) -> None:
    options = sys.modules["torch"]._C._distributed_c10d.BroadcastOptions()
    options.rootRank, options.rootTensor = rank, 0
    group.broadcast([tensor], options).wait()


def _broadcast_bytes(group: Any, rank: int, data: bytes) -> bytes:
    torch = sys.modules["torch"]
    size = torch.tensor([len(data)], dtype=torch.int64, device=_device(group))
    _wait_broadcast(group, rank, size)
    if data:
        buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(_device(group))
    else:
        buffer = torch.empty(int(size.item()), dtype=torch.uint8, device=_device(group))
    _wait_broadcast(group, rank, buffer)
    return _content_of(buffer.cpu())


def _content_of(tensor: Any) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def _broadcast(group: Any, rank: int, tensors: List[Any], take: bool) -> None:
    """Several at once, as bytes: whatever their types, nothing is rounded."""
    torch = sys.modules["torch"]
    kinds = {device.type for device in group._device_types}
    some: List[Any] = []
    size = 0
    for number, tensor in enumerate(tensors):
        some.append(tensor)
        size += tensor.numel() * tensor.element_size()
        last = number + 1 == len(tensors) or tensors[number + 1].device != tensor.device
        if size < _CHUNK_BYTES and not last:
            continue
        with torch.no_grad():
            flat = torch.cat([t.detach().contiguous().reshape(-1).view(torch.uint8) for t in some])
            sent = flat if flat.device.type in kinds else flat.to(_device(group))
            if sent.numel() > 0:
                _wait_broadcast(group, rank, sent)
            if take:
                _spread(sent.to(flat.device), some)
        some, size = [], 0


def _spread(flat: Any, tensors: List[Any]) -> None:
    begin = 0
    for tensor in tensors:
        end = begin + tensor.numel() * tensor.element_size()
        # A copy: a part of `flat` need not begin where its type may begin.
        tensor.copy_(flat[begin:end].clone().view(tensor.dtype).reshape(tensor.shape))
        begin = end


# ---- random numbers -------------------------------------------------------------------------------


def rng_state() -> Dict[str, Any]:
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    state: Dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if numpy is not None and hasattr(numpy, "random"):
        state["numpy"] = numpy.random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_rng_state(state: Dict[str, Any]) -> None:
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    if numpy is not None and "numpy" in state:
        numpy.random.set_state(state["numpy"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def rng_digest(state: Dict[str, Any]) -> str:
    return hashlib.sha256(_content_of(state["torch"])).hexdigest()[:16]


def seed_from(state: Dict[str, Any], rank: int) -> None:
    """Numbers of one's own, that depend on where a training is: for a new rank where each has its own."""
    text = f"{rng_digest(state)}/{rank}".encode()
    seed = int.from_bytes(hashlib.sha256(text).digest()[:4], "big")
    sys.modules["torch"].manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        numpy.random.seed(seed)
