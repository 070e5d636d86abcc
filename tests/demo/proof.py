"""What the demo has to prove, computed from the ranks' own logs and the journal alone. Pure functions."""
import collections
import datetime
import math
import os
import re

Consumed = collections.namedtuple("Consumed", "generation step rank world first count hash loss")
# Samples of the whole order, as the lineage consumed them: how many once, never and more often; in all.
Counts = collections.namedtuple("Counts", "once lost more consumed")


def read_sample_logs(folder):
    """Every line of every rank: `generation step rank world first_index count hash loss`. A rank may have been
    killed while it wrote: a last line without its newline is not a line."""
    lines = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        with open(os.path.join(folder, name)) as f:
            for line in f:
                fields = line.split()
                if line.endswith("\n") and len(fields) >= 8:
                    generation, step, rank, world, first, count = map(int, fields[:6])
                    lines.append(Consumed(generation, step, rank, world, first, count, int(fields[6], 16), float(fields[7])))
    return lines


def lineage(lines, resumed):
    """Which generation's word counts for each step: a step computed by generation g counts unless a later generation
    resumed at or before it. `resumed`: generation -> the last step its restored state already held (0: from the
    start). Returns step -> generation."""
    owner = {}
    for generation in sorted({line.generation for line in lines}):
        start = resumed.get(generation, 0)
        owner = {step: g for step, g in owner.items() if step <= start}
        for line in lines:
            if line.generation == generation:
                owner[line.step] = generation
    return owner


def count_samples(lines, resumed, steps, batch):
    """Counts of the samples [0, steps*batch) of the global order."""
    owner = lineage(lines, resumed)
    times = collections.Counter()
    for line in lines:
        if owner.get(line.step) == line.generation:
            times.update(range(line.first, line.first + line.count))
    seen = [times[position] for position in range(steps * batch)]
    return Counts(seen.count(1), seen.count(0), sum(n > 1 for n in seen), times.total())


def check_exactly_once(lines, resumed, steps, batch):
    """Returns (problems, number of steps computed twice). Along the lineage, step s must consume exactly the positions
    [(s-1)*batch, s*batch) of the global order, cut into one slice per rank."""
    problems = []
    owner = lineage(lines, resumed)
    if sorted(owner) != list(range(1, steps + 1)):
        missing = sorted(set(range(1, steps + 1)) - set(owner))
        extra = sorted(set(owner) - set(range(1, steps + 1)))
        problems.append(f"steps missing {missing[:5]} or beyond the end {extra[:5]}")
    slices = collections.defaultdict(list)
    for line in lines:
        if owner.get(line.step) == line.generation:
            slices[line.step].append(line)
    for step, parts in sorted(slices.items()):
        parts.sort(key=lambda p: p.first)
        position = (step - 1) * batch
        for part in parts:
            if part.first != position:
                problems.append(f"step {step} rank {part.rank}: positions start at {part.first}, expected {position}")
                break
            position += part.count
        else:
            if position != step * batch:
                problems.append(f"step {step}: positions end at {position}, expected {step * batch}")
    computed = collections.Counter()
    for line in lines:
        if line.rank == 0:
            computed[line.step] += 1
    repeated = sum(n - 1 for n in computed.values())
    return problems, repeated


def step_hashes(lines, resumed):
    """step -> sum over ranks of the hashes of the ids consumed (the hash of a set is the sum of its ids' hashes)."""
    owner = lineage(lines, resumed)
    sums = collections.Counter()
    for line in lines:
        if owner.get(line.step) == line.generation:
            sums[line.step] = (sums[line.step] + line.hash) % 2**64
    return dict(sums)


def losses(lines, resumed):
    owner = lineage(lines, resumed)
    return {line.step: line.loss for line in lines if owner.get(line.step) == line.generation}


def served_at(log):
    """When the coordinators that wrote this log served, each once: seconds since 1970."""
    stamps = re.findall(r'^(\S+)Z info what="the coordinator serves"', log, re.MULTILINE)
    return [datetime.datetime.fromisoformat(stamp).replace(tzinfo=datetime.timezone.utc).timestamp() for stamp in stamps]


def unigram_entropy(data):
    """Entropy of the bytes of a text in nats: what a model that only knows how often each byte occurs would reach."""
    counts = collections.Counter(data)
    total = len(data)
    return -sum(n / total * math.log(n / total) for n in counts.values())
