"""What a routed design must pass, in the folders for Vitis and for Vivado."""

from collections.abc import Iterable

from p4sgd.build.fpga.kernel import Kernel
from p4sgd.build.generate.boards import Board

__all__ = ["GATES", "judge_command"]


GATES = "gates.tcl"
"""File with the procedures that report on a routed design and judge it."""


def judge_command(place: str, kernels: Iterable[Kernel], board: Board) -> str:
    """The command of `GATES` for a design with one instance of each kernel.

    Clock crossings and methodology are judged in the kernels, but for AMD's MAC.

    Parameters
    ----------
    place
        Folder of the reports in ``out``, its parts separated by spaces.
    kernels
        The kernels.
    board
        The board, whose limit of power the design must keep.
    """
    cells = (f"*/{kernel.unit}/inst{'/component/adapter' * bool(kernel.ip)}" for kernel in kernels)
    return f"p4sgd::judge {{{place}}} {board.watts} {{{' '.join(cells)}}}"
