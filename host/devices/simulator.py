"""A simulator's process, whose failures are told as those of a device."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p4sgd.host.errors import P4sgdError

if TYPE_CHECKING:
    from p4sgd.sim.verilator import Build

__all__ = ["Simulator"]


class Simulator:
    """Builds a model if need be, and runs it; see `p4sgd.sim.cluster.process`.

    Parameters
    ----------
    build
        Compiles the model or finds it.
    settings
        Values of inputs, from before the reset on.

    Attributes
    ----------
    failed : bool
        Whether it has ended, or could not do what it was asked for.

    Raises
    ------
    P4sgdError
        If a tool is missing, or the model cannot be built; and later, if the simulator has ended.
    """

    def __init__(self, build: "Callable[[], Build]", settings: Mapping[str, int]) -> None:
        from p4sgd.sim.cluster.process import ClusterProcess
        from p4sgd.sim.verilator import MissingToolError, SimulationError

        self._errors = (MissingToolError, SimulationError)
        self.failed = False
        try:
            self._process = ClusterProcess(build(), settings)
        except self._errors as error:
            raise P4sgdError(str(error)) from error

    @property
    def folder(self) -> Path:
        """Where it leaves files, until `close`."""
        return self._process.directory

    def request(self, do: str, **arguments: object) -> Any:
        """Have it do something (`p4sgd.sim.cluster.server`) and return its answer."""
        try:
            return self._process.request(do, **arguments)
        except self._errors as error:
            self.failed = True
            raise P4sgdError(str(error)) from error

    def stop(self) -> None:
        """End it; its files stay."""
        self._process.stop()

    def close(self) -> None:
        """End it and delete its files."""
        self._process.close()
