"""What a worker is, by its registers.

Whether registers are those of the map that this program knows.

What a worker is, by its registers.
"""

from p4sgd.host.devices.device import Device, client_of
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.register_map import RegisterClient, find_other_map

__all__ = ["find_foreign", "read_configuration", "shape_of"]


def find_foreign(device: Device, index: int) -> str | None:
    """Look whether a worker is what the device says it is.

    Returns
    -------
    ``None`` if it is; else what it is, as the end of a sentence that begins with the worker: that it is no P4SGD
    worker, speaks another version of the register map or has another configuration.
    """
    worker = device.workers[index]
    client, config = client_of(worker), worker.config
    if problem := _find_other_map(client):
        return problem
    known = client.read(registers.CONFIG_HASH)["value"]
    if known != config.config_hash:
        return (
            f"has another configuration than asked for (hash {known:#010x}, not {config.config_hash:#010x}): it has "
            f"{_shape_there(client)}, asked for were {shape_of(config)}; choose the configuration it was generated for"
        )
    return None


def read_configuration(client: RegisterClient) -> WorkerConfig:
    """The configuration that a worker says it has.

    Raises
    ------
    P4sgdError
        If it is no P4SGD worker, or of another version; the message is the end of a sentence that begins with it.
    """
    if problem := _find_other_map(client):
        raise P4sgdError(problem)
    size = client.read(registers.GEOMETRY)
    known = client.read(registers.CONFIG_HASH)["value"]
    for udp in (False, True):  # which no register says but the hash
        try:
            config = WorkerConfig(
                engines=size["engines"],
                ports=size["ports"],
                lanes=size["lanes"],
                chunks=client.read(registers.CHUNKS_MAX)["value"],
                line_fifo_depth=client.read(registers.LINE_FIFO_DEPTH)["value"],
                slots=client.read(registers.SLOTS)["value"],
                table_segments=client.read(registers.SEGMENTS)["value"],
                udp=udp,
            )
        except ValueError as error:
            raise P4sgdError(f"has no possible configuration: {error}") from error
        if config.config_hash == known:
            return config
    raise P4sgdError(
        f"has a configuration of another version of p4sgd (hash {known:#010x}): {_shape_there(client)}; start it anew "
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


def shape_of(config: WorkerConfig) -> str:
    """What of a configuration an image depends on."""
    return _shape(config.engines, config.lanes, config.ports)


def _shape_there(client: RegisterClient) -> str:
    geometry = client.read(registers.GEOMETRY)
    return _shape(geometry["engines"], geometry["lanes"], geometry["ports"])


def _shape(engines: int, lanes: int, ports: int) -> str:
    return f"engines={engines}, lanes={lanes}, ports={ports}"
