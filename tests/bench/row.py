"""What a row of the benchmark is."""
import dataclasses
import typing


class Unavailable(Exception):
    """This row can't be measured here; the text says why."""


@dataclasses.dataclass
class Row:
    name: str
    unit: str
    ship: float
    aim: float
    measure: typing.Callable  # bin_dir -> (samples in `unit`, set-up in words)
    judged: str = "p50"
    higher_is_better: bool = False
