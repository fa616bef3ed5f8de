"""The `p4sgd` command. `main` is the console script's entry point."""

from p4sgd.host.cli.app import main

__all__ = ["main"]
