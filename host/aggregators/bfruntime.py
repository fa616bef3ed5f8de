"""The controller of a Tofino, over BF-Runtime.

It has never run against a switch, only against a stand-in with the same calls as the client of the SDE, `bfrt_grpc`.
That client is part of the SDE and not on PyPI, so it is imported when a switch is opened.
"""

import importlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from p4sgd.host.aggregators.cluster_file import AggregatorAddress
from p4sgd.host.aggregators.controller import SlotView
from p4sgd.host.aggregators.tables import Entry, TableController
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.hw.spec.aggregator import GENERATION_BITS, NODE_RID
from p4sgd.hw.spec.packet import counters_of

__all__ = ["P4_NAME", "BfRuntimeController", "open_bfruntime"]


P4_NAME = "p4sgd_tna"
"""What the switch calls the program: its file, without ``.p4``."""

_ALL_PIPES = 0xFFFF

_FROM_HARDWARE = {"from_hw": True}
"""Of what packets change."""

_FROM_SOFTWARE = {"from_hw": False}
"""Of what controllers write: a parameter that its action does not use, as of ``retire``, may not be in the chip."""

_PIPE = 0
"""Pipe whose registers count: that of the device ports 0 to 31, which are all that a job can have."""

_GENERATION_MASK = (1 << GENERATION_BITS) - 1

_AT_ONCE = 256
"""Entries that are asked for at a time."""

_NOT_FOUND = 5
"""Of google.rpc.Code."""


def open_bfruntime(aggregator: AggregatorAddress) -> "BfRuntimeController":
    """The controller of the switch of a cluster file.

    Raises
    ------
    UserError
        If the client of the SDE is not installed, or the connection is to be secured, which that client cannot do.
    """
    if aggregator.tls is not None:
        raise UserError("aggregator.tls: the SDE's client has no TLS: reach the switch through a tunnel instead")
    return BfRuntimeController(aggregator.control, device_id=aggregator.device_id)


class BfRuntimeController(TableController):
    """Access to a switch that runs ``p4sgd_tna.p4``.

    Parameters
    ----------
    address
        HOST:PORT of its gRPC server.
    device_id
        Number of the chip.

    Raises
    ------
    UserError
        If the client of the SDE is not installed.
    P4sgdError
        If the switch cannot be reached or runs no such program; by every call, if the switch refuses.
    """

    def __init__(self, address: str, *, device_id: int = 0) -> None:
        try:
            self._client = importlib.import_module("bfrt_grpc.client")
        except ModuleNotFoundError as error:
            raise UserError(
                f"a Tofino needs {error.name}, which comes with its SDE: add the SDE's Python packages to PYTHONPATH"
            ) from error
        self._address = address
        self._target = self._client.Target(device_id=device_id, pipe_id=_ALL_PIPES)
        with self._translated_errors():
            # Without a subscription, so that another program may have the one that there is.
            self._interface = self._client.ClientInterface(address, 0, device_id, perform_subscribe=False)
            self._info = self._interface.bfrt_info_get(P4_NAME)

    def close(self) -> None:
        """Let go of the switch, which serves on."""
        self._interface.channel.close()

    @property
    def slots(self) -> int:
        """Slots of each job."""
        return int(self._table("tags").info.size_get()) // self.jobs

    @property
    def jobs(self) -> int:
        """Places: the table of jobs has room for two of each."""
        return int(self._table("jobs").info.size_get()) // 2

    # Tables

    def read_entries(self, table: str) -> list[Entry]:
        """The entries of a table."""
        return [_entry_of(table, key, data) for key, data in self._get(self._table(table))]

    def read_default(self, table: str) -> Entry:
        """The action that a table takes by default."""
        with self._translated_errors():
            ((data, _),) = self._table(table).default_entry_get(self._target, _FROM_SOFTWARE, p4_name=P4_NAME)
        return _entry_of(table, {}, data.to_dict())

    def write_entry(self, entry: Entry, *, is_new: bool) -> None:
        """Write an entry: one of a new key, or over one of the same. One without a key is the table's default."""
        table = self._table(entry.table)
        fields = [self._client.DataTuple(name, value) for name, value in entry.data.items()]
        data = table.make_data(fields, f"SwitchIngress.{entry.action}")
        with self._translated_errors():
            if not entry.key:
                table.default_entry_set(self._target, data, p4_name=P4_NAME)
            else:
                write = table.entry_add if is_new else table.entry_mod
                write(self._target, [self._key(table, entry.key)], [data], p4_name=P4_NAME)

    def delete_entries(self, some: Iterable[Entry]) -> None:
        """Delete entries that there are."""
        for entry in some:
            self._delete(self._table(entry.table), entry.key)

    def read_groups(self) -> dict[int, frozenset[int]]:
        """Ports of the multicast groups, each of which has one node of its own number."""
        ports = {
            key["$MULTICAST_NODE_ID"]["value"]: frozenset(data["$DEV_PORT"])
            for key, data in self._get(self._info.table_get("$pre.node"))
        }
        groups = (key["$MGID"]["value"] for key, _ in self._get(self._info.table_get("$pre.mgid")))
        return {group: ports[group] for group in groups if group in ports}

    def write_group(self, group: int, ports: frozenset[int], *, is_new: bool) -> None:
        """Set the ports of a multicast group."""
        nodes = self._info.table_get("$pre.node")
        tuple_of = self._client.DataTuple
        node = nodes.make_data(
            [
                tuple_of("$MULTICAST_RID", NODE_RID),
                tuple_of("$MULTICAST_LAG_ID", int_arr_val=[]),
                tuple_of("$DEV_PORT", int_arr_val=sorted(ports)),
            ]
        )
        # A node may be left without its group, where a call ended early.
        has_node = any(key["$MULTICAST_NODE_ID"]["value"] == group for key, _ in self._get(nodes))
        with self._translated_errors():
            write = nodes.entry_mod if has_node else nodes.entry_add
            write(self._target, [self._key(nodes, {"$MULTICAST_NODE_ID": group})], [node], p4_name=P4_NAME)
            if is_new:
                groups = self._info.table_get("$pre.mgid")
                data = groups.make_data(
                    [
                        tuple_of("$MULTICAST_NODE_ID", int_arr_val=[group]),
                        tuple_of("$MULTICAST_NODE_L1_XID_VALID", bool_arr_val=[False]),
                        tuple_of("$MULTICAST_NODE_L1_XID", int_arr_val=[0]),
                    ]
                )
                groups.entry_add(self._target, [self._key(groups, {"$MGID": group})], [data], p4_name=P4_NAME)

    def set_flood_group(self, ports: frozenset[int]) -> None:
        """Say which ports frames of other protocols are flooded to; none goes back where it came from."""
        super().set_flood_group(ports)
        table = self._info.table_get("$pre.prune")
        with self._translated_errors():
            for port in sorted(ports):
                data = table.make_data([self._client.DataTuple("$DEV_PORT", int_arr_val=[port])])
                table.entry_add(self._target, [self._key(table, {"$MULTICAST_L2_XID": port})], [data], p4_name=P4_NAME)

    def delete_group(self, group: int) -> None:
        """Delete a multicast group that there is."""
        self._delete(self._info.table_get("$pre.mgid"), {"$MGID": group})
        self._delete(self._info.table_get("$pre.node"), {"$MULTICAST_NODE_ID": group})

    # What packets have left

    def counters(self) -> dict[str, int]:
        """Counters by their names in :func:`p4sgd.hw.spec.aggregator.counters`, without those that it lacks.

        Those of single jobs, and of frames that are too short or too long, are such.
        """
        found = {
            key["$COUNTER_INDEX"]["value"]: data["$COUNTER_SPEC_PKTS"]
            for key, data in self._get(self._table("outcomes"), flags=_FROM_HARDWARE)
        }
        lacking = {"DROPPED_RUNT", "DROPPED_LONG"}
        return {name: count for name, count in counters_of(found).items() if name not in lacking}

    def read_slots(self, place: int, slots: range) -> list[SlotView]:
        """What slots of a place carry."""
        served = (entry for entry in self.read_entries("jobs") if entry.action == "serve")
        job = next((entry.data for entry in served if entry.data["place"] == place), None)
        if job is None:
            raise P4sgdError(f"no job is served in place {place}, so its slots cannot be seen")
        base = place * self.slots
        tags = self._registers("tags", "carried", base, slots)
        bitmaps = [self._registers(f"{name}_shards", "f1", base, slots) for name in ("aggregated", "acknowledged")]
        found = []
        for tag, aggregated, acknowledged in zip(tags, *bitmaps, strict=True):
            if tag & _GENERATION_MASK == job["generation"]:
                found.append(SlotView(tag >> GENERATION_BITS, aggregated, acknowledged))
            else:
                found.append(SlotView(job["before"], 0, 0))
        return found

    def _registers(self, name: str, field: str, base: int, slots: range) -> list[int]:
        """Values of a register, one for each slot."""
        table = self._table(name)
        values: dict[int, int] = {}
        indices = [base + slot for slot in slots]
        for first in range(0, len(indices), _AT_ONCE):
            keys = [self._key(table, {"$REGISTER_INDEX": index}) for index in indices[first : first + _AT_ONCE]]
            for key, data in self._get(table, keys, _FROM_HARDWARE):
                values[key["$REGISTER_INDEX"]["value"]] = data[f"SwitchIngress.{name}.{field}"][_PIPE]
        return [values[index] for index in indices]

    # The client of the SDE

    def _table(self, name: str) -> Any:
        return self._info.table_get(f"SwitchIngress.{name}")

    def _key(self, table: Any, key: Any) -> Any:
        return table.make_key([self._client.KeyTuple(name, value) for name, value in key.items()])

    def _get(
        self, table: Any, keys: list[Any] | None = None, flags: dict[str, bool] = _FROM_SOFTWARE
    ) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Keys and data of a table's entries."""
        with self._translated_errors():
            try:
                got = list(table.entry_get(self._target, keys, flags, p4_name=P4_NAME))
            except self._client.BfruntimeReadWriteRpcException as error:
                reasons = [reason.canonical_code for _, reason in error.sub_errors_get()]
                if keys or reasons != [_NOT_FOUND]:  # a table without entries
                    raise
                got = []
        return [(key.to_dict(), data.to_dict()) for data, key, *_ in got if data is not None]

    def _delete(self, table: Any, key: Any) -> None:
        with self._translated_errors():
            table.entry_del(self._target, [self._key(table, key)], p4_name=P4_NAME)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Tell failures of the client in one line."""
        try:
            yield
        except self._client.BfruntimeRpcException as error:
            reasons = "; ".join(reason.message for _, reason in error.sub_errors_get())
            details = reasons or error.grpc_error_get().details()
            raise P4sgdError(f"the switch at {self._address} refuses: {details}") from error
        except RuntimeError as error:
            raise P4sgdError(f"the switch at {self._address} does not run {P4_NAME}: {error}") from error


def _entry_of(table: str, key: Mapping[str, Any], data: dict[str, Any]) -> Entry:
    """An entry as the client gives it: in the data are the action and whether it is taken by default."""
    action = data.pop("action_name").rpartition(".")[2]
    del data["is_default_entry"]
    return Entry(table, action, {name: value["value"] for name, value in key.items()}, data)
