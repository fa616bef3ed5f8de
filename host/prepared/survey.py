"""The first reading: how many samples there are, which features they have, and their labels."""

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.blocks import Source
from p4sgd.host.data.labels import encode_labels, join_texts
from p4sgd.host.errors import UserError
from p4sgd.host.prepared.files import hash_files
from p4sgd.host.prepared.progress import OnProgress, Step
from p4sgd.host.prepared.state import Survey

__all__ = ["survey"]


def survey(source: Source, on_progress: OnProgress) -> tuple[Survey, npt.NDArray[np.float64]]:
    """Read all samples once.

    Returns
    -------
    What they say, and their labels: float64 (samples,).

    Raises
    ------
    UserError
        If there is a mistake in the data.
    """
    sha256 = ""
    if source.path.exists():
        name = source.path.name
        sha256 = hash_files(source.path.parent, [name], on_progress, Step.IDENTIFY)[name].sha256
    labels: list[tuple[tuple[str, ...], npt.NDArray[np.float64]]] = []
    samples, stored = 0, 0
    block = None
    for block in source.blocks():
        samples += block.samples
        stored += block.features.size if isinstance(block.features, np.ndarray) else int(block.features.nnz)
        labels.append((block.label_names, block.labels))
        on_progress(Step.READ, source.position, source.size)
    assert block is not None, "a source refuses to be empty"
    values, names = _join_labels(labels, source.name)
    dtype = block.features.dtype.newbyteorder("<").str
    return Survey(samples, source.space, names, stored, block.sparse, dtype, sha256), values


def _join_labels(
    parts: list[tuple[tuple[str, ...], npt.NDArray[np.float64]]], name: str
) -> tuple[npt.NDArray[np.float64], tuple[str, ...]]:
    """Labels of all samples and their names, from those of many blocks, each of which numbers its texts by itself."""
    if len({bool(names) for names, _ in parts}) > 1:
        raise UserError(f"{name}: some labels are numbers and others are not: put them right")
    if not parts[0][0]:
        return np.concatenate([labels for _, labels in parts]), ()
    return encode_labels(*join_texts((names, labels.astype(np.intp)) for names, labels in parts), name)
