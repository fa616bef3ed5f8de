"""The control block of a kernel that is never started."""

from p4sgd.hw.spec.register_map import Access, Field, Register

__all__ = ["CTRL", "CTRL_WORD"]

CTRL = Register(
    "CTRL",
    0x000,
    "Control block of an ap_ctrl_hs kernel, without which XRT gives nobody the registers; nothing is ever started",
    (
        Field("start", 0, 1, Access.RO, "0"),
        Field("done", 1, 1, Access.RO, "0"),
        Field("idle", 2, 1, Access.RO, "1"),
        Field("ready", 3, 1, Access.RO, "0"),
    ),
)

CTRL_WORD = CTRL.encode(idle=1)
"""What it always shows."""
