"""Experiments on the time of a mini-batch, by the formula that the simulated RTL is held to."""

from dataclasses import replace
from itertools import product

from p4sgd.host.experiments import cycles, ranks
from p4sgd.host.experiments.experiment import Cell, Chart, Finding, Source, Table, experiment
from p4sgd.hw.spec.config import BANKS, CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.image import ImageLayout
from p4sgd.hw.spec.packet import FRAME_BYTES, VALUES
from p4sgd.hw.spec.run import choose_unit
from p4sgd.hw.spec.timing import BOARDS_NETWORK, chained_lines, mini_batch_cycles

SHAPES = {
    "gisette": (6_000, 5_000),
    "real-sim": (72_309, 20_958),
    "rcv1": (20_242, 47_236),
    "332,710 columns": (4_096, 332_710),
    "a million columns": (2_048, 1_000_000),
}
"""Samples and features of the data."""

BATCHES, BOARDS = (16, 64, 256), (1, 2, 4, 8, 32)

PRECISION = 4
"""Planes of all experiments that do not vary them."""

GPU = {
    ("gisette", 16): (7.4, 11.2, 4.9),
    ("rcv1", 16): (12.8, 11.6, 5.5),
    ("rcv1", 64): (20.3, 19.2, 16.2),
    ("rcv1", 256): (34.0, 35.0, None),
    ("332,710 columns", 64): (66.0, 62.0, 35.0),
    ("a million columns", 64): (148.0, 77.0, 82.0),
}
"""µs of a mini-batch on one NVIDIA H200, by data and mini-batch size: PyTorch 2.11 in a CUDA graph with f32 and with
bf16, and one persistent cooperative kernel with its fastest type. They were measured once."""

GPU_NOTE = (
    "The rows of the H200 were measured once on another machine, with PyTorch 2.11, before this report had "
    "dates; they are not measured anew here. No board has run any of this: its rows are modelled for 250 MHz, a memory "
    "that keeps up and links with RS-FEC."
)


def config_for(features: int) -> WorkerConfig:
    """The preset of a U280 that holds so many features and the bias on one board."""
    return WorkerConfig.u280() if features < WorkerConfig.u280().features else WorkerConfig.u280_deep()


def chunks_of(config: WorkerConfig, features: int, boards: int) -> int:
    """Chunks of an engine of the fullest board, if boards share the units of features and bias evenly."""
    unit = choose_unit(features + 1)
    shard = -(-(features + 1) // (boards * unit)) * unit
    return ImageLayout(config, shard, BANKS, PRECISION, unit).chunks


def mini_batch_us(
    config: WorkerConfig, features: int, boards: int, batch: int, precision: int = PRECISION
) -> tuple[float, float]:
    """Time of a mini-batch on boards in µs, and the part of it that does not shrink with more boards."""
    chunks = chunks_of(config, features, boards)
    whole = mini_batch_cycles(config, batch, chunks, precision, BOARDS_NETWORK)
    fixed = mini_batch_cycles(config, BANKS, 1, precision, BOARDS_NETWORK) - chained_lines(1, precision)
    return whole * CLOCK_NS / 1000, fixed * CLOCK_NS / 1000


@experiment("E4", "Boards", "How does speed grow with boards, and what ends the growth?")
def scale_out(quick: bool) -> Finding:
    """E4: boards, by data and mini-batch size; beside a GPU."""
    rows: list[list[Cell]] = []
    peers: list[list[Cell]] = []
    efficient, ratios = {}, {}
    for (name, (samples, features)), batch in product(SHAPES.items(), BATCHES):
        config = config_for(features)
        alone, fixed = mini_batch_us(config, features, 1, batch)
        for boards in BOARDS:
            us, _ = mini_batch_us(config, features, boards, batch)
            speed_up = alone / us
            if boards == 8:
                efficient[name, batch] = speed_up / boards
            row: list[Cell] = [
                name,
                batch,
                boards,
                config.engines,
                us,
                -(-samples // batch) * us / 1000,
                speed_up,
                fixed / us,
            ]
            rows.append([*row, Source.MODELLED])
        if times := GPU.get((name, batch)):
            kinds = ("H200, CUDA graph, f32", "H200, CUDA graph, bf16", "H200, persistent kernel")
            peers += [
                [name, batch, kind, time, Source.MEASURED] for kind, time in zip(kinds, times, strict=True) if time
            ]
            for boards in (1, 8):
                us, _ = mini_batch_us(config, features, boards, batch)
                peers.append([name, batch, f"{boards} U280", us, Source.MODELLED])
                ratios[name, batch, boards] = min(filter(None, times)) / us, min(times[:2]) / us
    columns = ("data", "B", "boards", "engines", "mini-batch, µs", "epoch, ms", "speed-up", "fixed part", "source")
    charts = [Chart("boards", "speed-up", "data", {"B": batch}, log_x=True, log_y=True) for batch in BATCHES]
    good = [f"{name} at B = {batch}" for (name, batch), each in efficient.items() if each >= 0.8]
    bad = {key: each for key, each in efficient.items() if each < 0.8}
    worst = min(bad, key=lambda key: bad[key])
    _, fixed = mini_batch_us(config_for(SHAPES[worst[0]][1]), SHAPES[worst[0]][1], 8, worst[1])
    behind = [
        f"{name} at B = {batch} ({1 / ratio:.1f} times)"
        for (name, batch, n), (ratio, _) in ratios.items()
        if n == 1 and ratio < 1
    ]
    best = max((key for key in ratios if key[2] == 8), key=lambda key: ratios[key][0])
    most = max((key for key in ratios if key[2] == 8), key=lambda key: ratios[key][1])
    return Finding(
        [
            Table(
                f"Boards, {PRECISION} planes",
                columns,
                rows,
                charts,
                "The fixed part of a mini-batch is forward pass, network, backward pass and chaining after its last "
                "line: it takes as long on any number of boards.",
            ),
            Table(
                "One GPU beside boards",
                ("data", "B", "device", "mini-batch, µs", "source"),
                peers,
                [Chart("device", "mini-batch, µs", "data", {"B": 64}, log_y=True)],
                GPU_NOTE,
            ),
        ],
        [
            "Claim of the paper's abstract, almost linear scaling: on 8 boards at least 0.8 of linear holds for "
            f"{', '.join(good)}; not for the others.",
            "Claim of the paper's abstract, up to 6.5 times as fast as the best GPU system: by the model, 8 boards "
            f"with {PRECISION} planes are in a mini-batch {ratios[most][1]:.1f} times as fast as the CUDA graph on one "
            f"H200 for {most[0]} at B = {most[1]}, and {ratios[best][0]:.1f} times as fast as the fastest program "
            f"there for {best[0]} at B = {best[1]}. Convergence is the subject of E7.",
        ],
        [
            f"Scaling ends where the fixed part of a mini-batch, {fixed:.2f} µs, outweighs the lines: 8 boards are "
            f"only {8 * bad[worst]:.1f} times as fast as one for {worst[0]} at B = {worst[1]}.",
            f"One board is slower than one H200 for {', '.join(behind)}.",
        ],
    )


@experiment("E3", "Engines", "How does a board's speed grow with its engines, and does the formula hold?")
def engines(quick: bool) -> Finding:
    """E3: engines of a worker."""
    rows: list[list[Cell]] = []
    for name, batch in product(("gisette", "rcv1", "332,710 columns"), (16, 64)):
        alone = 0.0
        for count in (1, 2, 4, 8, 16):
            config = replace(WorkerConfig.u280(), engines=count, chunks=8192)
            us, _ = mini_batch_us(config, SHAPES[name][1], 1, batch)
            alone = alone or us
            rows.append([f"{name}, B = {batch}", count, us, alone / us, Source.MODELLED])
    columns = ("data", "engines", "mini-batch, µs", "speed-up", "source")
    last = {str(row[0]): float(row[3] or 0) for row in rows if row[1] == 16}
    least = min(last, key=lambda key: last[key])
    compared = cycles.compare(quick)
    return Finding(
        [
            Table(
                "Engines of one board", columns, rows, [Chart("engines", "speed-up", "data", log_x=True, log_y=True)]
            ),
            *compared.tables,
        ],
        [
            f"16 engines are {last[least]:.1f} ({least}) to {max(last.values()):.1f} times as fast as one.",
            *compared.sentences,
        ],
    )


@experiment("E5", "Mini-batches", "What do small mini-batches cost at a million columns?")
def batch_sweep(quick: bool) -> Finding:
    """E5: the size of a mini-batch, at 20,480 samples of a million columns."""
    samples, features = 20_480, 1_000_000
    config, epochs = WorkerConfig.u280_deep(), {}
    rows: list[list[Cell]] = []
    for boards, batch in product((1, 2, 4, 8), (8, 16, 32, 64, 128, 256, 512, 1024)):
        us, fixed = mini_batch_us(config, features, boards, batch)
        epochs[boards, batch] = -(-samples // batch) * us / 1000
        rows.append([boards, batch, us, epochs[boards, batch], fixed / us, Source.MODELLED])
    columns = ("boards", "B", "mini-batch, µs", "epoch, ms", "fixed part", "source")
    first, last = epochs[8, 8], epochs[8, 1024]
    return Finding(
        [
            Table(
                f"{samples:,} × {features:,}, {PRECISION} planes",
                columns,
                rows,
                [Chart("B", "epoch, ms", "boards", log_x=True, log_y=True)],
                f"The samples are {samples * features * PRECISION / 8e9:.1f} GB, more than the 8.6 GB of HBM of one "
                "U280 (DS963): its rows are as if it had more.",
            )
        ],
        [
            f"An epoch on 8 boards takes {first:.1f} ms with mini-batches of 8 samples, {first / last:.2f} "
            "times as long as with 1,024: each board has so many columns that their lines outweigh the fixed part."
        ],
    )


WIRE_NS = (FRAME_BYTES + 24) * 8 / 100
"""Time of a packet on a cable of 100 Gb/s, with preamble, check sequence and gap."""


def data_parallel_us(config: WorkerConfig, features: int, workers: int, batch: int) -> float:
    """Time of a mini-batch of workers that have all columns and some samples each, and add up gradients, in µs.

    Gradients of all columns are summed in packets of 8 values as fast as a cable carries them, and the last lines wait
    for the first sums, as those of a model-parallel worker do. No RTL does this.
    """
    own = max(1, batch // BANKS // workers) * BANKS
    whole = mini_batch_cycles(config, own, chunks_of(config, features, 1), PRECISION, BOARDS_NETWORK)
    return (whole * CLOCK_NS + -(-(features + 1) // VALUES) * WIRE_NS) / 1000


@experiment("E2", "Columns or samples", "When is it better to divide columns, and when samples?")
def parallelism(quick: bool) -> Finding:
    """E2: columns or samples divided among workers."""
    rows: list[list[Cell]] = []
    faster = []
    for (name, (_, features)), batch, workers in product(SHAPES.items(), (16, 64, 256, 1024), (2, 4, 8)):
        config = config_for(features)
        model = mini_batch_us(config, features, workers, batch)[0]
        data = data_parallel_us(config, features, workers, batch)
        rows.append([name, batch, workers, batch, features + 1, model, data, data / model, Source.MODELLED])
        faster.append((data / model, f"{name}, B = {batch}, {workers} boards"))
    values = ("values summed, columns divided", "values summed, samples divided")
    columns = ("data", "B", "boards", *values, "columns divided, µs", "samples divided, µs", "ratio", "source")
    below = [where for ratio, where in faster if ratio < 1]
    chart = Chart("B", "ratio", "data", {"boards": 8}, log_x=True, log_y=True)
    measured = ranks.compare(quick)
    return Finding(
        [
            Table(
                f"Boards, {PRECISION} planes",
                columns,
                rows,
                [chart],
                "With samples divided, the sums of gradients are modelled as packets that fill a cable of 100 Gb/s; no "
                "RTL does this.",
            ),
            *measured.tables,
        ],
        [
            f"Dividing columns is {min(faster)[0]:.1f} ({min(faster)[1]}) to {max(faster)[0]:.0f} times "
            f"({max(faster)[1]}) as fast as dividing samples.",
            *measured.sentences,
        ],
        [
            *([f"Dividing samples would be faster for {'; '.join(below)}."] if below else []),
            *measured.losses,
        ],
    )
