"""Reads the newest checkpoint with nothing but the published format of safetensors, and shares no code with its writer.

    read_checkpoint.py DIRECTORY OUT     writes all tensors, whole, in the record's order, one after the other

Checks every rule of the format in every file, and the CRC-32C of every chunk. Where the safetensors package can be
imported, it has to read the same.
"""
import json
import pathlib
import re
import struct
import sys

CHUNK = 4 << 20


def unique(pairs):
    keys = [key for key, _ in pairs]
    assert len(keys) == len(set(keys)), "a name twice"
    return dict(pairs)


def crc32c_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


TABLE = crc32c_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return f"{crc ^ 0xFFFFFFFF:08x}"


def read_shard(path):
    """{name: (shape, bytes)} of one file."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    assert length <= 100_000_000 and 8 + length <= len(data) and data[8:9] == b"{", "length of the header"
    assert (8 + length) % 4096 == 0, "data does not begin at a page"
    header = json.loads(data[8:8 + length].decode(), object_pairs_hook=unique)
    metadata = header.pop("__metadata__")
    assert metadata == {"format": "pt"}, metadata
    body, end, tensors = data[8 + length:], 0, {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        assert set(entry) == {"dtype", "shape", "data_offsets"} and entry["dtype"] == "F32", entry
        begin, stop = entry["data_offsets"]
        elements = 1
        for dimension in entry["shape"]:
            elements *= dimension
        assert begin == end and stop - begin == 4 * elements, (name, entry, "hole, overlap or wrong size")
        tensors[name], end = (entry["shape"], body[begin:stop]), stop
    assert end == len(body), "bytes after the last tensor"
    return tensors


def compare_with_reference(path, tensors):
    try:
        from safetensors import safe_open
    except ImportError:
        return
    with safe_open(path, framework="numpy") as reference:
        assert set(reference.keys()) == set(tensors)
        for name, (shape, data) in tensors.items():
            array = reference.get_tensor(name)
            assert list(array.shape) == shape and array.tobytes() == data, name


def newest_record(root):
    steps = [int(path.name[5:]) for path in (root / "commits").iterdir() if re.fullmatch(r"step-\d+", path.name)]
    text, seal, rest = (root / "commits" / f"step-{max(steps)}").read_text().rsplit("\n", 2)
    assert re.fullmatch(r"xxh3-128:[0-9a-f]{32}", seal) and not rest, seal
    return json.loads(text, object_pairs_hook=unique)


def main():
    root, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    record = newest_record(root)
    attempt = root / f"step-{record['step']}" / f"{record['generation']}-{record['attempt']}"
    whole = {t["name"]: (t["shape"], {}) for t in record["tensors"]}  # Its pieces by their first element.
    assert len(record["files"]) == record["world_size"]
    assert sorted(path.name for path in attempt.iterdir()) == sorted(f["name"] for f in record["files"])
    for entry in record["files"]:
        path = attempt / entry["name"]
        data = path.read_bytes()
        assert len(data) == entry["bytes"]
        assert [crc32c(data[at:at + CHUNK]) for at in range(0, len(data), CHUNK)] == entry["crc32c"]
        tensors = read_shard(path)
        compare_with_reference(path, tensors)
        for name, (shape, part) in tensors.items():
            piece = re.fullmatch(r"(.*)#\[(\d+),(\d+)\)", name)
            shape_of_whole, pieces = whole[piece.group(1) if piece else name]
            begin = int(piece.group(2)) if piece else 0
            assert shape == ([int(piece.group(3)) - begin] if piece else shape_of_whole) and begin not in pieces, name
            pieces[begin] = part
    with out.open("wb") as file:
        for name, (shape, pieces) in whole.items():
            end = 0
            for begin, part in sorted(pieces.items()):
                assert begin == end, (name, "hole or overlap")
                end += len(part) // 4
                file.write(part)
            for dimension in reversed(shape):
                assert end % dimension == 0, name
                end //= dimension
            assert end == 1, name


if __name__ == "__main__":
    main()
