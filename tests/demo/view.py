"""What the demo shows, as lines of text. Pure functions: of the job as `explain --json` shows it, of the ranks' own logs
and of the script's place in its acts."""
import datetime

import screen as sc

ACTS = ["train on 3 nodes", "SIGKILL one worker", "SIGKILL node-c", "SIGKILL the coordinator", "node-c returns",
        "SIGTERM node-b (preempted)"]
_WIDE = 78  # Columns from which on the curve stands beside the nodes.


def clock(seconds):
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _seconds_since(stamp, now):
    then = datetime.datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=datetime.timezone.utc)
    return max(now - then.timestamp(), 0.0)


def _real(job):
    """Generations that ever ran or will: voided proposals are nobody's business here."""
    return [g for g in (job or {}).get("generations", []) if g["state"] != "voided"]


def _head(job, coordinator_age):
    up = "✗ down" if coordinator_age is None else f"● up {int(coordinator_age)}s"
    if not job:
        return f" coordinator {up:<10} job: none yet"
    worlds = [g["world"] for g in _real(job)]
    moving = len(worlds) > 1 and worlds[-1] != worlds[-2] and "first_step" not in _real(job)[-1]
    world = f"{worlds[-2]} → {worlds[-1]}" if moving else (worlds[-1] if worlds else "–")
    return f" coordinator {up:<10} job {job['job']} {job['state']}   generation {job['generation'] or '–'}   world {world}"


def _node(name, alive, job, lines, now):
    generations = _real(job)
    if not alive:
        lost = next((g for g in reversed(generations) if g.get("ended", {}).get("brief", "").startswith(name)), None)
        if lost is None:
            return f" {name} ✗ down"
        _, _, how = lost["ended"]["brief"].partition(name)
        return f" {name} ✗{how.partition('(')[0].rstrip()} {_seconds_since(lost['ended_at'], now):.1f} s ago" + (
            f" ({how.partition('(')[2]}" if "(" in how else "")
    member = next((m for m in (generations[-1]["members"] if generations else []) if m["node"] == name), None)
    if member is None or not member["ranks"]:
        return f" {name} ● ready"
    rank = member["ranks"][0]
    mine = [line for line in lines if line.generation == generations[-1]["generation"] and line.rank == rank]
    if not mine:
        return f" {name} ● rank {rank}  starting"
    speed = (job.get("tokens_per_second") or 0) / generations[-1]["world"]  # Slices of a batch are equal.
    return f" {name} ● rank {rank}  step {mine[-1].step:<5}" + (f" {speed:,.0f} tok/s" if speed else "")


def _lives(job):
    """`g1 ──╳ g2 ───╳ g3`: as many dashes as the generation took hundreds of steps."""
    parts = []
    for g in _real(job)[-5:]:
        steps = g.get("last_step", 0) - g.get("first_step", 0)
        parts.append(f"g{g['generation']}" + (f" {'─' * min(max(steps // 50, 1), 6)}╳" if g["state"] == "over" else ""))
    return " ".join(parts)


def _acts(act, marks, detail, columns):
    rows, coming = [], []
    for number, title in enumerate(ACTS, 1):
        if number in marks:
            rows.append(f" ✓ {number} {title:<27} {marks[number]}")
        elif number == act:
            rows.append(f" ▶ {number} {title:<27} {detail}".rstrip())
        else:
            coming.append(f" · {number} {title}")
    packed = ""
    for one in coming:
        if packed and len(packed) + 2 + len(one) > columns - 1:
            rows.append(packed)
            packed = ""
        packed += ("  " if packed else "") + one
    if len(marks) == len(ACTS) and detail:
        packed = f" ▶ {detail}"
    return rows + ([packed] if packed else [])


def live(act, marks, detail, elapsed, about, job, coordinator_age, alive, lines, now, columns):
    """The whole screen. `alive`: node name -> whether its agent runs; `now`: seconds since 1970."""
    title = f" Regroup demo   act {max(act, 1)}/{len(ACTS)}: {ACTS[max(act, 1) - 1]}"
    rows = [f"{title:<{max(min(columns, 80) - 21, 40)}} {clock(elapsed)} of about {about}", _head(job, coordinator_age)]
    left = [_node(name, up, job, lines, now) for name, up in alive.items()]
    curve = [line.loss for line in lines if line.rank == 0]
    right = [f"loss {curve[0]:.2f} {sc.sparkline(curve, 20)} {curve[-1]:.2f}" if curve else "", _lives(job)]
    if columns >= _WIDE:
        rows += [f"{a:<42} {b}".rstrip() if b and len(a) <= 42 else a for a, b in zip(left, [*right, ""])]
    else:
        rows += left + [" " + b for b in right if b]
    return rows + _acts(act, marks, detail, columns)


def _phases(generation):
    phases = generation.get("restart")
    if not phases or not generation.get("first_step"):
        return "–"
    cells = [f"{phases['down_s']:.2f}s"]
    for name in ("detect", "stop", "form", "spawn", "restore"):
        value = phases.get(name + "_s")
        cells.append("–" if value is None else f"{value:.3f}".lstrip("0")[:4])
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, (5, 6, 4, 4, 5, 7)))


def _loss(value):
    return "–" if value is None else f"{value:.3f}"


def loss_row(first, last, entropy, undisturbed):
    """Of the first step and the last; None: that step was never computed."""
    apart = "" if last is None or undisturbed is None else f" (Δ {abs(last - undisturbed):.0e})"
    return (f" loss         {_loss(first)} → {_loss(last)}   unigram entropy {_loss(entropy)}   undisturbed run "
            f"{_loss(undisturbed)}{apart}")


def samples_row(counts, wanted, repeated):
    more = f", {counts.more:,} more than once" if counts.more else ""
    return f" samples      {counts.once:,} of {wanted:,} once, {counts.lost:,} lost{more}; {repeated} steps computed twice"


def generations_table(generations, lines):
    rows = [" GEN WORLD STEPS    ENDED BECAUSE           DOWN detect stop form spawn restore"]
    for g, after in zip(generations, [*generations[1:], {}]):
        steps = [line.step for line in lines if line.generation == g["generation"]]
        span = f"{g.get('restored_step', 0)}–{max(steps)}" if steps else "–"
        brief = g.get("ended", {}).get("brief", "").rpartition("nodes: ")[2]  # "2 to 3 nodes: node-c joined"
        because = brief.partition(",")[0].partition(" (")[0][:22]
        rows.append(f"{g['generation']:>4} {g['world']:>4}  {span:<8} {because:<22} {_phases(after)}".rstrip(" –"))
    return rows
