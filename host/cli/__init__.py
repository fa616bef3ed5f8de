"""The command line, `p4sgd`."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; an interruption while it is being loaded ends it as quietly as a later one."""
    try:
        from p4sgd.host.cli.app import main as command
    except KeyboardInterrupt:
        print("p4sgd: interrupted", file=sys.stderr)
        sys.exit(130)
    command()
