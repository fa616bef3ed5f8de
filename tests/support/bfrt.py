"""A stand-in for `bfrt_grpc.client`, the client of the Tofino's SDE, that leads to an interpreted P4 program.

It has the calls that the controller makes, with the SDE's parameters and results: keys as dictionaries of "value",
register fields as lists by pipe, full names of actions, and errors for missing and for existing entries.
"""

import types

from support.p4 import unpruned

PIPES = 2


class BfruntimeRpcException(Exception):  # noqa: N818 - the SDE's name
    def __init__(self, code, message):
        super().__init__()
        self._error = types.SimpleNamespace(canonical_code=code, message=message)

    def sub_errors_get(self):
        return [(0, self._error)]

    def grpc_error_get(self):
        return types.SimpleNamespace(details=lambda: self._error.message)


class BfruntimeReadWriteRpcException(BfruntimeRpcException):
    pass


class Target:
    def __init__(self, device_id=0, pipe_id=0xFFFF, direction=0xFF, prsr_id=0xFF):
        assert pipe_id == 0xFFFF


class KeyTuple:
    def __init__(self, name, value=None):
        self.name, self.value = name, value


class DataTuple:
    def __init__(self, name, val=None, float_val=None, str_val=None, int_arr_val=None, bool_arr_val=None):
        self.name = name
        (self.value,) = (given for given in (val, int_arr_val, bool_arr_val) if given is not None)


class _Made:
    def __init__(self, content):
        self.content = content

    def to_dict(self):
        return dict(self.content)


class _Table:
    """Entries of a match table, or of the replication engine.

    ``from_hw``: where entries must be read: from the chip what packets change, from the driver what controllers write,
    as the chip may lack parameters that an action does not use.
    """

    from_hw = False

    def __init__(self, name, switch, size=0):
        self.name, self.switch = name, switch
        self.info = types.SimpleNamespace(size_get=lambda: size)

    def make_key(self, key_field_list_in):
        return _Made({field.name: {"value": field.value} for field in key_field_list_in})

    def make_data(self, data_field_list_in=(), action_name=None, get=False):
        fields = {field.name: field.value for field in data_field_list_in}
        return _Made({**fields, "action_name": action_name, "is_default_entry": False})

    def _write(self, kind, target, key_list, data_list, p4_name):
        assert p4_name == "p4sgd_tna"
        for index, key in enumerate(key_list):
            self.switch.on_write(f"{kind} {self.name}")
            known = self.entries()
            number = tuple(field["value"] for field in key.content.values())
            assert [*key.content] == self.key_names()
            if (number in known) == (kind == "add"):
                code, message = (6, "Already exists") if kind == "add" else (5, "Object not found")
                raise BfruntimeReadWriteRpcException(code, f"{message}, {self.name}")
            if kind == "del":
                self.remove(number)
            else:
                self.store(number, data_list[index].content)

    def entry_add(self, target, key_list=None, data_list=None, atomicity=None, p4_name=None):
        self._write("add", target, key_list, data_list, p4_name)

    def entry_mod(self, target, key_list=None, data_list=None, flags=None, atomicity=None, p4_name=None):
        self._write("mod", target, key_list, data_list, p4_name)

    def entry_del(self, target, key_list=None, atomicity=None, p4_name=None):
        self._write("del", target, key_list, None, p4_name)

    def entry_get(self, target, key_list=None, flags=None, required_data=None, handle=None, p4_name=None):
        assert p4_name == "p4sgd_tna"
        assert flags == {"from_hw": self.from_hw}
        known = self.entries()
        if not key_list and not known:
            raise BfruntimeReadWriteRpcException(5, "Object not found")
        wanted = [tuple(field["value"] for field in key.content.values()) for key in key_list or ()]
        for number in wanted or known:
            key = {name: {"value": value} for name, value in zip(self.key_names(), number, strict=True)}
            yield _Made(known[number]), _Made(key)


class _MatchTable(_Table):
    @property
    def _table(self):
        return self.switch.program.tables[self.name]

    def key_names(self):
        return self._table.key_names

    def entries(self):
        return {key: self._shown(*entry) for key, entry in self._table.entries.items() if key}

    def _shown(self, action, values, is_default=False):
        return {
            **dict(zip(self._table.action_bits[action], values, strict=True)),
            "action_name": f"SwitchIngress.{action}",
            "is_default_entry": is_default,
        }

    def remove(self, number):
        del self._table.entries[number]

    def store(self, number, content):
        owner, _, action = content["action_name"].rpartition(".")
        assert owner == "SwitchIngress"
        names = self._table.action_bits[action]
        assert set(content) == {*names, "action_name", "is_default_entry"}
        self._table.entries[number] = action, [content[name] for name in names]

    def default_entry_set(self, target, data, p4_name=None):
        self.store((), data.content)

    def default_entry_get(self, target, flags=None, required_data=None, p4_name=None):
        assert p4_name == "p4sgd_tna"
        assert flags == {"from_hw": self.from_hw}
        yield _Made(self._shown(*self._table.default_entry(), is_default=True)), None


class _Replication(_Table):
    def __init__(self, name, switch, key, fields):
        super().__init__(name, switch)
        self._key, self._fields, self.known = key, fields, {}

    def key_names(self):
        return [self._key]

    def entries(self):
        return self.known

    def remove(self, number):
        del self.known[number]

    def store(self, number, content):
        assert set(content) == {*self._fields, "action_name", "is_default_entry"}
        self.known[number] = content


class _Prune(_Replication):
    """A table that has all its entries from the start: adding one sets it."""

    def _write(self, kind, target, key_list, data_list, p4_name):
        assert kind == "add"
        for key, data in zip(key_list, data_list, strict=True):
            number = key.content[self._key]["value"]
            assert number < 288, "beyond four pipes with 72 ports each"
            self.store((number,), data.content)


class _Register(_Table):
    """A register array. Its values in the first pipe are those of the program."""

    from_hw = True

    def __init__(self, name, switch, fields):
        self._register = switch.program.scope(())[name]
        super().__init__(name, switch, self._register["size"])
        self._fields = fields

    def key_names(self):
        return ["$REGISTER_INDEX"]

    def entries(self):
        return {
            (index,): {
                f"SwitchIngress.{self.name}.{field}": [self._register.get((index, number), 0)] + [77] * (PIPES - 1)
                for number, field in enumerate(self._fields)
            }
            for index in range(self._register["size"])
        }


class _Counter(_Table):
    from_hw = True

    def key_names(self):
        return ["$COUNTER_INDEX"]

    def entries(self):
        return {(index,): {"$COUNTER_SPEC_PKTS": self.switch.program.counts[index]} for index in range(32)}


class Switch:
    """A switch. `module` makes the client that controls it.

    ``on_write``: called before every write, with its kind and table.
    """

    def __init__(self, program):
        self.program = program
        self.on_write = lambda what: None
        self.nodes = _Replication(
            "node", self, "$MULTICAST_NODE_ID", ["$MULTICAST_RID", "$MULTICAST_LAG_ID", "$DEV_PORT"]
        )
        fields = ["$MULTICAST_NODE_ID", "$MULTICAST_NODE_L1_XID_VALID", "$MULTICAST_NODE_L1_XID"]
        self.groups = _Replication("mgid", self, "$MGID", fields)
        self.pruned = _Prune("prune", self, "$MULTICAST_L2_XID", ["$DEV_PORT"])
        self._tables = {
            "$pre.prune": self.pruned,
            "$pre.node": self.nodes,
            "$pre.mgid": self.groups,
            "SwitchIngress.outcomes": _Counter("outcomes", self),
        }
        for name, table in program.tables.items():
            self._tables[f"SwitchIngress.{name}"] = _MatchTable(name, self, table.size)
        for name, parts in {
            "tags": ["carried", "first"],
            "aggregated_shards": ["f1"],
            "acknowledged_shards": ["f1"],
        }.items():
            self._tables[f"SwitchIngress.{name}"] = _Register(name, self, parts)

    def table_get(self, name):
        return self._tables[name]

    def ports_of(self, group):
        """Ports of a multicast group."""
        (node,) = self.groups.known[(group,)]["$MULTICAST_NODE_ID"]
        return self.nodes.known[(node,)]["$DEV_PORT"]

    def forward(self, frame, port):
        """Frames that leave the switch when a frame comes in, each with its port."""
        return self.program.forward(frame, port, self._copies)

    def _copies(self, group):
        (number,) = self.groups.known[(group,)]["$MULTICAST_NODE_ID"]
        node = self.nodes.known[(number,)]
        pruned = self.pruned.known.get((group.exclusion,), {"$DEV_PORT": []})
        return unpruned(group, node["$DEV_PORT"], node["$MULTICAST_RID"], pruned["$DEV_PORT"])

    def module(self):
        """A module like the SDE's client."""
        switch = self

        class ClientInterface:
            def __init__(
                self,
                grpc_addr,
                client_id,
                device_id,
                notifications=None,
                timeout=1,
                num_tries=5,
                perform_subscribe=True,
            ):
                assert not perform_subscribe
                self.channel = types.SimpleNamespace(close=lambda: None)

            def bfrt_info_get(self, p4_name=None):
                if p4_name != "p4sgd_tna":
                    raise RuntimeError("BF_RT_INFO not received")
                return switch

        made = types.ModuleType("bfrt_grpc.client")
        made.ClientInterface = ClientInterface
        for each in (BfruntimeRpcException, BfruntimeReadWriteRpcException, Target, KeyTuple, DataTuple):
            setattr(made, each.__name__, each)
        return made
