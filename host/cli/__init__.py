"""The command line, `p4sgd`."""

import gc
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; Ctrl-C while its modules are loaded gets one line, too."""
    gc.set_threshold(10_000)  # modules stay: at the default of 700 their objects are searched for garbage 300 times
    try:
        from p4sgd.host.cli.app import main as command
    except KeyboardInterrupt:
        print("p4sgd: interrupted", file=sys.stderr)
        sys.exit(130)
    try:
        command()
    finally:
        gc.freeze()  # nor does the end of Python search them: that would take a tenth of a short run
