"""What a row of the benchmark is."""
import dataclasses
import platform
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


def cpu_facts():
    """What the kernel says of the first CPU, by its names."""
    try:
        with open("/proc/cpuinfo") as lines:
            first = lines.read().split("\n\n")[0]
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}


def cpu_model():
    """Its name, and the most that its vectors can do."""
    facts = cpu_facts()
    flags = facts.get("flags", "").split()
    vectors = next((flag for flag in ("avx512_bf16", "avx512f", "avx2") if flag in flags), None)
    return " ".join(filter(None, (facts.get("model name", platform.machine()), vectors)))
