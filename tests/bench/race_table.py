"""The table at the end of a race: a row for each case, a column for each launcher, and who is how much faster."""
import math

COLUMNS = ["torchrun defaults", "torchrun best", "torchrun fixed", "ft_launcher", "Regroup"]
_NO = "-"


def median(samples):
    ordered = sorted(samples)
    return ordered[(len(ordered) - 1) // 2]


def finite(value):
    """For JSON: no number for what never came."""
    return None if math.isinf(value) else float(f"{value:.4g}")


def shown(value, unit):
    if math.isinf(value):
        return "never in 60 s"
    if unit == "":
        return f"{value:.0f}"
    if unit == "%":
        return f"{value:.1f} %"
    return f"{value:.3f} {unit}" if value < 0.1 else f"{value:.2f} {unit}" if value < 10 else f"{value:.1f} {unit}"


def meets(case, value):
    return value >= case.ship if case.higher_is_better else value <= case.ship


def ratio(case, results):
    """How many times the best of the others Regroup is, in words."""
    others = [median(results.samples[case.name, c]) for c in COLUMNS[:-1] if (case.name, c) in results.samples]
    ours = results.samples.get((case.name, COLUMNS[-1]))
    if not others or not ours or case.higher_is_better or case.unit == "" or median(ours) <= 0:
        return _NO
    best = min(others)
    return f"> {60 / median(ours):.0f} x" if math.isinf(best) else f"{best / median(ours):.0f} x"


def missed(cases, results):
    """Names of the cases in which Regroup is not as good as its *ship* target says, or was not measured at all."""
    def bad(case):
        ours = results.samples.get((case.name, COLUMNS[-1]))
        return not ours or not meets(case, median(ours))
    return [case.name for case in cases if bad(case)]


def bound(case, value):
    return _NO if value is None else f"{'>=' if case.higher_is_better else '<='} {value:g} {case.unit}".rstrip()


def render(cases, results):
    rows = [["case", *COLUMNS, "ratio", "ship", "aim"]]
    for case in cases:
        row = [case.name]
        for column in COLUMNS:
            samples = results.samples.get((case.name, column))
            row.append(shown(median(samples), case.unit) if samples else _NO)
        verdict = " MISSED" if missed([case], results) else ""
        rows.append([*row, ratio(case, results), bound(case, case.ship) + verdict, bound(case, case.aim)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    absent = {(launcher, reason) for (_, launcher), reason in results.reasons.items()}
    return "\n".join(["", *lines, *sorted(f"{launcher}: {reason}" for launcher, reason in absent)])
