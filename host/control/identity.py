"""Whether registers are those of the map that this program knows."""

from collections.abc import Sequence

from p4sgd.hw.spec.register_map import Register, RegisterClient

__all__ = ["find_other_map"]


def find_other_map(
    client: RegisterClient, identity: Sequence[Register], magic: int, version: int, *, unknown: str, who: str
) -> str | None:
    """Look at the identification block.

    Parameters
    ----------
    client
        The registers.
    identity
        Registers of the first word and of the version, and others after them.
    magic, version
        What these should say.
    unknown, who
        Beginnings of what is returned, up to the first word and up to the version.

    Returns
    -------
    What is there instead; None if it is what it should be.
    """
    word, there = (client.read(register)["value"] for register in identity[:2])
    if word != magic:
        return f"{unknown} is {word:#010x}, not {magic:#010x}"
    if there != version:
        return (
            f"{who} version {there} of the register map, this program needs {version}: generate the hardware anew with "
            "this version of p4sgd"
        )
    return None
