"""The folder for what takes long to make and can be made again."""

import os
from pathlib import Path

__all__ = ["cache_directory"]


def cache_directory() -> Path:
    """Where simulators are kept: ``$P4SGD_CACHE``, else ``~/.cache/p4sgd``; absolute, for programs run elsewhere."""
    return Path(os.environ.get("P4SGD_CACHE") or Path.home() / ".cache" / "p4sgd").absolute()
