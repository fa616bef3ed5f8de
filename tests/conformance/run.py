r"""Shows the vectors to the aggregator of a cluster file, of whatever kind, through interfaces cabled to its ports.

    python tests/conformance/run.py --cluster cluster.toml --interface eth1 --interface eth2 … [--random 10000]

Cases are made for its size: so many slots and places as its controller says, so many ports as there are interfaces. All
jobs that it serves are ended. The first difference ends the run with status 1.
"""

import argparse
import contextlib
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # as pytest does

from conformance.controlled_subject import ControlledSubject, abilities_of
from conformance.generate import SMALLEST, hand_written
from conformance.random_sequences import random_cases
from conformance.runner import NonconformanceError, run
from conformance.vectors import Geometry
from p4sgd.host.aggregators.cluster_file import read_cluster
from p4sgd.host.aggregators.opening import open_controller
from p4sgd.host.errors import P4sgdError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", type=Path, required=True, help="file that says where the aggregator is")
    parser.add_argument("--interface", action="append", required=True, help="what is cabled to a port, port 0 first")
    parser.add_argument("--random", type=int, default=0, help="frames of random sequences too (default: none)")
    parser.add_argument("--seed", type=int, default=0, help="of these (default: 0)")
    parser.add_argument("--settle-ms", type=float, default=20, help="how long to look for what should not come")
    parser.add_argument("--no-looks", action="store_true", help="it cannot show slots but by probes, which it counts")
    given = parser.parse_args()
    try:
        with contextlib.ExitStack() as stack:
            controller = open_controller(read_cluster(given.cluster))
            version = 2 if controller.most else 1
            geometry = Geometry(controller.slots, controller.jobs, len(given.interface), version)
            if not geometry.holds(SMALLEST):
                sys.exit(f"cases are for {SMALLEST} and more, not for {geometry}")
            abilities = abilities_of(geometry, looks=not given.no_looks)
            subject = ControlledSubject(controller, given.interface, abilities, settle_s=given.settle_ms / 1000)
            stack.callback(subject.close)
            print("cases:", run(subject, hand_written(geometry)))
            print("random sequences:", run(subject, random_cases(geometry, given.seed, given.random)))
    except (NonconformanceError, P4sgdError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
