"""Model files and checkpoints, as the library that defines their format reads them, and written again."""

import json

from safetensors.numpy import load

from p4sgd.host.tensor_file import FileKind


def read(path):
    """Arrays, header and metadata of a file."""
    data = path.read_bytes()
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    arrays = {name: array for name, array in load(data).items() if not name.startswith("padding")}
    return arrays, json.loads(metadata["header"]), metadata


def rewrite(path, *, to=None, drop=(), replace=None, kind=None, version=None, **header):
    """The file, or another, without some arrays, with others, of another kind or version, and with other parts of the
    header; its checksums are right. A part that is ``None`` is left out; ``a__b`` is part b of part a."""
    arrays, found, metadata = read(path)
    arrays = {name: array for name, array in arrays.items() if name not in drop} | (replace or {})
    for name, value in header.items():
        inner = found
        *outer, last = name.split("__")
        for part in outer:
            inner = inner[part]
        if value is None:
            del inner[last]
        else:
            inner[last] = value
    FileKind(kind or metadata["kind"], version or metadata["version"], "", "").save(to or path, arrays, found)
