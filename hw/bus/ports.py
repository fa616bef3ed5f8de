"""Top-level ports with the names that AXI gives them."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from amaranth.hdl import Fragment, Shape, ShapeLike, ValueLike
from amaranth.lib import data, wiring
from amaranth.lib.wiring import Flow, In, Out

from p4sgd.hw.bus.axi import Axi4LiteSignature, Axi4Signature

__all__ = ["ID_BITS", "FlatPorts", "Port", "bus_ports", "kernel_names"]

ID_BITS = 1  # width of the IDs of AXI4 buses; all IDs are 0

_ATTRIBUTES = {"lock": (1, 0), "cache": (4, 0b0011), "prot": (3, 0), "qos": (4, 0)}
"""Width and value of the attributes of a request, as UG1037 recommends them for masters in FPGAs: normal memory, not
cached, modifiable and bufferable; unprivileged secure data accesses without priority."""

_USER = ("port", "ports")
"""Fields of a stream that AXI4-Stream has no name for: they are TUSER."""


class Port(NamedTuple):
    """A port of a top module."""

    name: str
    direction: str  # ``input`` or ``output``
    bits: int


class _FlatPort(NamedTuple):
    """A port of `FlatPorts` and the signal of the component that it is connected to."""

    bus: str
    name: str
    flow: Flow
    shape: ShapeLike
    inner: Any  # the component's own signal; None for a port that the component does not have
    constant: int = 0  # value of an output that has no ``inner``

    @property
    def port(self) -> Port:
        """The port alone."""
        return Port(self.name, "input" if self.flow is In else "output", Shape.cast(self.shape).width)


class FlatPorts(wiring.Component):
    """A component whose ports have the names by which people and tools know AXI. Adds no logic, registers or module.

    ``names`` are by paths of the component's members, such as ``("memory", 0)``. A bus named ``m_axi_0`` has the ports
    ``m_axi_0_<channel><field>`` if it is AXI4 or AXI4-Lite, and ``<name>_t<field>`` if it is a stream of structs such
    as `FrameBeat`, where ``valid`` and ``ready`` are fields too. Outputs without a name stay open. Clock and reset are
    those of the component.

    AXI4 buses have IDs of `ID_BITS`, which are 0 in requests and ignored in responses, and attributes.

    TypeError if a bus is none of these; ValueError if an input has no name, a name is of no member, or is given twice.
    """

    def __init__(self, component: wiring.Component, names: Mapping[tuple[str | int, ...], str]) -> None:
        self._component = component
        self._ports: dict[str, _FlatPort] = {}
        used = set()
        for path, member, value in component.signature.flatten(component):
            key = next((path[:end] for end in range(len(path), 0, -1) if path[:end] in names), None)
            if key is not None:
                used.add(key)
                for port in _ports(component.signature, key, path[len(key) :], names[key], member, value):
                    if port.name in self._ports:
                        raise ValueError(f"two ports would be named {port.name!r}")
                    self._ports[port.name] = port
            elif member.flow is In:
                raise ValueError(f"{type(component).__name__} has the input {_dotted(path)}, which has no name")
        if unknown := [key for key in names if key not in used]:
            raise ValueError(f"{type(component).__name__} has no member {_dotted(unknown[0])} to name")
        super().__init__({port.name: port.flow(port.shape) for port in self._ports.values()})

    @property
    def ports(self) -> tuple[Port, ...]:
        """The ports but for clock and reset, in order."""
        return tuple(port for ports in self.buses.values() for port in ports)

    @property
    def buses(self) -> dict[str, tuple[Port, ...]]:
        """The same by the name of their bus, or their own if they belong to none."""
        found: dict[str, tuple[Port, ...]] = {}
        for each in self._ports.values():
            found[each.bus] = (*found.get(each.bus, ()), each.port)
        return found

    def elaborate(self, platform: object) -> Fragment:
        """The component itself, with connections."""
        fragment: Fragment = Fragment.get(self._component, platform)
        for port in self._ports.values():
            outer = getattr(self, port.name)
            if port.flow is Out:
                source: ValueLike = port.constant if port.inner is None else port.inner
                fragment.add_statements("comb", outer.eq(source))
            elif port.inner is not None:
                fragment.add_statements("comb", port.inner.eq(outer))
        return fragment


def bus_ports(bus: wiring.Member, name: str) -> list[Port]:
    """Ports of a component whose bus ``name`` is such a member, as `FlatPorts` has them."""
    owner = wiring.Signature({"bus": bus})
    members = owner.flatten(owner.create())
    return [flat.port for path, *rest in members for flat in _ports(owner, path[:1], path[1:], name, *rest)]


def _dotted(path: tuple[str | int, ...]) -> str:
    return ".".join(map(str, path))


def _ports(
    signature: wiring.Signature,
    key: tuple[str | int, ...],
    rest: tuple[str | int, ...],
    name: str,
    member: wiring.Member,
    value: Any,
) -> Iterator[_FlatPort]:
    """Ports of one signal of the bus at ``key``, of which it is the member ``rest``, as described in `FlatPorts`."""
    if not rest:
        yield _FlatPort(name, name, member.flow, member.shape, value)
        return
    *channels, last = map(str, rest)
    is_bus = len(channels) <= 1 and last in ("payload", "valid", "ready")
    if not is_bus or (last == "payload" and not isinstance(member.shape, data.StructLayout)):
        raise TypeError(f"{_dotted(key)} is neither AXI nor a stream of structs")
    start = f"{name}_{channels[0] if channels else 't'}"
    if last != "payload":
        yield _FlatPort(name, f"{start}{last}", member.flow, member.shape, value)
        return
    for field, shape, part in _fields(value):
        yield _FlatPort(name, f"{start}{'user' if field in _USER else field}", member.flow, shape, part)
    if not isinstance(signature.members[str(key[0])].signature, Axi4Signature):
        return
    if channels != ["w"]:
        yield _FlatPort(name, f"{start}id", member.flow, ID_BITS, None)
    if channels[0] in ("aw", "ar"):
        for attribute, (bits, constant) in _ATTRIBUTES.items():
            yield _FlatPort(name, f"{start}{attribute}", member.flow, bits, None, constant)


def _fields(view: Any) -> Iterator[tuple[str, ShapeLike, Any]]:
    """Name, shape and value of each field of a view of a struct, in structs within it too."""
    for name, field in view.shape():
        if isinstance(field.shape, data.StructLayout):
            yield from _fields(view[name])
        else:
            yield name, field.shape, view[name]


def kernel_names(kernel: wiring.Component) -> dict[tuple[str | int, ...], str]:
    """Names by which Vitis and Vivado infer buses: an AXI4-Lite port ``name`` is ``s_axi_<name>``, AXI4
    ``m_axi_<name>``, a stream ``<name>``, in an array followed by its number. Other ports keep their names.
    """
    names: dict[tuple[str | int, ...], str] = {}
    for name, member in kernel.signature.members.items():
        if member.is_port:
            names[name,] = name
            continue
        prefix = {Axi4LiteSignature: "s_axi_", Axi4Signature: "m_axi_"}
        start = next((text for kind, text in prefix.items() if isinstance(member.signature, kind)), "")
        numbers = [(index,) for index in range(member.dimensions[0])] if member.dimensions else [()]
        names |= {(name, *number): f"{start}{name}{''.join(map(str, number))}" for number in numbers}
    return names
