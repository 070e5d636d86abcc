"""Fails if code for one instruction set can be linked into another: such an object may export its Fill function only.

Fails too where sums do not fetch ahead: GCC has dropped that without a word.

    linkage_test.py NM OBJDUMP OBJECT…
"""
import pathlib
import re
import subprocess
import sys


def exported(nm, path):
    listing = subprocess.run([nm, "-C", "--defined-only", "--extern-only", path], check=True,
                             capture_output=True, text=True).stdout
    return [line.split(maxsplit=2)[2] for line in listing.splitlines()]


def fetches(objdump, path):
    code = subprocess.run([objdump, "--disassemble", path], check=True, capture_output=True, text=True).stdout
    return "prefetch" in code


def main():
    nm, objdump, *rest = sys.argv[1:]
    objects = [path for path in rest if re.match("isa_|sums_", pathlib.Path(path).name)]
    wrong = [f"{path}: {name}" for path in objects for name in exported(nm, path)
             if not re.match(r"regroup::worker::Fill\w+\(|DW\.ref\.", name)]  # The latter: data, the same everywhere.
    wrong += [f"{path}: no prefetch" for path in objects if "sums_" in pathlib.Path(path).name and not fetches(objdump, path)]
    print("\n".join(wrong) or f"{len(objects)} objects export nothing else")
    sys.exit(bool(wrong) or len(objects) != 6)


if __name__ == "__main__":
    main()
