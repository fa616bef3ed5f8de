"""Model files and checkpoints as the library that defines their format reads and writes them."""

import json

from safetensors.numpy import load, save

__all__ = ["read", "rewrite"]


def read(path):
    """Arrays and texts of a file."""
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return load(data), header["__metadata__"]


def rewrite(path, *, to=None, drop=(), replace=None, **texts):
    """The file, or another, without some arrays, with others, and with other texts; a text that is None is left out."""
    tensors, found = read(path)
    tensors = {name: tensor for name, tensor in tensors.items() if name not in drop} | (replace or {})
    kept = {name: text for name, text in {**found, **texts}.items() if text is not None}
    (to or path).write_bytes(save(tensors, kept))
