"""An .npy file that is written part by part."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

__all__ = ["ArrayFile", "open_array_file"]


class ArrayFile:
    """The file; see `open_array_file`."""

    def __init__(self, file: BinaryIO, dtype: np.dtype[Any]) -> None:
        self._file = file
        self._dtype = dtype

    def append(self, values: npt.NDArray[Any]) -> None:
        """Write the next values."""
        self._file.write(np.ascontiguousarray(values, self._dtype).reshape(-1).view(np.uint8).data)


@contextmanager
def open_array_file(path: Path, dtype: str, shape: tuple[int, ...], done: int) -> Iterator[ArrayFile]:
    """Open a file of which ``done`` values are written; at the end of the block what was appended is on the disk."""
    kind = np.dtype(dtype)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": kind.str, "fortran_order": False, "shape": shape})
    start = header.getbuffer().nbytes
    with open(path, "r+b" if done else "w+b") as file:
        if not done:
            file.write(header.getvalue())
        file.seek(start + done * kind.itemsize)
        yield ArrayFile(file, kind)
        file.flush()
        os.fsync(file.fileno())
