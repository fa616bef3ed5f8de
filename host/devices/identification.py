"""The identity and configuration of a worker, read from its registers."""

from p4sgd.host.devices.device import Device, client_of
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.register_map import RegisterClient, find_other_map


def find_identity_problem(device: Device, index: int) -> str | None:
    """Compare the identity and configuration in a worker's registers with what the device expects.

    Returns ``None`` if they agree, otherwise the problem, worded to follow the worker's name: it is no P4SGD worker,
    has another version of the register map, or another configuration."""
    worker = device.workers[index]
    client, config = client_of(worker), worker.config
    if problem := _find_other_map(client):
        return problem
    known = client.read(registers.CONFIG_HASH)["value"]
    if known != config.config_hash:
        return (
            f"has another configuration than asked for (hash {known:#010x}, not {config.config_hash:#010x}): it has "
            f"{_read_shape(client)}, not {describe_shape(config)}; choose the configuration it was generated with"
        )
    return None


def read_configuration(client: RegisterClient) -> WorkerConfig:
    """Read a worker's configuration. A `P4sgdError`, worded to follow its name, if it is no P4SGD worker or comes from
    another version of p4sgd."""
    if problem := _find_other_map(client):
        raise P4sgdError(problem)
    size = client.read(registers.GEOMETRY)
    known = client.read(registers.CONFIG_HASH)["value"]
    try:
        config = WorkerConfig(
            engines=size["engines"],
            ports=size["ports"] % registers.SPARSE_PORTS,
            lanes=size["lanes"],
            chunks=client.read(registers.CHUNKS_MAX)["value"],
            line_fifo_depth=client.read(registers.LINE_FIFO_DEPTH)["value"],
            slots=client.read(registers.SLOTS)["value"],
            table_segments=client.read(registers.SEGMENTS)["value"],
            sparse=size["ports"] >= registers.SPARSE_PORTS,
        )
    except ValueError as error:
        raise P4sgdError(f"has no possible configuration: {error}") from error
    if config.config_hash == known:
        return config
    raise P4sgdError(
        f"has a configuration of another version of p4sgd (hash {known:#010x}): {_read_shape(client)}; start it again "
        "with this version"
    )


def _find_other_map(client: RegisterClient) -> str | None:
    return find_other_map(
        client,
        (registers.MAGIC_WORD, registers.ABI),
        registers.MAGIC,
        registers.ABI_VERSION,
        unknown="is no P4SGD worker: its first identification word",
        who="has",
    )


def describe_shape(config: WorkerConfig) -> str:
    """The part of a configuration that the layout of an image depends on."""
    return _shape(config.engines, config.lanes, config.ports, sparse=config.sparse)


def _read_shape(client: RegisterClient) -> str:
    geometry = client.read(registers.GEOMETRY)
    sparse, ports = divmod(geometry["ports"], registers.SPARSE_PORTS)
    return _shape(geometry["engines"], geometry["lanes"], ports, sparse=bool(sparse))


def _shape(engines: int, lanes: int, ports: int, *, sparse: bool) -> str:
    return f"engines={engines}, lanes={lanes}, ports={ports}{', sparse' if sparse else ''}"
