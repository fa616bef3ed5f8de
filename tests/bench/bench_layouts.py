"""What four processes send and how long a mini-batch takes them, by who has which columns and samples.

    PYTHONPATH=tests python tests/bench/bench_layouts.py [--data rcv1] [--scale 0.5] [--batch 64 1024] [--bmv2]

Dense and sparse workers have some of the columns each, and send 8 partial activations in a frame. Ranks with samples of
their own send steps of 8 hot columns in a frame, and weights and steps of cold columns to each other by MPI. Sums are
those of the software switch, of BMv2 with --bmv2, or of MPI. All layouts must end with the same weights. Needs network
namespaces: root, or `unshare -Urn` before it; for BMv2 also p4c-bm2-ss, simple_switch_grpc and ethtool.
"""

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from support.data_files import make_dataset
from support.lab import Lab
from support.script import CONSOLE, parser_of, show

from p4sgd.build.generate.switch_program import COMPILER_VARIABLE, build
from p4sgd.host.data.synth import write_dataset
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.packet import FRAME_BYTES, VALUES, frame_bytes

PROCESSES = 4
DENSE, SPARSE = "--config u280", "--config sparse"


@dataclass
class Layout:
    """Who has what: workers of these configurations, or ranks with so many hot columns and sums by this device."""

    name: str
    configs: tuple[str, ...] = ()
    split: str = ""
    packets: bool = True


LAYOUTS = (
    Layout("columns: dense workers", (DENSE,) * PROCESSES),
    Layout("columns: 2 dense, 2 sparse workers", (DENSE, DENSE, SPARSE, SPARSE)),
    Layout("columns: sparse workers", (SPARSE,) * PROCESSES),
    Layout("samples: 256 hot columns", split="256"),
    Layout("samples: all columns at owners", split="none"),
    Layout("samples: hot columns by MPI", split="auto", packets=False),
)


def measure(layout: Layout, data: Path, batch: int, epochs: int, program: Path | None) -> dict:
    """The document of a run, with packets through BMv2 if the folder of its program is given."""
    bmv2 = program is not None and layout.packets
    words = ["train", data, "--batch", batch, "--epochs", epochs, "--lr", 1, "--schedule", "constant"]
    if layout.packets:
        words += ["--device", "cluster", "--cluster", "cluster.toml"]
    if not layout.configs:
        words += ["--parallel", "data", "--split", layout.split]
    with tempfile.TemporaryDirectory() as folder:
        kind = {"config": list(layout.configs)} if layout.configs else {"ranks": True}
        lab = Lab(Path(folder), PROCESSES, network="resend_us = 100000", bmv2=bmv2, **kind)
        try:
            if bmv2:
                (lab.folder / "bmv2").symlink_to(program)
                lab.document("switch", "deploy", "--cluster", "cluster.toml")
            return lab.document(*words)
        finally:
            lab.close()


def row(layout: Layout, document: dict, batch: int) -> list[str]:
    """Frames and bytes that a process sends in a mini-batch, those of the busiest one, and the time."""
    epoch, mini_batches = document["epochs"][-1], -(-document["samples"] // batch)
    frames = [each.get("PACKETS_SENT", 0) - each.get("PACKETS_RESENT", 0) for each in epoch["counters"]]
    if layout.split and layout.packets:
        frames = [2 * each["ROWS"] for each in epoch["counters"]]  # the steps and an acknowledgement
    summed = 0 if layout.packets else 64 * max(each["ROWS"] for each in epoch["counters"]) / mini_batches
    sent = max(each.get("BYTES_SENT", 0) for each in epoch["counters"]) / mini_batches
    seconds = statistics.median(each["seconds"] for each in document["epochs"][1:])
    count = max(frames) / mini_batches
    size = count * FRAME_BYTES
    if document.get("packets", {}).get("version") == 2:  # half of the frames have values, the others acknowledge
        micro_batches = -(-document["samples"] // VALUES) / mini_batches
        size = count / 2 * (frame_bytes(0) + FRAME_BYTES) + micro_batches * (frame_bytes(1) - frame_bytes(0))
    return [
        layout.name,
        f"{count:,.1f}",
        f"{size:,.0f}",
        f"{sent + summed:,.0f}",
        f"{seconds / mini_batches * 1e6:,.0f}",
    ]


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__, data="rcv1", scale=0.2, batch=[64, 1024], epochs=4, bmv2=False)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.libsvm"
        write_dataset(made := make_dataset(options.data, scale=options.scale), data)
        program = Path(folder) / "bmv2" if options.bmv2 else None
        if program and not build("bmv2", AggregatorConfig(slots=256, jobs=2), program)[1]:
            raise SystemExit(f"p4c-bm2-ss is not on the path, nor is it named by {COMPILER_VARIABLE}")
        CONSOLE.print(f"{options.data}: {made.samples:,} samples of {made.feature_count:,} features")
        for batch in options.batch:
            rows = []
            hashes = set()
            for layout in LAYOUTS:
                document = measure(layout, data, batch, options.epochs, program)
                hashes.add(document["weights_sha256"])
                rows.append(row(layout, document, batch))
            columns = ("frames of a process", "their bytes", "bytes by MPI", "µs")
            show(f"mini-batch of {batch}", ("", *columns), rows)
            if len(hashes) > 1:
                raise SystemExit("the weights differ")


if __name__ == "__main__":
    main()
