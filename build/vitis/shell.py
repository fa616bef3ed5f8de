"""The vendor's shell on a board: what of it Vitis has to be told by name."""

from dataclasses import dataclass

from p4sgd.build.cmac import CMACS_U280, CmacPlace
from p4sgd.build.hbm import HBM_U280, Hbm

__all__ = ["SHELLS", "Shell"]


@dataclass(frozen=True)
class Shell:
    """A Vitis platform.

    Attributes
    ----------
    platform
        Its name.
    part
        The FPGA.
    releases
        Releases of the tools that support it, oldest first.
    hbm
        The board's high-bandwidth memory; its channels are ``HBM[i]``.
    other_memory
        What the board has besides, for labels that HBM has no room for.
    transceivers, reference_clocks
        Of each QSFP28 port: names of the interfaces that the shell's region for kernels has for them.
    free_clock, free_megahertz
        The clock there that always runs: its pin, and its rate.
    macs
        Where the MAC of each QSFP28 port is.
    """

    platform: str
    part: str
    releases: tuple[str, ...]
    hbm: Hbm
    other_memory: str
    transceivers: tuple[str, ...]
    reference_clocks: tuple[str, ...]
    free_clock: str
    free_megahertz: int
    macs: tuple[CmacPlace, ...]


SHELLS = {
    "u280": Shell(
        "xilinx_u280_gen3x16_xdma_1_202211_1",
        "xcu280-fsvh2892-2L-e",
        ("2022.1", "2022.2", "2023.1"),
        HBM_U280,
        "DDR[0]",
        ("io_gt_qsfp0_00", "io_gt_qsfp1_00"),
        ("io_clk_qsfp0_refclka_00", "io_clk_qsfp1_refclka_00"),
        "ii_level0_wire/ulp_m_aclk_freerun_ref_00",
        50,
        CMACS_U280,
    )
}
"""Shells by the name of the board in `p4sgd.build.devices.DEVICES`.

Names of transceivers and clocks are those that public designs for this shell connect to: the post-link script of the
vendor's 100G example (github.com/Xilinx/xup_vitis_network_example, Ethernet/post_sys_link.tcl) and the link
configuration of github.com/pc2/AuroraFlow (test/cfg/aurora_flow_test_hw.cfg). Reference clock ``a`` is the board's
Si570, 156.25 MHz from power-up on; ``b`` comes from another oscillator, which can be set to 161.13 MHz (UG1314)."""
