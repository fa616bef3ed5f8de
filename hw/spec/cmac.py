"""The kernel of a 100G Ethernet MAC: its registers, and the state of its link as the host reads it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from p4sgd.hw.spec.register_map import (
    CTRL_WORD,
    Access,
    Declarations,
    Field,
    Register,
    RegisterMap,
    counter_block,
    halves,
)

MAGIC = int.from_bytes(b"P4MC", "big")  # first word of the identification block
ABI_VERSION = 2  # raised whenever the meaning of a register changes
PCS_LANES = 20  # lanes of the PCS of 100GBASE-R (IEEE 802.3 clause 82)
FEC_LANES = 4  # lanes of RS-FEC (IEEE 802.3 clause 91), and transceivers of a QSFP28

_RO, _RW, _STROBE = Access.RO, Access.RW, Access.STROBE

_kernel = Declarations()
IDENTITY = _kernel.identification(b"P4MC")
CONTROL = _kernel.register(
    "CONTROL",
    0x020,
    "Settings of the link; rs_fec and loopback take effect when the MAC leaves reset: change them while reset is set",
)(
    Field("reset", 0, 1, _RW, "holds MAC and transceivers in reset"),
    Field("rs_fec", 1, 1, _RW, "forward error correction (IEEE 802.3 clause 91); the same at both ends of a link", 1),
    Field("loopback", 2, 1, _RW, "the transceivers receive what they send (near-end PMA), to test a single board"),
    Field("rx_reset", 3, 1, _RW, "holds the receivers of the transceivers in reset, so that they adapt anew"),
)
STATUS = _kernel.register("STATUS", 0x024, "Present state of the link")(
    Field("up", 0, 1, _RO, "frames can be sent: the link is aligned, and there is no remote fault"),
    Field("aligned", 1, 1, _RO, "all lanes are received and aligned"),
    Field("local_fault", 2, 1, _RO, "the MAC does not receive a valid signal"),
    Field("remote_fault", 3, 1, _RO, "the other end reports that it does not receive a valid signal"),
    Field("tx_reset", 4, 1, _RO, "the sending side is in reset"),
    Field("rx_reset", 5, 1, _RO, "the receiving side is in reset"),
    Field("hi_ber", 6, 1, _RO, "too many blocks arrive with errors (IEEE 802.3 82.2.19)"),
    Field("fec_aligned", 7, 1, _RO, "RS-FEC is on, and its lanes are received and aligned"),
    Field("power_good", 8, FEC_LANES, _RO, "bitmap of the transceivers that have power"),
)
LANES = _kernel.register("LANES", 0x02C, "Lanes that are received at present")(
    Field("block_lock", 0, PCS_LANES, _RO, "bitmap of the PCS lanes in which blocks of 66 bits are found"),
    Field("fec_lock", 24, FEC_LANES, _RO, "bitmap of the RS-FEC lanes in which alignment markers are found"),
)
SNAPSHOT = _kernel.register("SNAPSHOT", 0x028, "Counters")(
    Field("take", 0, 1, _STROBE, "a write of any value copies the counters to the registers that show them"),
    Field("pending", 31, 1, _RO, "the copy is not complete; it never is while the MAC has no clock, as in reset"),
)

COUNTERS = counter_block(
    0x040,
    {
        "TX_FRAMES": "frames sent",
        "TX_DROPPED": "frames not sent, or cut off, because there was no link",
        "RX_FRAMES": "frames received",
        "RX_BAD": "frames received with errors and dropped",
        "RX_OVERFLOWS": "frames dropped because the receive buffer was full",
        "LINK_LOSSES": "times that the link was lost",
        "TX_FAULTS": "cycles in which the MAC reported an underflow or overflow of its transmit side",
        "RX_BAD_FCS": "cycles with frames received with a wrong check sequence: one frame each, runts excepted",
        "FEC_CORRECTED": "codewords of RS-FEC whose errors were all corrected",
        "FEC_UNCORRECTED": "codewords of RS-FEC with more wrong symbols than the 7 that can be corrected",
    },
)
"""Counters of the MAC; they count from reset."""


EMULATED_KERNEL = "p4sgd_emulated_cmac"  # name of the kernel that stands in for the MAC of a worker in Vitis' emulator


def kernel_name(cage: int) -> str:
    """Name of the MAC kernel of a QSFP28 cage."""
    return f"p4sgd_cmac{cage or ''}"


def cmac_map() -> RegisterMap:
    """All registers."""
    return RegisterMap([*_kernel, *halves(COUNTERS)])


def identity(build_id: int = 0) -> dict[str, int]:
    """The words of the control block and the identification block by register name."""
    return {"CTRL": CTRL_WORD, "MAGIC": MAGIC, "ABI_VERSION": ABI_VERSION, "BUILD_ID": build_id}


def after_reset(build_id: int = 0) -> Iterator[Register]:
    """All registers as a first read finds them, except STATUS and LANES, which follow the link."""
    return cmac_map().after_reset(identity(build_id))


@dataclass(frozen=True)
class LinkState:
    """The state of a link as its MAC reports it."""

    status: Mapping[str, int]  # the fields of `STATUS` and `LANES`
    rs_fec: bool  # forward error correction is on
    counters: Mapping[str, int]  # values of `COUNTERS` since the bitstream was loaded; empty if the MAC has no clock
    other_end_fec: bool | None = None  # the other end sends with it, if it was found that this does not fit ``rs_fec``
