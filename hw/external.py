"""A component whose Verilog is made on its own."""

from amaranth.hdl import ClockSignal, Instance, ResetSignal
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

__all__ = ["External"]


class External(wiring.Component):
    """Stands for a component in a larger design, where it is an instance of a module that is written elsewhere.

    However many there are, the component is elaborated and written once.

    Parameters
    ----------
    signature
        Of the component, which is in the clock domain ``sync`` and has a reset.
    module
        Name under which :func:`p4sgd.hw.verilog.to_verilog` writes the component.

    Members
    -------
    As in the signature.
    """

    def __init__(self, signature: wiring.Signature, module: str) -> None:
        self._module = module
        super().__init__(signature)

    def elaborate(self, platform: object) -> Instance:
        """The instance, its ports named as in Verilog."""
        ports = {"i_clk": ClockSignal(), "i_rst": ResetSignal()}
        for path, member, value in self.signature.flatten(self):
            ports[f"{'o' if member.flow is Out else 'i'}_{'__'.join(map(str, path))}"] = value
        return Instance(self._module, **ports)
