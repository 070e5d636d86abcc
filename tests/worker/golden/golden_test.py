"""The golden files are what make_golden.py makes of them, with whatever PyTorch this machine has."""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def read(path):
    """{name: (shape, values)} of a file that make_golden.py wrote."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = (entry["shape"], struct.unpack(f"<{(end - begin) // 8}d", data[begin:end]))
    return tensors


def compare(path, made):
    ours, theirs = read(path), read(made)
    assert ours.keys() == theirs.keys(), (path.name, ours.keys() ^ theirs.keys())
    for name, (shape, values) in ours.items():
        assert shape == theirs[name][0], (path.name, name, shape, theirs[name][0])
        largest = max(map(abs, values))
        worst = max(abs(a - b) for a, b in zip(values, theirs[name][1]))
        # Nine steps of Adam divide rounding by the root of tiny moments.
        limit = 1e-9 if path.name == "training.safetensors" else 1e-12
        assert worst <= limit * largest, (path.name, name, worst, largest)


def main():
    python = os.environ.get("REGROUP_TEST_PYTHON")
    if not python:
        print("SKIPPED worker_golden: REGROUP_TEST_PYTHON names no Python with PyTorch")
        return 77
    if subprocess.run([python, "-c", "import numpy"], check=False, stderr=subprocess.DEVNULL).returncode:
        print(f"SKIPPED worker_golden: {python} has no numpy")
        return 77
    committed = sorted(path.name for path in HERE.glob("*.safetensors"))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, HERE / "make_golden.py", folder], check=True)
        made = sorted(path.name for path in pathlib.Path(folder).iterdir())
        assert made == committed, (made, committed)
        for name in committed:
            compare(HERE / name, pathlib.Path(folder) / name)
    print(f"{len(committed)} files are what {python} makes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
