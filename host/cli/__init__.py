"""The command line, `p4sgd`."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; Ctrl-C while its modules are loaded gets one line, too."""
    try:
        from p4sgd.host.cli.app import main as command
    except KeyboardInterrupt:
        print("p4sgd: interrupted", file=sys.stderr)
        sys.exit(130)
    command()
