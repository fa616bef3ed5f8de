"""Safetensors files with arrays and texts, the common part of model files and checkpoints."""

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
"""Largest size of the header of a safetensors file, bytes."""


@dataclass(frozen=True)
class TensorFileKind:
    """A kind of safetensors file.

    Parameters
    ----------
    kind
        The name in the metadata of such a file.
    version
        Version of the content. A file of another version is refused.
    noun
        The name in messages.
    hint
        The remedy in messages about a file of another kind.
    renewal
        The remedy in messages about a file of another version.
    """

    kind: str
    version: int
    noun: str
    hint: str
    renewal: str = "train again, or use the p4sgd that wrote it"

    def save(self, path: Path, tensors: Mapping[str, npt.NDArray[Any]], texts: Mapping[str, str]) -> None:
        """Write a file of arrays and texts by name, whole or not at all.

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
        """Read the arrays and texts of a file, by name.

        Raises
        ------
        UserError
            If it cannot be read, is of another kind or version, or is damaged.
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
                f"{self.renewal}"
            )
        return tensors, texts

    def is_of(self, path: Path) -> bool:
        """Whether a file is of this kind, of any version; only its beginning is read.

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
        except (ValueError, AttributeError):  # not JSON, or not that of a header
            return False


def _metadata(data: bytes) -> dict[str, str]:
    """The metadata of a safetensors file, from its JSON header; the first 8 bytes are the length of the header."""
    length = int.from_bytes(data[:8], "little")
    header: dict[str, dict[str, str]] = json.loads(data[8 : 8 + length])
    return header.get("__metadata__", {})
