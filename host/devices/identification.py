"""The identity and configuration of a worker, read from its registers. Problems are worded to follow its name."""

from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.register_map import RegisterClient, find_other_map


def find_identity_problem(client: RegisterClient, config: WorkerConfig) -> str | None:
    """Say what a worker is, if that is no P4SGD worker of this version or of another configuration; else None."""
    if problem := _find_other_map(client):
        return problem
    known = client.read(registers.CONFIG_HASH)["value"]
    if known != config.config_hash:
        return (
            f"has another configuration than asked for (hash {known:#010x}, not {config.config_hash:#010x}, "
            f"{describe_shape(config)}): choose the one it was generated with"
        )
    return None


def read_configuration(client: RegisterClient) -> WorkerConfig:
    """Read a worker's configuration; a `P4sgdError` if it is no P4SGD worker or comes from another version."""
    if problem := _find_other_map(client):
        raise P4sgdError(problem)
    size = client.read(registers.GEOMETRY)
    sparse, ports = divmod(size["ports"], registers.SPARSE_PORTS)
    known = client.read(registers.CONFIG_HASH)["value"]
    try:
        config = WorkerConfig(
            engines=size["engines"],
            ports=ports,
            lanes=size["lanes"],
            chunks=client.read(registers.CHUNKS_MAX)["value"],
            line_fifo_depth=client.read(registers.LINE_FIFO_DEPTH)["value"],
            slots=client.read(registers.SLOTS)["value"],
            table_segments=client.read(registers.SEGMENTS)["value"],
            sparse=bool(sparse),
        )
    except ValueError as error:
        raise P4sgdError(f"has no possible configuration: {error}") from error
    if config.config_hash != known:
        raise P4sgdError(
            f"has a configuration of another version of p4sgd (hash {known:#010x}): {describe_shape(config)}; start it "
            "again with this version"
        )
    return config


def describe_shape(config: WorkerConfig) -> str:
    """The part of a configuration that the layout of an image depends on."""
    sparse = ", sparse" if config.sparse else ""
    return f"engines={config.engines}, lanes={config.lanes}, ports={config.ports}{sparse}"


def _find_other_map(client: RegisterClient) -> str | None:
    return find_other_map(
        client,
        (registers.MAGIC_WORD, registers.ABI),
        registers.MAGIC,
        registers.ABI_VERSION,
        unknown="is no P4SGD worker: its first identification word",
        who="has",
    )
