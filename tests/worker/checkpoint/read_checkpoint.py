"""Reads the newest checkpoint as worker/checkpoint/FORMAT.md describes it, and shares no code with its writer.

    read_checkpoint.py DIRECTORY OUT     writes all tensors, whole, in the record's order, one after the other

Needs nothing but Python. Checks every rule of safetensors in every file, and the CRC-32C of every chunk; hashes and another
reader of safetensors where the modules xxhash and safetensors can be imported.
"""
import itertools
import json
import pathlib
import re
import struct
import sys

CHUNK = 4 << 20
BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}


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


def product(numbers):
    result = 1
    for number in numbers:
        result *= number
    return result


def xxh3(data):
    """None where there is no module for it."""
    try:
        import xxhash
    except ImportError:
        return None
    return xxhash.xxh3_128_hexdigest(data)


def read_shard(path):
    """{name: (dtype, shape, place in the file, bytes)} of one file."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    assert length <= 100_000_000 and 8 + length <= len(data) and data[8:9] == b"{", "length of the header"
    assert (8 + length) % 4096 == 0, "data does not begin at a page"
    header = json.loads(data[8:8 + length].decode(), object_pairs_hook=unique)
    metadata = header.pop("__metadata__")
    assert metadata == {"format": "pt"}, metadata
    end, tensors = 8 + length, {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        assert set(entry) == {"dtype", "shape", "data_offsets"}, entry
        begin, stop = (8 + length + offset for offset in entry["data_offsets"])
        assert begin == end and stop - begin == BYTES[entry["dtype"]] * product(entry["shape"]), (name, entry, "hole, overlap or size")
        tensors[name], end = (entry["dtype"], entry["shape"], begin, data[begin:stop]), stop
    assert end == len(data), "bytes after the last tensor"
    return tensors


def compare_with_reference(path, tensors):
    try:
        from safetensors import safe_open
    except ImportError:
        return
    with safe_open(path, framework="numpy") as reference:
        assert set(reference.keys()) == set(tensors)
        for name, (_, shape, _, data) in tensors.items():
            array = reference.get_tensor(name)
            assert list(array.shape) == shape and array.tobytes() == data, name


def newest_record(root):
    steps = [int(path.name[5:]) for path in (root / "commits").iterdir() if re.fullmatch(r"step-\d+", path.name)]
    text, seal, rest = (root / "commits" / f"step-{max(steps)}").read_text().rsplit("\n", 2)
    assert re.fullmatch(r"xxh3-128:[0-9a-f]{32}", seal) and not rest, seal
    assert xxh3(text.encode()) in (None, seal[9:]), "the record's hash"
    record = json.loads(text, object_pairs_hook=unique)
    assert record["format"] == "regroup-checkpoint" and record["version"] in (1, 2) and record["chunk_bytes"] == CHUNK, record
    for tensor in record["tensors"]:
        slot = tensor.get("slot")
        assert record["version"] == 1 or tensor["kind"] == ("optimizer" if slot else "weights"), tensor
        assert slot is None or tensor["name"].startswith(slot + "/"), tensor
    return record


def pieces_of(record, entry):
    """(tensor, name in the file, shape in the file, offset, places of its elements in the tensor) of one file."""
    for number, *where, offset in entry["pieces"]:
        tensor = record["tensors"][number]
        if record["version"] == 1:
            first, end = where
            part, shape, places = f"{first},{end})", [end - first], range(first, end)
        else:
            begin, shape = where
            part = ",".join(f"{b}:{b + n}" for b, n in zip(begin, shape)) + "]"
            steps = [product(tensor["shape"][d + 1:]) for d in range(len(shape))]
            places = [sum(map(int.__mul__, at, steps)) for at in itertools.product(*(range(b, b + n) for b, n in zip(begin, shape)))]
        if len(places) == product(tensor["shape"]):
            yield tensor, tensor["name"], tensor["shape"], offset, places
        else:
            yield tensor, f"{tensor['name']}#[{part}", shape, offset, places


def main():
    root, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    record = newest_record(root)
    attempt = root / f"step-{record['step']}" / f"{record['generation']}-{record['attempt']}"
    whole = {t["name"]: [None] * product(t["shape"]) for t in record["tensors"]}
    assert len(whole) == len(record["tensors"]), "a name twice"
    world = record["world_size"] if record["version"] == 1 else record["mesh"]["world"]
    assert [f["name"] for f in record["files"]] == [f"rank-{rank}-of-{world}.safetensors" for rank in range(world)]
    assert sorted(path.name for path in attempt.iterdir()) == sorted(f["name"] for f in record["files"])
    for entry in record["files"]:
        path = attempt / entry["name"]
        data = path.read_bytes()
        assert len(data) == entry["bytes"] and xxh3(data) in (None, entry["xxh3_128"]), path
        assert [crc32c(data[at:at + CHUNK]) for at in range(0, len(data), CHUNK)] == entry["crc32c"]
        in_file = read_shard(path)
        compare_with_reference(path, in_file)
        for tensor, name, shape, offset, places in pieces_of(record, entry):
            dtype, shape_in_file, begin, part = in_file.pop(name)
            assert (dtype, shape_in_file, begin) == (tensor["dtype"], shape, offset), name
            elements, size = whole[tensor["name"]], BYTES[dtype]
            for i, place in enumerate(places):
                assert elements[place] is None, (name, "overlap")
                elements[place] = part[i * size:(i + 1) * size]
        assert not in_file, in_file.keys()
    with out.open("wb") as file:
        for name, elements in whole.items():
            assert None not in elements, (name, "hole")
            file.write(b"".join(elements))


if __name__ == "__main__":
    main()
