"""What can go wrong in an emulated run."""

__all__ = ["EmulatorError"]


class EmulatorError(RuntimeError):
    """The registers or the memory describe a run that a real worker could not do, or would never end."""
