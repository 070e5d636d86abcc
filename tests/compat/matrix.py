"""The matrix of compatibility: unmodified scripts × launch commands as tutorials have them × disturbances.

A cell is one of each. Every cell is run by `./dev compat`; `./dev test` runs a part that quick() chooses.
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

# What kind of disturbance it is, and which kinds of launch it makes sense for.
DISTURBANCES = {
    "none": ("calm", {"one node", "fixed", "elastic"}),
    "rank": ("loss", {"one node", "fixed", "elastic"}),
    "node": ("loss", {"fixed", "elastic"}),
    "added": ("growth", {"elastic"}),
    "two": ("calm", {"one node", "fixed", "elastic"}),
    "ipv6": ("calm", {"fixed", "elastic"}),
}


def cells():
    return [Cell(*names) for names in itertools.product(SCRIPTS, LAUNCHES, DISTURBANCES)
            if LAUNCHES[names[1]].kind in DISTURBANCES[names[2]][1]]


def pairs(cell):
    """Every two of a cell's three values."""
    named = [f"script {cell.script}", f"launch {cell.launch}", f"disturbance {cell.disturbance}"]
    return set(itertools.combinations(named, 2))


def values_and_pairs_of_kinds(cell):
    """A cell's values, and every two of their kinds: what a launcher treats alike is of one kind."""
    kinds = [f"resumes: {SCRIPTS[cell.script].resumes}", LAUNCHES[cell.launch].kind, DISTURBANCES[cell.disturbance][0]]
    return {f"script {cell.script}", f"launch {cell.launch}", f"disturbance {cell.disturbance}"} | set(itertools.combinations(kinds, 2))


def cover(candidates, features):
    """A small part of `candidates` that has every feature of them all. Greedy: what few of them have weighs most."""
    found = collections.Counter(itertools.chain.from_iterable(map(features, candidates)))
    missing, chosen = set(found), []
    while missing:
        best = max(candidates, key=lambda cell: sum(1 / found[feature] for feature in sorted(features(cell) & missing, key=str)))
        chosen.append(best)
        missing -= features(best)
    return chosen


def quick():
    """For every run of the tests: with PyTorch alone, each value once, and every two kinds together."""
    return cover([cell for cell in cells() if SCRIPTS[cell.script].needs is None], values_and_pairs_of_kinds)


def pairwise():
    """Every two values together."""
    return cover(cells(), pairs)
