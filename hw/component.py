"""How a component declares its ports: once, with a comment to each.

Where no port depends on the configuration, ports are annotations of a `wiring.Component`, which Amaranth evaluates::

    class Scoreboard(wiring.Component):
        start: In(1)  # pulse before a run

Otherwise they are in the call of ``super().__init__`` of a `Component`. A port with the name of a register's field is
that field: `p4sgd.hw.bus.register_file.RegisterFile.connect` wires it.
"""

from typing import TYPE_CHECKING, Any

from amaranth.lib import wiring

__all__ = ["Component"]


class Component(wiring.Component):
    """A component of whose ports type checkers know nothing: they take any attribute."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
