"""P4SGD: generalized linear models trained on FPGAs joined by a programmable switch, or on an exact emulation of them.

Importing this imports nothing else: the estimators come with their first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from p4sgd.host.estimators import GLMClassifier, GLMRegressor, load_model, save_model

    __version__: str

__all__ = ["GLMClassifier", "GLMRegressor", "load_model", "save_model"]


def __getattr__(name: str) -> Any:
    """Import the estimators when one of their names is first used, and find out the version when it is asked for."""
    if name == "__version__":
        metadata = importlib.import_module("importlib.metadata")
        try:
            return metadata.version("p4sgd")
        except metadata.PackageNotFoundError:
            raise AttributeError("p4sgd is not installed, so that it has no __version__") from None
    if name in __all__:
        return getattr(importlib.import_module("p4sgd.host.estimators"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])
