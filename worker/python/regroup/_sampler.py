"""A batch sampler that loses no sample and repeats none, however many ranks there are."""
import sys
from typing import Any, Dict, Iterator, List, Optional, Sized, Union

from ._context import context


class ElasticSampler:
    """Batches of an epoch in an order that depends on `seed` and the epoch only; each rank gets its slice of each batch.

        sampler = regroup.ElasticSampler(dataset, batch_size=256)     # of all ranks together, whatever their number
        loader = DataLoader(dataset, batch_sampler=sampler)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for batch in regroup.steps(loader, model, optimizer):
                loss = loss_of(model, batch) * sampler.weight

    Where the number of ranks divides `batch_size`, all slices are equally long and `weight` is 1. Else `weight` is what this
    rank's mean over its slice has to be multiplied by, so that DistributedDataParallel's mean over ranks is the mean over the batch.
    `consumed` is how many samples of this epoch are done; regroup.steps() counts, other loops call advance() after each
    step. state_dict() belongs into a checkpoint. The last batch is shorter; it is joined with the one before it where it
    has fewer samples than there are ranks. `drop_last` leaves it out.
    """

    def __init__(self, data: Union[Sized, int], batch_size: int, *, seed: int = 0, shuffle: bool = True,
                 drop_last: bool = False) -> None:
        self.size = data if isinstance(data, int) else len(data)
        self.batch_size, self.seed, self.shuffle, self.drop_last = batch_size, seed, shuffle, drop_last
        self.epoch = self.consumed = 0
        self.weight = 1.0
        self._order: Optional[Any] = None
        self._order_of = (-1, -1)
        if batch_size < 1 or self.size < 1:
            raise ValueError(f"{self.size} samples in batches of {batch_size}")

    def set_epoch(self, epoch: int) -> None:
        """Begins it, unless it is the one that goes on."""
        if epoch != self.epoch:
            self.epoch, self.consumed = epoch, 0

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        count, at = 0, 0
        while True:
            size = self.length_at(at)
            if size == 0:
                return count
            if size == self.batch_size:
                whole = max(1, (self.size - at) // self.batch_size - 2)
                count, at = count + whole, at + whole * self.batch_size
            else:
                count, at = count + 1, at + size

    def length_at(self, consumed: int) -> int:
        """Samples of the batch that begins after so many; 0: the epoch is over."""
        world, left = context().world_size, self.size - consumed
        if left < self.batch_size:
            return 0 if self.drop_last else max(0, left)
        if not self.drop_last and 0 < left - self.batch_size < min(world, self.batch_size):
            return left
        return self.batch_size

    def advance(self) -> None:
        """One more batch is done, by all ranks."""
        size = self.length_at(self.consumed)
        self.consumed += size
        self._weigh(self.length_at(self.consumed))

    def __iter__(self) -> Iterator[List[int]]:
        ctx, at = context(), self.consumed
        self._weigh(self.length_at(at))
        while True:
            size = self.length_at(at)
            if size == 0:
                return
            begin, end = (at + size * part // ctx.world_size for part in (ctx.rank, ctx.rank + 1))
            if begin == end:
                raise ValueError(f"a batch of {size} samples is too small for {ctx.world_size} ranks")
            yield self._indices(begin, end)
            at += size

    def state_dict(self) -> Dict[str, int]:
        return {"seed": self.seed, "epoch": self.epoch, "consumed": self.consumed}

    def load_state_dict(self, state: Dict[str, int]) -> None:
        self.seed, self.epoch, self.consumed = state["seed"], state["epoch"], state["consumed"]

    def _weigh(self, size: int) -> None:
        ctx = context()
        mine = size * (ctx.rank + 1) // ctx.world_size - size * ctx.rank // ctx.world_size
        self.weight = mine * ctx.world_size / size if size else 1.0

    def _indices(self, begin: int, end: int) -> List[int]:
        if not self.shuffle:
            return list(range(begin, end))
        if self._order_of != (self.seed, self.epoch):
            self._order, self._order_of = _shuffled(self.size, self.seed, self.epoch), (self.seed, self.epoch)
        order: Any = self._order
        return [int(index) for index in order[begin:end].tolist()]


def _shuffled(size: int, seed: int, epoch: int) -> Any:
    if "torch" not in sys.modules:
        __import__("torch")
    torch = sys.modules["torch"]
    generator = torch.Generator()
    generator.manual_seed((seed << 32) + epoch & (1 << 63) - 1)
    return torch.randperm(size, generator=generator)
