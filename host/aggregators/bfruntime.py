"""The controller of a Tofino switch, over BF-Runtime.

It has never run against a switch, only against a stand-in for `bfrt_grpc`, the client of the SDE. That client is not on
PyPI, so it is imported when a switch is opened.
"""

import importlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from p4sgd.host.aggregators.controller import SlotView
from p4sgd.host.aggregators.tables import Entry, TableController
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.hw.spec.aggregator import GENERATION_BITS, NODE_RID, counters_of

P4_NAME = "p4sgd_tna"
"""Name of the program on the switch: its file name without ``.p4``."""

_ALL_PIPES = 0xFFFF

_FROM_HARDWARE, _FROM_SOFTWARE = {"from_hw": True}, {"from_hw": False}
"""Flags for reading what packets change, and what controllers write: the chip may not store parameters that an action
does not use, as of ``retire``."""

_PIPE = 0  # pipe whose registers hold the slots: that of device ports 0 to 31, the only ports of jobs
_AT_ONCE = 256  # entries read by one request
_NOT_FOUND = 5  # NOT_FOUND of google.rpc.Code


class BfRuntimeController(TableController):
    """Controller of a switch that runs ``p4sgd_tna.p4``, chip ``device_id`` of the gRPC server at ``address``.

    Raises UserError if the client of the SDE is not installed. Every call raises P4sgdError if the switch cannot be
    reached, does not run the program, or refuses.
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
            # Without subscribing, as another program may need the only subscription.
            self._interface = self._client.ClientInterface(address, 0, device_id, perform_subscribe=False)
            self._info = self._interface.bfrt_info_get(P4_NAME)

    def close(self) -> None:
        self._interface.channel.close()

    @property
    def slots(self) -> int:
        return int(self._table("tags").info.size_get()) // self.jobs

    @property
    def jobs(self) -> int:
        """Number of places. The table ``jobs`` has twice as many entries, as retired jobs keep theirs for a while."""
        return int(self._table("jobs").info.size_get()) // 2

    # Tables

    def read_entries(self, table: str) -> list[Entry]:
        return [_entry_of(table, key, data) for key, data in self._get(self._table(table))]

    def read_default(self, table: str) -> Entry:
        with self._translated_errors():
            ((data, _),) = self._table(table).default_entry_get(self._target, _FROM_SOFTWARE, p4_name=P4_NAME)
        return _entry_of(table, {}, data.to_dict())

    def write_entry(self, entry: Entry, *, is_new: bool) -> None:
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
        for entry in some:
            self._delete(self._table(entry.table), entry.key)

    def read_groups(self) -> dict[int, frozenset[int]]:
        """Ports of the multicast groups. Each group has one node, with the same number."""
        ports = {
            key["$MULTICAST_NODE_ID"]["value"]: frozenset(data["$DEV_PORT"])
            for key, data in self._get(self._info.table_get("$pre.node"))
        }
        groups = (key["$MGID"]["value"] for key, _ in self._get(self._info.table_get("$pre.mgid")))
        return {group: ports[group] for group in groups if group in ports}

    def write_group(self, group: int, ports: frozenset[int], *, is_new: bool) -> None:
        nodes = self._info.table_get("$pre.node")
        tuple_of = self._client.DataTuple
        fields = tuple_of("$MULTICAST_RID", NODE_RID), tuple_of("$MULTICAST_LAG_ID", int_arr_val=[])
        node = nodes.make_data([*fields, tuple_of("$DEV_PORT", int_arr_val=sorted(ports))])
        # An interrupted call may have left a node without its group.
        has_node = any(key["$MULTICAST_NODE_ID"]["value"] == group for key, _ in self._get(nodes))
        with self._translated_errors():
            write = nodes.entry_mod if has_node else nodes.entry_add
            write(self._target, [self._key(nodes, {"$MULTICAST_NODE_ID": group})], [node], p4_name=P4_NAME)
            if is_new:
                groups = self._info.table_get("$pre.mgid")
                of_group = (
                    tuple_of("$MULTICAST_NODE_ID", int_arr_val=[group]),
                    tuple_of("$MULTICAST_NODE_L1_XID_VALID", bool_arr_val=[False]),
                    tuple_of("$MULTICAST_NODE_L1_XID", int_arr_val=[0]),
                )
                key = self._key(groups, {"$MGID": group})
                groups.entry_add(self._target, [key], [groups.make_data([*of_group])], p4_name=P4_NAME)

    def set_flood_group(self, ports: frozenset[int]) -> None:
        super().set_flood_group(ports)
        table = self._info.table_get("$pre.prune")
        with self._translated_errors():
            for port in sorted(ports):
                data = table.make_data([self._client.DataTuple("$DEV_PORT", int_arr_val=[port])])
                table.entry_add(self._target, [self._key(table, {"$MULTICAST_L2_XID": port})], [data], p4_name=P4_NAME)

    def delete_group(self, group: int) -> None:
        self._delete(self._info.table_get("$pre.mgid"), {"$MGID": group})
        self._delete(self._info.table_get("$pre.node"), {"$MULTICAST_NODE_ID": group})

    # Counters and slots

    def counters(self) -> dict[str, int]:
        """Counters, none of single jobs, and none of frames that are too short or too long."""
        found = {
            key["$COUNTER_INDEX"]["value"]: data["$COUNTER_SPEC_PKTS"]
            for key, data in self._get(self._table("outcomes"), flags=_FROM_HARDWARE)
        }
        lacking = {"DROPPED_RUNT", "DROPPED_LONG"}
        return {name: count for name, count in counters_of(found).items() if name not in lacking}

    def read_slots(self, place: int, slots: range) -> list[SlotView]:
        served = (entry for entry in self.read_entries("jobs") if entry.action == "serve")
        job = next((entry.data for entry in served if entry.data["place"] == place), None)
        if job is None:
            raise P4sgdError(f"no job is served in place {place}, so its slots cannot be seen")
        base = place * self.slots
        tags = self._registers("tags", "carried", base, slots)
        bitmaps = [self._registers(f"{name}_shards", "f1", base, slots) for name in ("aggregated", "acknowledged")]
        found = []
        for tag, aggregated, acknowledged in zip(tags, *bitmaps, strict=True):
            if tag % (1 << GENERATION_BITS) == job["generation"]:
                found.append(SlotView(tag >> GENERATION_BITS, aggregated, acknowledged))
            else:
                found.append(SlotView(job["before"], 0, 0))
        return found

    def _registers(self, name: str, field: str, base: int, slots: range) -> list[int]:
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
        """Read keys and data of a table's entries, of all or of those with given keys."""
        with self._translated_errors():
            try:
                got = list(table.entry_get(self._target, keys, flags, p4_name=P4_NAME))
            except self._client.BfruntimeReadWriteRpcException as error:
                reasons = [reason.canonical_code for _, reason in error.sub_errors_get()]
                if keys or reasons != [_NOT_FOUND]:
                    raise
                # An empty table is reported as an error.
                got = []
        return [(key.to_dict(), data.to_dict()) for data, key, *_ in got if data is not None]

    def _delete(self, table: Any, key: Any) -> None:
        with self._translated_errors():
            table.entry_del(self._target, [self._key(table, key)], p4_name=P4_NAME)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Turn errors of the client into `P4sgdError` with one line."""
        try:
            yield
        except self._client.BfruntimeRpcException as error:
            reasons = "; ".join(reason.message for _, reason in error.sub_errors_get())
            details = reasons or error.grpc_error_get().details()
            raise P4sgdError(f"the switch at {self._address} refuses: {details}") from error
        except RuntimeError as error:
            raise P4sgdError(f"the switch at {self._address} does not run {P4_NAME}: {error}") from error


def _entry_of(table: str, key: Mapping[str, Any], data: dict[str, Any]) -> Entry:
    """Convert an entry of the client, whose data include the action and whether it is the default."""
    action = data.pop("action_name").rpartition(".")[2]
    del data["is_default_entry"]
    return Entry(table, action, {name: value["value"] for name, value in key.items()}, data)
