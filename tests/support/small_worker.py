"""A worker that is small enough for slow simulators."""

from p4sgd.hw.spec.config import NamedConfig

TWO_ENGINES = NamedConfig.of("tiny", engines=2, table_segments=16)
"""The smallest with two engines, and with a short table of the loss."""
