"""The matrix of compatibility: unmodified scripts × launch commands as tutorials have them × disturbances.

A cell is one of each. Every cell is run by `./dev compat`; `./dev test` runs a part in which every two values meet.
"""
import collections
import itertools

Script = collections.namedtuple("Script", "file resumes needs")  # `needs`: a package beside PyTorch, or None.
# `lines`: the command line of each node; one that stands alone is that of every node.
Launch = collections.namedtuple("Launch", "kind lines nodes per_node")
Cell = collections.namedtuple("Cell", "script launch disturbance")

SCRIPTS = {
    "ddp": Script("ddp.py", False, None),
    "explicit": Script("explicit.py", False, None),
    "collectives": Script("collectives.py", False, None),
    "fsdp2": Script("fsdp2.py", False, None),
    "record": Script("record.py", False, None),
    "loader": Script("loader.py", False, None),
    "resume": Script("resume.py", True, None),
    "documented": Script("documented.py", True, None),
    "dcp": Script("dcp.py", True, None),
    "accelerate": Script("accelerated.py", True, "accelerate"),
    "trainer": Script("trainer.py", True, "transformers"),
}

HABITS = {"explicit", "loader"}  # Of tutorials (g) and (h): the whole matrix has them, the pairwise part has not.

_C10D = "--rdzv-id={id} --rdzv-backend=c10d --rdzv-endpoint={endpoint}"
LAUNCHES = {
    "standalone": Launch("one node", "regroup-torchrun --standalone --nnodes=1 --nproc-per-node=2 --max-restarts=3", 1, 2),
    "stacked": Launch("one node", "regroup-torchrun --rdzv-backend=c10d --rdzv-endpoint=localhost:0 --nnodes=1 --nproc-per-node=2"
                                  " --max-restarts=3", 1, 2),
    "run": Launch("one node", "regroup run --nproc-per-node 2 --max-restarts 3", 1, 2),
    "static": Launch("fixed", "regroup-torchrun --nproc_per_node=1 --nnodes=2 --node_rank={node} --master_addr={host}"
                              " --master_port={port} --max_restarts=3", 2, 1),
    "fixed": Launch("fixed", f"regroup-torchrun --nnodes=2 --nproc-per-node=1 --max-restarts=3 {_C10D}", 2, 1),
    "elastic": Launch("elastic", f"regroup-torchrun --nnodes=1:3 --nproc-per-node=1 --max-restarts=3 {_C10D}", 2, 1),
}

# What can happen to a job, in the order in which it does, and for which kinds of launch it makes sense; `warm`: its ranks are
# forked from a process that has imported what they need. A cell's disturbance is "none", or some of these joined by "+".
DISTURBANCES = {
    "two": {"one node", "fixed", "elastic"},
    "ipv6": {"fixed", "elastic"},
    "warm": {"one node", "fixed", "elastic"},
    "added": {"elastic"},
    "rank": {"one node", "fixed", "elastic"},
    "node": {"fixed", "elastic"},
}
FROM_THE_START = {"none", "two", "ipv6", "warm"}


def cells():
    """The whole matrix: at most one disturbance each, with ranks that start cold and with warm ones."""
    return [cell for cell in several(SCRIPTS) if len(set(cell.disturbance.split("+")) - {"warm"}) <= 1]


def several(scripts, disturbances=tuple(DISTURBANCES)):
    """What a cover may choose from: cells of these scripts with any number of these disturbances."""
    subsets = [chosen for size in range(len(disturbances) + 1) for chosen in itertools.combinations(disturbances, size)]
    return [Cell(script, launch, "+".join(chosen) or "none") for script in scripts for launch in LAUNCHES for chosen in subsets
            if all(LAUNCHES[launch].kind in DISTURBANCES[name] for name in chosen)]


def pairs(cell):
    """Every two of: the script, the launch, and each disturbance, which happens or does not.

    But for script and launch: those pairs alone would take a cell each.
    """
    happens = cell.disturbance.split("+")
    values = [f"script {cell.script}", f"launch {cell.launch}"]
    values += [name if name in happens else f"no {name}" for name in DISTURBANCES]
    return set(itertools.combinations(values, 2)) - {(values[0], values[1])}


def cover(candidates, features):
    """A small part of `candidates` that has every feature of them all. Greedy: what few of them have weighs most."""
    found = collections.Counter(itertools.chain.from_iterable(map(features, candidates)))
    weight = {feature: 1 / count for feature, count in found.items()}
    missing, chosen = set(found), []
    while missing:
        best = max(candidates, key=lambda cell: sum(sorted(weight[feature] for feature in features(cell) & missing)))
        chosen.append(best)
        missing -= features(best)
    return chosen


def pairwise(scripts, disturbances=tuple(DISTURBANCES)):
    """Every two values together, in few cells with several disturbances."""
    return cover(several(scripts, disturbances), pairs)
