"""Files of arrays and plain text (safetensors): what model files and checkpoints have in common."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from p4sgd.host.errors import UserError
from p4sgd.host.new_file import new_file

__all__ = ["kind_of", "parse_tensors", "save_tensors"]

_MAX_HEADER = 100_000_000
"""Bytes that the header of a safetensors file may have."""


def save_tensors(path: Path, tensors: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]) -> None:
    """Write a file that appears whole or not at all.

    Parameters
    ----------
    path
        The file to be.
    tensors
        Arrays by name.
    metadata
        Texts by name; ``kind`` says what the file is.

    Raises
    ------
    UserError
        If it cannot be written.
    """
    data = save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, dict(metadata))
    with new_file(path, len(data)) as file:
        file.write(data)


def parse_tensors(data: bytes) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """Arrays and texts of a file's content.

    Raises
    ------
    ValueError
        If it is not such a file, or damaged.
    """
    try:
        return load(data), _metadata(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ValueError(str(error)) from error


def kind_of(path: Path) -> str | None:
    """What a file says that it is, ``None`` if it says nothing; only its beginning is read.

    Raises
    ------
    UserError
        If it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            start = file.read(8)
            length = min(int.from_bytes(start, "little"), _MAX_HEADER)
            return _metadata(start + file.read(length)).get("kind")
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}") from error
    except (ValueError, AttributeError):  # no JSON, or another than that of a header
        return None


def _metadata(data: bytes) -> dict[str, str]:
    """The metadata of a safetensors file: its first 8 bytes are the length of a JSON header that has them."""
    length = int.from_bytes(data[:8], "little")
    header: dict[str, dict[str, str]] = json.loads(data[8 : 8 + length])
    return header.get("__metadata__", {})
