"""The command line, as ``python -m p4sgd``."""

from p4sgd.host.cli import main

main()
