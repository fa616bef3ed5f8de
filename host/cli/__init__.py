"""The `p4sgd` command."""

from p4sgd.host.cli.app import main

__all__ = ["main"]
