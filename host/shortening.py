"""What may be too long for a message, cut short."""

from collections.abc import Sequence

__all__ = ["listed", "shortened"]

_CHARACTERS = 30


def listed(texts: Sequence[str], most: int) -> str:
    """The first of some texts, ``most`` of them, with dots if there are more."""
    return ", ".join(texts[:most]) + (", …" if len(texts) > most else "")


def shortened(text: str) -> str:
    """The beginning of a text in quotes, with dots if there is more."""
    return repr(text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}…")
