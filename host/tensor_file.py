"""Files of arrays and plain text (safetensors): what model files and checkpoints have in common."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from p4sgd.host.errors import UserError
from p4sgd.host.files import new_file

__all__ = ["TensorFileKind"]

_MAX_HEADER = 100_000_000
"""Bytes that the header of a safetensors file may have."""


@dataclass(frozen=True)
class TensorFileKind:
    """A kind of file.

    Parameters
    ----------
    kind
        What such a file says that it is.
    version
        Of its contents. A file of another version is refused.
    noun
        What people call it.
    hint
        For those who name a file that is none.
    """

    kind: str
    version: int
    noun: str
    hint: str

    def save(self, path: Path, tensors: Mapping[str, npt.NDArray[Any]], texts: Mapping[str, str]) -> None:
        """Write a file, of arrays and texts by name, that appears whole or not at all.

        Raises
        ------
        UserError
            If it cannot be written.
        """
        metadata = {"kind": self.kind, "version": str(self.version), **texts}
        data = save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, metadata)
        with new_file(path, len(data)) as file:
            file.write(data)

    def load(self, path: Path) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
        """Arrays and texts of a file.

        Raises
        ------
        UserError
            If it cannot be read, is of another kind or version, or damaged.
        """
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UserError(f"{path}: cannot read the {self.noun}: {error.strerror}") from error
        try:
            tensors, texts = load(data), _metadata(data)
        except (SafetensorError, ValueError, KeyError) as error:
            raise UserError(f"{path}: not a {self.noun} of p4sgd, or damaged: {self.hint}") from error
        if texts.get("kind") != self.kind:
            raise UserError(f"{path}: not a {self.noun} of p4sgd: {self.hint}")
        if texts.get("version") != str(self.version):
            raise UserError(
                f"{path}: a {self.noun} of version {texts.get('version')}, this p4sgd reads version {self.version}: "
                f"train again, or use the p4sgd that wrote it"
            )
        return tensors, texts

    def is_of(self, path: Path) -> bool:
        """Whether a file is of this kind, of whatever version; only its beginning is read.

        Raises
        ------
        UserError
            If it cannot be read.
        """
        try:
            with open(path, "rb") as file:
                start = file.read(8)
                length = min(int.from_bytes(start, "little"), _MAX_HEADER)
                return _metadata(start + file.read(length)).get("kind") == self.kind
        except OSError as error:
            raise UserError(f"{path}: cannot read: {error.strerror}") from error
        except (ValueError, AttributeError):  # no JSON, or another than that of a header
            return False


def _metadata(data: bytes) -> dict[str, str]:
    """The metadata of a safetensors file: its first 8 bytes are the length of a JSON header that has them."""
    length = int.from_bytes(data[:8], "little")
    header: dict[str, dict[str, str]] = json.loads(data[8 : 8 + length])
    return header.get("__metadata__", {})
