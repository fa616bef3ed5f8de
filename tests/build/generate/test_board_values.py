"""A board that cannot be is refused, with the field and its value."""

from dataclasses import replace

import pytest

from p4sgd.build.generate.boards import BOARDS, Hbm, Shell

U50 = BOARDS["u50"]


@pytest.mark.parametrize(
    ("part", "field", "value", "says"),
    [
        (U50, "dies", 0, "dies of Board must be a whole number from 1 on, not 0"),
        (U50, "dsp", 5952.0, "dsp of Board must be a whole number"),
        (U50, "memory_die", -1, "memory_die of Board must be one of 2 dies, counted from 0, not -1"),
        (U50, "network_die", 2, "network_die of Board must be one of 2 dies"),
        (U50, "watts", 0, "watts of Board"),
        (U50, "cages", (), "cages of Board must be one or more"),
        (U50, "shell", "xilinx_u50", "shell of Board must be of the class Shell, not 'xilinx_u50'"),
        (U50, "hbm", 32, "hbm of Board must be of the class Hbm, not 32"),
        (U50, "shell", Shell("mine", left={"lut": (1,)}), r"left of Shell must have 2 numbers of lut, not \(1,\)"),
        (U50, "shell", Shell("mine", left={"lut": (1, 10**9)}), "left of Shell must have 2 numbers of lut"),
        (U50, "part", 3, "part of Board must be a text, not 3"),
        (U50, "cages", U50.cages[0], "cages of Board must be one or more of the class Cage in a tuple, not Cage"),
        (U50.shell, "left", {"luts": (1, 1)}, "left of Shell must be a dict with keys of lut, .*, not {'luts'"),
        (U50, "shell", Shell("mine", left={"lut": 1}), "left of Shell must have 2 numbers of lut, not 1"),
        (U50.hbm, "channels", 7, "channels of Hbm must be even, as half of them are in each stack, not 7"),
        (U50.hbm, "channels", -3, "channels of Hbm must be a whole number from 1 on, not -3"),
        (U50.hbm, "channel_bytes", 0, "channel_bytes of Hbm must be a whole number from 1 on, not 0"),
        (U50.hbm, "channel_bytes", 1000, "channel_bytes of Hbm must be a multiple of 4096, not 1000"),
        (U50.cages[0], "mac", "X0Y3", "mac of Cage must be a site such as CMACE4_X0Y5, not 'X0Y3'"),
        (U50.cages[0], "lanes", "X0Y28~X0Y32", "lanes of Cage must be four sites"),
        (U50.cages[0], "reference_megahertz", "161 MHz", "reference_megahertz of Cage must be a number"),
        (U50.shell, "platform", "", "platform of Shell must be the name of a Vitis platform, not ''"),
        (U50.shell, "releases", (), "releases of Shell"),
        (U50.shell, "releases", "2022.1", "releases of Shell must be one or more of the class str in a tuple"),
        (U50.shell, "free_megahertz", 0, "free_megahertz of Shell"),
    ],
)
def test_a_value_that_cannot_be(part, field, value, says):
    with pytest.raises(ValueError, match=f"^{says}"):
        replace(part, **{field: value})


def test_half_a_stack_of_memory_can_be():
    assert replace(U50, hbm=Hbm(8, 256 << 20)).hbm.channels == 8
