"""The process groups of torch.distributed, made so that their members can change: PyTorch 2.15's "reconfigure".

A group keeps the store that it was made with for ever, and meets there again after a change. A store of ours stands in
between, which passes on to the store of the generation that this process takes part in.
"""
import functools
import inspect
import json
import os
import sys
import threading
import time
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from . import _sockets, _worker
from ._client import Client, logger
from ._context import context

QUIET_S, MAX_QUIET_S = 0.025, 1.0
MEET_S = 30.0  # To connect, once every rank is there.
_ALONE = 1 << 40  # Numbers of configurations with oneself, which must differ among ranks; generations are below.


class Interrupted(Exception):
    """The generation that was to be met is over as well."""


class CannotGoOn(Exception):
    """Why this process cannot take part in the next generation."""


class Group:
    """One process group. `ranks`: global ranks of its members as of its last configuration; None: every rank."""

    def __init__(self, pg: Any, name: str, ranks: Optional[List[int]]) -> None:
        self.pg, self.name, self.ranks = pg, name, ranks
        self.sockets: Dict[int, str] = {}

    def backends(self) -> List[Any]:
        found: List[Any] = []
        for device in self.pg._device_types:
            backend = self.pg._get_backend(device)
            if not any(backend is other for other in found):
                found.append(backend)
        return found

    def handles(self) -> List[str]:
        return [backend.get_reconfigure_handle() for backend in self.backends()]

    def is_alive(self) -> bool:
        return self.pg in _c10d()._world.pg_map


class Groups:
    """All groups of this process, the default one first. Main thread, but for break_off()."""

    def __init__(self) -> None:
        self.all: List[Group] = []
        self.store: Any = None  # That of the groups.
        self.base: Any = None  # That of the generation.
        self.awaited = 0  # The epoch in which the others are, while this process is alone.
        self.rank: Optional[int] = None  # As of the last configuration with others.
        self.world: Optional[int] = None  # The same.
        self.making: Optional[Tuple[str, List[int]]] = None  # Name and ranks of the group that is made while alone.
        self.generation = 0  # In which they were configured last.
        self.alone = False  # Configured with nobody: the others go on, and wait until this process has come as far.
        self.others: Dict[int, str] = {}  # Connections of groups that cannot change.
        self._before: Optional[Dict[int, str]] = None  # Connections from before the configuration that goes on.
        self._lock = threading.Lock()

    @property
    def active(self) -> bool:
        return bool(self.all) and self.all[0].is_alive()

    def forget_destroyed(self) -> None:
        with self._lock:
            self.all = [group for group in self.all if group.is_alive()]

    def configure(self, group: Group, uuid: int, handles: List[List[str]]) -> None:
        """`handles`: of each member, in the order of their ranks, one for each back-end."""
        for number, backend in enumerate(group.backends()):
            options = _torch()._C._distributed_c10d.ReconfigureOptions()
            options.uuid, options.handles = uuid, [member[number] for member in handles]
            options.timeout = timedelta(seconds=MEET_S)
            with self._lock:
                self._before = _sockets.connected()
            try:
                backend.reconfigure(options).wait()
            finally:
                with self._lock:
                    opened = {fd: what for fd, what in _sockets.connected().items() if self._before.get(fd) != what}
                    group.sockets, self._before = {**(group.sockets if number else {}), **opened}, None
        if _retire() is not None:
            raise Interrupted

    def configure_alone(self) -> None:
        """Every group with oneself as its only member, until the others are met."""
        self.alone, self.store.target = True, sys.modules["torch.distributed"].HashStore()
        for group in self.all:
            self.configure(group, _ALONE + context().rank, [group.handles()])
            if group.ranks is None:
                _c10d()._world.pg_group_ranks[group.pg] = {rank: rank for rank in range(context().world_size)}

    def of(self, pg: Any) -> Optional[Group]:
        """None: not one of ours."""
        if pg is None or pg is _c10d().GroupMember.WORLD:
            return self.all[0] if self.all else None
        return next((group for group in self.all if group.pg is pg), None)

    def why_not_take_in(self, met: List[Dict[str, Any]]) -> Optional[str]:
        """Why a new rank cannot be a member of groups of some ranks. `met`: what each rank has said of itself."""
        some = next((group for group in self.all if group.ranks is not None), None)
        if some is None or all(rank.get("was") is not None for rank in met) or is_replacement(met):
            return None
        return (f"process group {some.name} of ranks {some.ranks} cannot take in a new rank unless each lost rank is replaced "
                f"by one of the same number, and there are {self.world} of them as before")

    def break_off(self) -> None:
        """What runs in a group fails, unless bytes of it still move. Any thread; does not wait.

        Not at once: when a connection breaks, Gloo (Pair::signalException) tells those transfers that have not begun, and
        not the one that is being written, which is then waited for until its time-out. A moment later every rank has heard
        of the end, and waits for others or has left its collective. Who is stuck after all is killed at the deadline.
        """
        with self._lock:
            sockets, before = [*(group.sockets for group in self.all), self.others], self._before
        threading.Thread(target=self._cut_when_quiet, args=(sockets, before), daemon=True).start()
        for backend in (backend for group in list(self.all) for backend in _without_sockets(group)):
            threading.Thread(target=_abort, args=(backend,), daemon=True).start()  # May wait for its device.

    def break_off_now(self) -> None:
        """When every rank has left its collectives."""
        self._cut([*(group.sockets for group in self.all), self.others], None)

    def _cut_when_quiet(self, sockets: List[Dict[int, str]], before: Optional[Dict[int, str]]) -> None:
        try:
            crowd = os.getloadavg()[0] / (os.cpu_count() or 1)  # Where many wait for a core, who writes may be late.
            _sockets.await_quiet(sockets, QUIET_S * max(1.0, crowd / 2), MAX_QUIET_S)
        finally:
            self._cut(sockets, before)

    def _cut(self, sockets: List[Dict[int, str]], before: Optional[Dict[int, str]]) -> None:
        for some in sockets:
            _sockets.shut_down(some)
        with self._lock:
            if before is not None and self._before is before:
                _sockets.shut_down({fd: what for fd, what in _sockets.connected().items() if before.get(fd) != what})


groups = Groups()


def is_replacement(met: List[Dict[str, Any]]) -> bool:
    """Whether kept ranks have the numbers that they had, among as many ranks: a new one is in the place of a lost one."""
    return all(line.get("was") in (None, rank) and line.get("world") in (None, len(met)) for rank, line in enumerate(met))


def _without_sockets(group: Group) -> List[Any]:
    try:
        return [backend for backend in group.backends() if backend.name().lower() != "gloo"]
    except Exception:
        return []


def _abort(backend: Any) -> None:
    try:
        backend.abort()
    except Exception:
        logger.debug("a process group could not be aborted", exc_info=True)


def _torch() -> Any:
    return sys.modules["torch"]


def _c10d() -> Any:
    return sys.modules["torch.distributed.distributed_c10d"]


def _retire() -> Any:
    client: Optional[Client] = _worker._client
    return None if client is None else client.retire


# ---- stores ---------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def _store_class() -> Any:
    class Passing(sys.modules["torch.distributed"].Store):  # type: ignore[misc, name-defined]
        """Passes everything on to `target`; waits so that a generation that is over is waited for no longer."""

        def __init__(self, timeout: timedelta) -> None:
            super().__init__()
            self.target: Any = None
            self.patience = timeout

        def set(self, key: str, value: Any) -> None:
            self.target.set(key, value)

        def get(self, key: str) -> bytes:
            self.wait([key])
            return bytes(self.target.get(key))

        def wait(self, keys: List[str], timeout: Optional[timedelta] = None) -> None:
            await_keys(self.target, keys, (timeout or self.patience).total_seconds())

        def compare_set(self, key: str, expected: Any, desired: Any) -> Any:
            return self.target.compare_set(key, expected, desired)

        def add(self, key: str, amount: int) -> int:
            return int(self.target.add(key, amount))

        def check(self, keys: List[str]) -> bool:
            return bool(self.target.check(keys))

        def delete_key(self, key: str) -> bool:
            return bool(self.target.delete_key(key))

        def num_keys(self) -> int:
            return int(self.target.num_keys())

        def multi_get(self, keys: List[str]) -> List[bytes]:
            self.wait(keys)
            return list(self.target.multi_get(keys))

        def multi_set(self, keys: List[str], values: List[Any]) -> None:
            self.target.multi_set(keys, values)

        def append(self, key: str, value: Any) -> None:
            self.target.append(key, value)

        def has_extended_api(self) -> bool:
            return bool(self.target.has_extended_api())

        def set_timeout(self, timeout: timedelta) -> None:
            self.patience = timeout

        def clone(self) -> Any:
            return self

    return Passing


def await_keys(store: Any, keys: List[str], seconds: float) -> None:
    deadline, pause = time.monotonic() + seconds, 0.0005
    while not store.check(keys):
        if _retire() is not None:
            raise Interrupted
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {', '.join(keys[:4])} of generation {context().generation}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


def store_of_generation() -> Any:
    """The store at which this process's environment has the ranks of its generation meet."""
    dist, ctx = sys.modules["torch.distributed"], context()
    if ctx.world_size == 1:
        return dist.HashStore()
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, False,
                          timeout=timedelta(seconds=MEET_S), wait_for_workers=False)
    return dist.PrefixStore(f"regroup/{ctx.generation}", store)


def exchange(store: Any, what: str, mine: Dict[str, Any], seconds: float) -> List[Dict[str, Any]]:
    """What every rank of this generation has to say about `what`, in the order of ranks."""
    ctx = context()
    store.set(f"{what}/{ctx.rank}", json.dumps(mine))
    if ctx.rank == 0:
        keys = [f"{what}/{rank}" for rank in range(ctx.world_size)]
        await_keys(store, keys, seconds)
        said = [json.loads(value) for value in store.multi_get(keys)]
        store.set(f"{what}/all", json.dumps(said))
        return said
    await_keys(store, [f"{what}/all"], seconds)
    return list(json.loads(store.get(f"{what}/all")))


# ---- how groups come into being -------------------------------------------------------------------


def install() -> None:
    """From now on torch.distributed makes its groups this way, in processes of Regroup."""
    dist, c10d = sys.modules["torch.distributed"], _c10d()
    begin = c10d.init_process_group
    if hasattr(begin, "_regroup"):
        return
    if "enable_reconfigure" not in inspect.signature(begin).parameters:  # PyTorch below 2.15.
        dist.init_process_group = c10d.init_process_group = _watched(begin)  # type: ignore[attr-defined]
        return
    make, tagged = c10d._new_process_group_helper, c10d._new_group_with_tag

    @functools.wraps(begin)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        options = inspect.signature(begin).bind(*args, **kwargs).arguments
        if not _is_ours(options):
            return begin(*args, **kwargs)
        return _begin(begin, options)

    @functools.wraps(make)
    def new_process_group(*args: Any, **kwargs: Any) -> Any:
        said = inspect.signature(make).bind(*args, **kwargs).arguments
        if groups.store is None or not (groups.active or not said["global_ranks_in_group"]):
            return make(*args, **kwargs)
        return _make(make, said)

    @functools.wraps(tagged)
    def new_group_with_tag(ranks: Optional[Sequence[int]] = None, *args: Any, **kwargs: Any) -> Any:
        if groups.active and groups.alone and ranks is not None:
            said = dict(inspect.signature(tagged).bind(ranks, *args, **kwargs).arguments)
            members = sorted(ranks) if said.get("sort_ranks", True) else list(ranks)
            if members != list(range(context().world_size)):
                return _make_alone(tagged, said, members)
            ranks = None
        return tagged(ranks, *args, **kwargs)

    init_process_group._regroup = True  # type: ignore[attr-defined]
    c10d._new_process_group_helper, c10d._new_group_with_tag = new_process_group, new_group_with_tag
    dist.init_process_group = c10d.init_process_group = init_process_group  # type: ignore[attr-defined]
    _install_ranks(dist, c10d)


def _watched(begin: Callable[..., None]) -> Callable[..., None]:
    """Keeps in mind what it connects, to break that off."""
    @functools.wraps(begin)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        before = _sockets.connected()
        begin(*args, **kwargs)
        groups.others = {fd: what for fd, what in _sockets.connected().items() if before.get(fd) != what}
    init_process_group._regroup = True  # type: ignore[attr-defined]
    return init_process_group


def _install_ranks(dist: Any, c10d: Any) -> None:
    """A process that is alone for a while sees the ranks and worlds that it is about to have, and is whom it hears from."""
    def seen(function: Callable[..., int], of_members: Callable[[List[int]], int]) -> Callable[..., int]:
        @functools.wraps(function)
        def call(group: Any = None) -> int:
            ours = groups.of(group) if groups.alone and groups.active else None
            if ours is None:
                return function(group)
            return of_members(list(range(context().world_size)) if ours.ranks is None else ours.ranks)
        return call

    number_of = c10d.get_group_rank

    @functools.wraps(number_of)
    def get_group_rank(group: Any, global_rank: int) -> int:
        return 0 if groups.alone and groups.active and groups.of(group) is not None else int(number_of(group, global_rank))
    c10d.get_group_rank = get_group_rank  # Of collectives; who asks by torch.distributed hears what will be.
    dist.get_rank = seen(c10d.get_rank, lambda members: members.index(context().rank))
    dist.get_world_size = seen(c10d.get_world_size, len)
    mesh = sys.modules.get("torch.distributed.device_mesh")
    if mesh is not None:
        mesh.get_rank, mesh.get_world_size = dist.get_rank, dist.get_world_size  # type: ignore[attr-defined]
        mesh.init_process_group = dist.init_process_group  # type: ignore[attr-defined]


def _is_ours(options: Dict[str, Any]) -> bool:
    ctx = context()
    return (ctx.under_regroup and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") in ("True", "False")
            and options.get("store") is None and options.get("init_method") in (None, "env://")
            and options.get("rank", -1) in (-1, ctx.rank) and options.get("world_size", -1) in (-1, ctx.world_size)
            and not options.get("_ranks") and _reconfigurable(options.get("backend")) is not None
            and _worker.client() is not None)


def _reconfigurable(backend: Any) -> Any:
    """The same back-end, of the kind that can change its members; None: there is no such. NCCL's is untested."""
    if backend is None:
        return "cpu:gloo,cuda:nccl2" if _torch().cuda.is_available() else "gloo"
    kinds = {"gloo": "gloo", "nccl": "nccl2", "nccl2": "nccl2", "undefined": "gloo"}
    parts = [part.rpartition(":") for part in str(backend).lower().split(",")]
    if not all(kind in kinds for _, _, kind in parts):
        return None
    return ",".join(device + colon + kinds[kind] for device, colon, kind in parts)


def _begin(begin: Callable[..., None], options: Dict[str, Any]) -> None:
    ctx, c10d = context(), _c10d()
    backend = _reconfigurable(options.get("backend"))
    timeout = options.get("timeout") or c10d._get_default_timeout(c10d.Backend(backend))
    groups.all.clear()
    groups.store, groups.alone, groups.generation = _store_class()(timeout), False, ctx.generation
    groups.store.target = groups.base = store_of_generation()
    try:
        begin(**{**options, "backend": backend, "timeout": timeout, "store": groups.store, "rank": ctx.rank,
                 "world_size": ctx.world_size, "init_method": None, "enable_reconfigure": True})
    except BaseException:
        groups.store = None
        raise
    met = exchange(groups.base, "come", {"kept": False}, timeout.total_seconds())
    kept = [rank["epoch"] for rank in met if rank["kept"]]
    groups.rank, groups.world = (None, None) if kept else (ctx.rank, ctx.world_size)
    if kept:
        groups.awaited = max(kept)
        return groups.configure_alone()
    group = groups.all[0]
    said = exchange(groups.base, "first", {"handles": group.handles()}, timeout.total_seconds())
    return groups.configure(group, ctx.generation, [rank["handles"] for rank in said])


def _make(make: Callable[..., Any], said: Dict[str, Any]) -> Any:
    ranks, world = list(said["global_ranks_in_group"]), context().world_size
    backend = _reconfigurable(said["backend"])
    if backend is None:
        return make(**said)
    if groups.making is not None:
        said = {**said, "group_name": groups.making[0]}
    result = make(**{**said, "backend": _c10d().Backend(backend), "enable_reconfigure": True})
    pg = result[0]
    if pg is _c10d().GroupMember.NON_GROUP_MEMBER:
        return result
    whole = not ranks or groups.alone or ranks == list(range(world))
    group = Group(pg, str(said["group_name"]), groups.making[1] if groups.making is not None else None if whole else ranks)
    with groups._lock:
        groups.all.append(group)
    if ranks:
        _meet_members(group, said["group_rank"], said["group_size"], said.get("timeout"))
    return result


def _make_alone(tagged: Callable[..., Any], said: Dict[str, Any], members: List[int]) -> Any:
    """A group of some ranks, of a new rank that has not met them: by the name that the others have given it, if all made
    their groups in the same order. The new rank is the only member until then."""
    c10d, rank = _c10d(), context().rank
    hashed = bool(said.get("use_local_synchronization", False))
    if hashed and rank not in members:
        return c10d.GroupMember.NON_GROUP_MEMBER
    name = c10d._process_group_name(members, use_hashed_name=hashed)
    count = c10d._world.group_count
    if rank not in members:
        return c10d.GroupMember.NON_GROUP_MEMBER
    groups.making = (str(name), members)
    try:
        pg = tagged(**{**said, "ranks": [0], "use_local_synchronization": False})
    finally:
        groups.making, c10d._world.group_count = None, count
    c10d._world.pg_group_ranks[pg] = {member: number for number, member in enumerate(members)}
    return pg


def _meet_members(group: Group, rank: int, size: int, timeout: Any) -> None:
    """A further group, among those who make it."""
    if groups.alone:
        return groups.configure(group, _ALONE + context().rank, [group.handles()])
    store, name = groups.store.target, f"group/{group.name}"
    store.set(f"{name}/{rank}", json.dumps(group.handles()))
    keys = [f"{name}/{member}" for member in range(size)]
    await_keys(store, keys, (timeout or groups.store.patience).total_seconds())
    return groups.configure(group, context().generation, [json.loads(handles) for handles in store.multi_get(keys)])


def await_the_end(why: str) -> None:
    """This generation cannot go on with this process: it tells, and is replaced."""
    client = _worker.client()
    if client is not None:
        client.cannot_go_on(why)
        client.flush(1.0)
    logger.warning("this process cannot go on: %s", why)
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        time.sleep(0.5)
    raise SystemExit(1)
