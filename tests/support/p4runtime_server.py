"""A P4Runtime server for an interpreted P4 program, as strict about requests as the specification."""

import queue
import threading
from concurrent import futures

import grpc
from finsy.proto import p4i, p4r, p4r_grpc, rpc_code, rpc_status

from support.p4 import Program

CPU_PORT = 510


def p4info_of(program: Program) -> p4i.P4Info:
    """P4Info of a program's tables, registers and counters, as a compiler would write it."""
    info = p4i.P4Info(pkg_info=p4i.PkgInfo(arch="v1model"))
    actions: dict[str, int] = {}

    def preamble(number, kind, name):
        return p4i.Preamble(id=kind << 24 | number, name=name, alias=name.rpartition(".")[2])

    for number, (label, table) in enumerate(program.tables.items(), 1):
        described = info.tables.add(preamble=preamble(number, 0x02, table.name), size=table.size)
        for field, (name, expression) in enumerate(zip(table.key_names, table.keys, strict=True)):
            described.match_fields.add(
                id=field + 1,
                name=name or expression[2],
                bitwidth=table.key_bits[field],
                match_type=p4i.MatchField.EXACT,
            )
        for action in table.actions:
            if action not in actions:
                actions[action] = 0x01 << 24 | len(actions) + 1
                stated = info.actions.add()
                prefix = "" if action == "NoAction" else table.name.removesuffix(label)
                stated.preamble.CopyFrom(preamble(len(actions), 0x01, prefix + action))
                for index, (name, bits) in enumerate(table.action_bits.get(action, {}).items(), 1):
                    stated.params.add(id=index, name=name, bitwidth=bits)
            described.action_refs.add(id=actions[action])
    counter = info.counters.add(size=program.sizes["outcomes"])
    counter.preamble.CopyFrom(preamble(1, 0x12, "SwitchIngress.outcomes"))
    counter.spec.unit = p4i.CounterSpec.PACKETS
    register = info.registers.add(size=program.sizes["rounds"])
    register.preamble.CopyFrom(preamble(1, 0x16, "SwitchIngress.slots.rounds"))
    register.type_spec.bitstring.bit.bitwidth = 32
    return info


class RefusedError(Exception):
    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class P4RuntimeServer(p4r_grpc.P4RuntimeServicer):
    """A server that runs ``program`` once a pipeline is set, on a free port of this machine.

    ``writes``: updates in order, such as "INSERT jobs"; ``on_write``: called after every update that was carried out;
    ``on_packet``: called before a packet-out is processed; ``lose``: number of packet-outs to lose first; ``left``:
    packet-ins sent so far; ``late``: packet-ins to send before the answer to the next packet-out.
    """

    def __init__(self, program: Program, *, credentials=None, has_pipeline=True, has_cpu_port=True):
        self.program = program
        self.info = p4info_of(program)
        self.config = p4r.ForwardingPipelineConfig(p4info=self.info) if has_pipeline else None
        self.writes = []
        self.on_write = self.on_packet = lambda: None
        self.lose = 0
        self.left, self.late = [], []
        self.groups = {}
        self._has_cpu_port = has_cpu_port
        self._tables = {table.preamble.id: table for table in self.info.tables}
        self._actions = {action.preamble.id: action for action in self.info.actions}
        self._elections = {}  # numbers and queues of answers, by stream
        self._highest = 0
        self._lock = threading.Lock()
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        p4r_grpc.add_P4RuntimeServicer_to_server(self, self._server)
        address = "localhost:0"
        port = (
            self._server.add_secure_port(address, credentials)
            if credentials
            else self._server.add_insecure_port(address)
        )
        self.address = f"localhost:{port}"
        self._server.start()

    def forward(self, frame, port):
        """Frames that leave the switch when a frame comes in, each with its port."""
        with self._lock:
            return self.program.forward(frame, port, lambda group: self.groups.get(group, []))

    def stop(self):
        self._server.stop(None).wait()

    # The stream

    def StreamChannel(self, requests, context):
        answers = queue.SimpleQueue()
        mine = object()

        def take():
            try:
                for request in requests:
                    self._take(request, mine, answers)
            except Exception:  # the client went away
                pass
            finally:
                self._elections.pop(mine, None)
                answers.put(None)

        threading.Thread(target=take, daemon=True).start()
        yield from iter(answers.get, None)

    def _take(self, request, mine, answers):
        if request.WhichOneof("update") == "arbitration":
            asked = request.arbitration.election_id
            self._elections[mine] = asked.high << 64 | asked.low, answers
            self._highest = max(self._highest, self._elections[mine][0])
            for other, (number, its_answers) in list(self._elections.items()):  # a new primary is announced to all
                if other is mine or self._is_primary(mine):
                    answer = p4r.StreamMessageResponse(arbitration=request.arbitration)
                    answer.arbitration.status.code = rpc_code.OK if number == self._highest else rpc_code.ALREADY_EXISTS
                    its_answers.put(answer)
            return
        self.on_packet()
        if not self._is_primary(mine):
            return
        if self.lose:
            self.lose -= 1
        elif self._has_cpu_port:
            with self._lock:
                left = self.program.receive(request.packet.payload, CPU_PORT)
            if left and left[1] == CPU_PORT:
                self.left.append(left[0])
                for frame in (*self.late, left[0]):
                    answers.put(p4r.StreamMessageResponse(packet=p4r.PacketIn(payload=frame)))
                self.late = []

    def _is_primary(self, stream):
        return stream in self._elections and self._elections[stream][0] == self._highest

    def _check_primary(self, request, context):
        number = request.election_id.high << 64 | request.election_id.low
        if number not in [known for known, _ in self._elections.values()] or number != self._highest:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "Not primary")

    # Requests

    def GetForwardingPipelineConfig(self, request, context):
        if self.config is None:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "No forwarding pipeline config set for this device.")
        return p4r.GetForwardingPipelineConfigResponse(config=self.config)

    def SetForwardingPipelineConfig(self, request, context):
        self._check_primary(request, context)
        self.config = request.config
        return p4r.SetForwardingPipelineConfigResponse()

    def Write(self, request, context):
        self._check_primary(request, context)
        problems = []
        with self._lock:
            for update in request.updates:
                try:
                    self._update(update)
                    problems.append(p4r.Error(canonical_code=rpc_code.OK))
                except RefusedError as error:
                    problems.append(p4r.Error(canonical_code=error.code, message=str(error)))
        if any(problem.canonical_code for problem in problems):
            status = rpc_status.Status(code=rpc_code.UNKNOWN)
            for problem in problems:
                status.details.add().Pack(problem)
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            context.abort(grpc.StatusCode.UNKNOWN, "one or more updates failed")
        return p4r.WriteResponse()

    def _update(self, update):
        kind = p4r.Update.Type.Name(update.type)
        match update.entity.WhichOneof("entity"):
            case "table_entry":
                entry = update.entity.table_entry
                table = self._tables[entry.table_id]
                self.writes.append(f"{kind} {table.preamble.alias}")
                entries = self.program.tables[table.preamble.alias].entries
                key = self._key(table, entry)
                if entry.is_default_action and (kind != "MODIFY" or key):
                    raise RefusedError(rpc_code.INVALID_ARGUMENT, "a default action can only be modified")
                if not entry.is_default_action and not key:
                    raise RefusedError(rpc_code.INVALID_ARGUMENT, "no key")
                is_there = key in entries or entry.is_default_action
                self._check_presence(kind, is_there)
                if kind == "DELETE":
                    del entries[key]
                else:
                    if not is_there and len(entries) == table.size:
                        raise RefusedError(rpc_code.RESOURCE_EXHAUSTED, "the table is full")
                    entries[key] = self._action(table, entry.action.action)
            case "packet_replication_engine_entry":
                group = update.entity.packet_replication_engine_entry.multicast_group_entry
                self.writes.append(f"{kind} group")
                self._check_presence(kind, group.multicast_group_id in self.groups)
                if kind == "DELETE":
                    del self.groups[group.multicast_group_id]
                else:
                    self.groups[group.multicast_group_id] = [replica.egress_port for replica in group.replicas]
            case other:
                raise RefusedError(rpc_code.UNIMPLEMENTED, other)
        self.on_write()

    @staticmethod
    def _check_presence(kind, is_there):
        if kind == "INSERT" and is_there:
            raise RefusedError(rpc_code.ALREADY_EXISTS, "Match entry exists")
        if kind != "INSERT" and not is_there:
            raise RefusedError(rpc_code.NOT_FOUND, "Cannot find match entry")

    @staticmethod
    def _number(value, bits):
        number = int.from_bytes(value, "big")
        if not value or number >= 1 << bits:
            raise RefusedError(rpc_code.OUT_OF_RANGE, f"{value!r} does not fit {bits} bits")
        return number

    def _key(self, table, entry):
        given = {match.field_id: match.exact.value for match in entry.match}
        if set(given) != {field.id for field in table.match_fields} and given:
            raise RefusedError(rpc_code.INVALID_ARGUMENT, "not all fields of the key")
        return tuple(self._number(given[field.id], field.bitwidth) for field in table.match_fields if given)

    def _action(self, table, action):
        if action.action_id not in {reference.id for reference in table.action_refs}:
            raise RefusedError(rpc_code.INVALID_ARGUMENT, "not an action of the table")
        described = self._actions[action.action_id]
        given = {parameter.param_id: parameter.value for parameter in action.params}
        if set(given) != {parameter.id for parameter in described.params}:
            raise RefusedError(rpc_code.INVALID_ARGUMENT, "not all parameters of the action")
        values = [self._number(given[parameter.id], parameter.bitwidth) for parameter in described.params]
        return described.preamble.alias, values

    def Read(self, request, context):
        response = p4r.ReadResponse()
        with self._lock:
            for entity in request.entities:
                response.entities.extend(self._entities(entity))
        yield response

    def _entities(self, entity):
        match entity.WhichOneof("entity"):
            case "table_entry":
                table = self._tables[entity.table_entry.table_id]
                by_name = {action.preamble.alias: action for action in self.info.actions}
                known = self.program.tables[table.preamble.alias]
                entries = {(): known.default_entry()} if entity.table_entry.is_default_action else known.entries
                for key, (name, values) in entries.items():
                    found = p4r.TableEntry(table_id=table.preamble.id, is_default_action=not key)
                    for field, value in zip(table.match_fields, key, strict=False):
                        found.match.add(field_id=field.id).exact.value = _bytes(value)
                    found.action.action.action_id = by_name[name].preamble.id
                    for parameter, value in zip(by_name[name].params, values, strict=True):
                        found.action.action.params.add(param_id=parameter.id, value=_bytes(value))
                    yield p4r.Entity(table_entry=found)
            case "packet_replication_engine_entry":
                for group, ports in self.groups.items():
                    found = p4r.MulticastGroupEntry(multicast_group_id=group)
                    for port in ports:
                        found.replicas.add(egress_port=port)
                    engine = p4r.PacketReplicationEngineEntry(multicast_group_entry=found)
                    yield p4r.Entity(packet_replication_engine_entry=engine)
            case "counter_entry":
                for index in range(self.info.counters[0].size):
                    counter = p4r.CounterEntry(counter_id=entity.counter_entry.counter_id, index=p4r.Index(index=index))
                    counter.data.CopyFrom(p4r.CounterData(packet_count=self.program.counts[index]))
                    yield p4r.Entity(counter_entry=counter)


def _bytes(value):
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")
