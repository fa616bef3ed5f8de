"""The vendor's 100G Ethernet MAC (PG203): the script that makes it, and its constraints."""

from p4sgd.build.generate.artifacts import header_comment
from p4sgd.build.generate.boards import Cage

__all__ = ["CABLES", "crossing_constraints", "ip_script"]


_CLOCK_NS = "3.1"
"""Period of the clock that the MAC gives its user, 322.265625 MHz, rounded down."""


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


def ip_script(module: str, cage: Cage, free_megahertz: int, command: str, cable: str | None = None) -> str:
    """Tcl that adds the MAC of a cage to the open project, as the IP ``module``.

    ``free_megahertz`` is the frequency of the clock at its ``init_clk``; ``cable`` is what is plugged in, one of
    `CABLES`, or None for the IP's defaults.
    """
    parameters = _PARAMETERS | {
        "GT_REF_CLK_FREQ": cage.reference_megahertz,
        "GT_DRP_CLK": str(free_megahertz),
        "CMAC_CORE_SELECT": cage.mac,
        "GT_GROUP_SELECT": cage.lanes,
    }
    if cable:
        parameters |= CABLES[cable]
    lines = [
        header_comment("# {}", command),
        "# UltraScale+ Integrated 100G Ethernet (PG203); it needs a licence, which is free.",
        "",
        f"create_ip -name cmac_usplus -vendor xilinx.com -library ip -module_name {module}",
        "set_property -dict [list \\",
        *(f"    CONFIG.{name} {{{value}}} \\" for name, value in parameters.items()),
        f"] [get_ips {module}]",
        f"generate_target all [get_ips {module}]",
    ]
    return "\n".join(lines) + "\n"


_CROSSINGS = """\
# Signals between the kernel's clock and the MAC's, in a MAC's kernel; to be read for each instance of it.
#
# A signal that crosses passes a synchronizer, or is stable when it is sampled: words in a FIFO, whose pointers tell
# when they are valid, and counters, for which the host waits. So paths must be short, but need not meet a given edge.

set kernel_clock [get_clocks -of_objects [get_ports ap_clk]]
set free_clock [get_clocks -of_objects [get_ports clk_gt_freerun]]
set mac_clock [get_clocks -of_objects [get_pins component/mac/gt_txusrclk2]]
set_max_delay -datapath_only -from $kernel_clock -to $mac_clock {period}
set_max_delay -datapath_only -from $mac_clock -to $kernel_clock {period}
set_max_delay -datapath_only -from $free_clock -to $kernel_clock {period}
set_max_delay -datapath_only -from $kernel_clock -to $free_clock {period}

# A FIFO's pointer is in Gray code: one bit changes at a time, so it arrives intact if no bit is a cycle later than
# another.
"""


_GRAY = "Gray code: one bit changes at a time, and set_bus_skew holds bits together"

_WAIVERS = (
    (
        ("CDC-11",),
        "component/adapter/mac_rst_reg/C",
        "component/adapter/mac_reset_crossing/stage0_reg/D component/adapter/rx_crossing/rst_cdc/*_reg/PRE",
        "each ends the reset of another side of a FIFO, in any order",
    ),
    (
        ("CDC-1", "CDC-4"),
        "component/adapter/counters/shown_reg[*]/C",
        "",
        "a snapshot stands still from before the pulse that tells of it until the next, and is read only then",
    ),
)
"""Waivers of ``report_cdc`` besides those of pointers: rules (UG906), sources, sinks if not all, and why it is safe."""


def crossing_constraints(command: str, *, debug: bool = False) -> str:
    """XDC constraints for the clock crossings of a MAC's kernel, and what of them ``report_cdc`` need not report.

    For ``debug`` there is a core in the free-running clock that samples signals of the MAC's.
    """
    lines, waivers = [header_comment("# {}", command), _CROSSINGS.format(period=_CLOCK_NS)], list(_WAIVERS)
    for fifo in ("tx_crossing", "rx_crossing"):
        for pointer, crossing in (("produce_w_gry", "produce_cdc"), ("consume_r_gry", "consume_cdc")):
            path = f"component/adapter/{fifo}"
            source, sink = f"{path}/{pointer}_reg[*]", f"{path}/{crossing}/stage0_reg[*]"
            lines += [
                "set_bus_skew \\",
                f"    -from [get_cells {{{source}}}] \\",
                f"    -to [get_cells {{{sink}}}] {_CLOCK_NS}",
            ]
            waivers.append((("CDC-6",), f"{source}/C", f"{sink}/D", _GRAY))
    if debug:
        lines.append(f"set_max_delay -datapath_only -from $mac_clock -to $free_clock {_CLOCK_NS}")
    lines += [
        "",
        "# Resets are asserted at any time, and released in step with the clock.",
        "set_false_path -to [get_pins {component/adapter/start_reset/*_reg/PRE component/adapter/shown_reset/*_reg/PRE "
        "component/adapter/*/rst_cdc/*_reg/PRE}]",
        "",
        "# What report_cdc cannot know to be safe. Anything else in the adapter that it calls critical is an error.",
    ]
    for rules, source, sink, reason in waivers:
        pins = [f"    -from [get_pins {{{source}}}]", *([f"    -to [get_pins {{{sink}}}]"] if sink else [])]
        for rule in rules:
            lines += [
                f"create_waiver -type CDC -id {rule} -user p4sgd -description {{{reason}}} \\",
                " \\\n".join(pins),
            ]
    return "\n".join(lines) + "\n"
