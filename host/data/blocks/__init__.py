"""Reading a data set a block of samples at a time, as often as needed and in bounded memory."""

from p4sgd.host.data.blocks.open import open_source
from p4sgd.host.data.blocks.source import Source

__all__ = ["Source", "open_source"]
