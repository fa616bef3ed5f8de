"""The vendor's 100G Ethernet MAC (PG203): the script that makes it, and its constraints."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from p4sgd.build.generate.artifacts import header_comment, with_header_comment
from p4sgd.build.generate.boards import Cage

_PARAMETERS = {
    "CMAC_CAUI4_MODE": "1",
    "NUM_LANES": "4x25",
    "USER_INTERFACE": "AXIS",
    "TX_FLOW_CONTROL": "0",
    "RX_FLOW_CONTROL": "0",
    "INCLUDE_RS_FEC": "1",
    "ENABLE_AXI_INTERFACE": "0",
    "INCLUDE_STATISTICS_COUNTERS": "0",
    "INCLUDE_SHARED_LOGIC": "2",
    "RX_MIN_PACKET_LEN": "64",
    "ENABLE_PIPELINE_REG": "1",
}
"""Parameters of the IP (PG203) that `p4sgd.hw.kernel.cmac` instantiates."""

CABLES = {
    "copper": {"RX_EQ_MODE": "DFE", "INS_LOSS_NYQ": "25"},
    "optics": {"RX_EQ_MODE": "LPM", "INS_LOSS_NYQ": "10"},
}
"""Parameters of the receivers for what is plugged in: the equaliser, and the loss in dB between the transmitter and the
FPGA at 12.9 GHz. Without them the IP takes 20 dB and an equaliser that suits these (casper-astro/mlib_devel,
cmac_usplus_0_wrapper.v). A copper cable may lose 22 dB (IEEE 802.3 92.10.2), and the boards lose some more. What the
transmitter of an optical module or an active cable loses on the board is 10 dB (IEEE 802.3 annex 83E). LPM is for
channels of little loss, DFE for others (UG578); corundum has LPM for QSFP28, too
(fpga/common/rtl/cmac_gty_wrapper.v)."""


def mac_parameters(cage: Cage, free_megahertz: int) -> dict[str, str]:
    """Parameters of the MAC of a cage, those of `CABLES` aside; ``free_megahertz`` is the clock at its ``init_clk``."""
    return _PARAMETERS | {
        "GT_DRP_CLK": str(free_megahertz),
        "GT_REF_CLK_FREQ": cage.reference_megahertz,
        "CMAC_CORE_SELECT": cage.mac,
        "GT_GROUP_SELECT": cage.lanes,
    }


def ip_script(module: str, cage: Cage, free_megahertz: int, command: str, cable: str | None = None) -> str:
    """Tcl that adds the MAC of a cage to the open project, as the IP ``module``.

    ``free_megahertz`` is that of `mac_parameters`; ``cable`` is what is plugged in, one of `CABLES`, or None for the
    IP's defaults.
    """
    parameters = mac_parameters(cage, free_megahertz) | (CABLES[cable] if cable else {})
    lines = [
        header_comment("# {}", command),
        "# UltraScale+ Integrated 100G Ethernet (PG203); it needs a licence, which is free.",
        *create_ip("cmac_usplus", module, parameters),
        f"generate_target all [get_ips {module}]",
    ]
    return "\n".join(lines) + "\n"


def create_ip(kind: str, module: str, parameters: Mapping[str, object]) -> Iterator[str]:
    """Lines of Tcl, after an empty one, that add IP of the vendor's to the open project."""
    yield from ("", f"create_ip -name {kind} -vendor xilinx.com -library ip -module_name {module}")
    yield "set_property -dict [list \\"
    yield from (f"    CONFIG.{name} {{{value}}} \\" for name, value in parameters.items())
    yield f"] [get_ips {module}]"


_DEBUG_CROSSING = "set_max_delay -datapath_only -from $mac_clock -to $free_clock 3.1\n"


def crossing_constraints(command: str, *, debug: bool = False) -> str:
    """XDC constraints for the clock crossings of a MAC's kernel, and what of them ``report_cdc`` need not report.

    For ``debug`` there is a core in the free-running clock that samples signals of the MAC's.
    """
    text = with_header_comment(Path(__file__).with_name("cmac.xdc"), command)
    return text if debug else text.replace(_DEBUG_CROSSING, "")
