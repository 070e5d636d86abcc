"""The demo's screen: redrawn in place on a terminal, plain lines otherwise. Knows nothing of what it shows."""
import os
import shutil
import sys
import time

BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values, width):
    """`values` averaged into `width` columns, the largest a full block."""
    if not values:
        return ""
    width = min(width, len(values))
    low, high = min(values), max(values)
    columns = []
    for i in range(width):
        part = values[i * len(values) // width:(i + 1) * len(values) // width] or values[-1:]
        mean = sum(part) / len(part)
        columns.append(BLOCKS[round((mean - low) / (high - low or 1) * (len(BLOCKS) - 1))])
    return "".join(columns)


class Screen:
    def __init__(self, out=sys.stdout):
        self.out = out
        self.live = out.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self.color = self.live and "NO_COLOR" not in os.environ
        self.drawn = 0
        self.last = 0.0
        utf8 = (out.encoding or "").lower().replace("-", "") == "utf8"
        self.ascii = not utf8
        if self.live:
            self._write("\x1b[?25l")

    def _write(self, text):
        if self.ascii:
            for mark, plain in (("●", "*"), ("✗", "x"), ("✓", "+"), ("▶", ">"), ("·", "-"), ("→", "->"), ("Δ", "delta"), ("╳", "X"), ("─", "-"), ("–", "-"),
                                ("“", '"'), ("”", '"'), ("…", "...")):
                text = text.replace(mark, plain)
            text = "".join(c if ord(c) < 128 else "#" for c in text)
        self.out.write(text)
        self.out.flush()

    def _paint(self, line):
        for mark, code in (("✓", "32"), ("✗", "31"), ("▶", "36"), ("●", "32")):
            line = line.replace(mark, f"\x1b[{code}m{mark}\x1b[0m")
        return line

    def columns(self):
        return shutil.get_terminal_size((80, 24)).columns

    def draw(self, lines, force=False):
        """Replaces what the last draw showed. At most ten times a second, unless forced; nothing when not live."""
        if not self.live or (not force and time.monotonic() - self.last < 0.1):
            return
        self.last = time.monotonic()
        size = shutil.get_terminal_size((80, 24))
        lines = [line[:size.columns - 1] for line in lines[:size.lines - 1]]
        if self.color:
            lines = [self._paint(line) for line in lines]
        up = f"\x1b[{self.drawn}F" if self.drawn else "\r"
        self._write(up + "".join(f"\x1b[K{line}\n" for line in lines) + "\x1b[J")
        self.drawn = len(lines)

    def say(self, line):
        """A line that stays: above the live part on a terminal, as it is otherwise."""
        if self.live and self.drawn:
            self._write(f"\x1b[{self.drawn}F\x1b[J")
            self.drawn = 0
        self._write(line + "\n")

    def close(self):
        if self.live:
            self._write("\x1b[?25h")
