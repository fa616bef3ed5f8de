"""The controller of a BMv2 switch, over P4Runtime.

A client becomes the primary, which may write, only for as long as it writes, by using a higher election number than any
client before it. So several programs can use one switch in turn, such as a training and a status display. A client that
loses the right to write half way starts again.

Importing this module raises `UserError` if a package that it needs is not installed.
"""

import queue
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from p4sgd.host.aggregators.cluster_file import Tls
from p4sgd.host.aggregators.controller import SlotView
from p4sgd.host.aggregators.tables import Entry, Program, TableController
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.files import open_ordinary
from p4sgd.hw.spec.aggregator import OUTCOME_BITS, counters_by_place
from p4sgd.hw.spec.job import Job
from p4sgd.hw.spec.packet import BROADCAST, VALUES, EchoValue, MalformedPacketError, Packet, PacketType

try:
    import finsy
    import grpc
    from finsy.proto import p4r, p4r_grpc, rpc_code, rpc_status
    from google.protobuf import text_format
except ModuleNotFoundError as missing:
    raise UserError(f"BMv2 needs {missing.name}, which is not installed: pip install 'p4sgd[p4runtime]'") from missing


_T = TypeVar("_T")

_TIMEOUT_S = 10.0

_CONTEST_S = 30.0  # longest time to compete with other programs for the right to write
_LONGEST_PAUSE_S = 0.5  # upper bound of the random pause after another program has taken the right to write
_PROBES = 64  # probes in flight at a time
_PROBE_S = 1.0  # time without any answer after which all probes in flight are sent again

_PROBE_TRIES = 5

_PROBER_MAC = 0x0250_3453_4701
"""Source address of probes. It may be any, as answers go to the port that a probe came in by."""


class _RightLostError(P4sgdError):
    """Another program has taken the right to write."""


class P4RuntimeController(TableController):
    """Controller of a switch that runs ``p4sgd_v1model.p4``.

    Every call raises `P4sgdError` if the switch cannot be reached, refuses, or does not run the program. ``address`` is
    HOST:PORT of the switch's gRPC server, ``device_id`` P4Runtime's number of the device; raises `UserError` if a file
    for TLS cannot be read.
    """

    parents = True

    def __init__(self, address: str, *, device_id: int = 0, tls: Tls | None = None) -> None:
        self._address = address
        self._device_id = device_id
        self._channel = (
            grpc.insecure_channel(address) if tls is None else grpc.secure_channel(address, _credentials(tls))
        )
        self._stub = p4r_grpc.P4RuntimeStub(self._channel)
        self._known_schema: finsy.P4Schema | None = None
        self._stream: _Stream | None = None

    def close(self) -> None:
        self._channel.close()

    # The program

    def deploy(self, program: Program) -> None:
        """Load a program into the switch, which forgets all jobs."""
        try:
            schema = finsy.P4Schema(program.p4info, program.config)
        except (ValueError, text_format.ParseError) as error:
            raise UserError(f"{program.p4info}: not the output of a P4 compiler: {error}") from error

        def act() -> None:
            request = p4r.SetForwardingPipelineConfigRequest(
                device_id=self._device_id,
                election_id=self._election_id,
                action=p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
                config=schema.get_pipeline_config(),
            )
            self._call(self._stub.SetForwardingPipelineConfig, request)

        self.change(act)
        self._known_schema = schema

    @property
    def _schema(self) -> "finsy.P4Schema":
        if self._known_schema is None:
            request = p4r.GetForwardingPipelineConfigRequest(
                device_id=self._device_id,
                response_type=p4r.GetForwardingPipelineConfigRequest.P4INFO_AND_COOKIE,
            )
            p4info = self._call(self._stub.GetForwardingPipelineConfig, request).config.p4info
            names = {table.preamble.alias for table in p4info.tables}
            if not {"jobs", "members", "own", "parents"} <= names:
                what = "another program" if names else "no program"
                raise P4sgdError(f"the switch at {self._address} runs {what}: p4sgd switch deploy loads P4SGD's")
            self._known_schema = finsy.P4Schema(p4info)
        return self._known_schema

    @property
    def slots(self) -> int:
        return self._schema.registers["rounds"].size // self.jobs

    @property
    def jobs(self) -> int:
        return (self._schema.counters["outcomes"].size >> OUTCOME_BITS) - 1

    # Tables

    def read_entries(self, table: str) -> list[Entry]:
        found = self._read(finsy.P4TableEntry(table))
        return [_entry_of(table, entry) for entry in found if not entry.is_default_action]

    def read_default(self, table: str) -> Entry:
        (found,) = self._read(finsy.P4TableEntry(table, is_default_action=True))
        return _entry_of(table, found)

    def write_entry(self, entry: Entry, *, is_new: bool) -> None:
        described = finsy.P4TableEntry(
            entry.table,
            match=finsy.P4TableMatch(entry.key),
            action=finsy.P4TableAction(entry.action, **entry.data),
            is_default_action=not entry.key,
        )
        self._write([+described if is_new else ~described])

    def delete_entries(self, some: Iterable[Entry]) -> None:
        self._write([-finsy.P4TableEntry(entry.table, match=finsy.P4TableMatch(entry.key)) for entry in some])

    def read_groups(self) -> dict[int, frozenset[int]]:
        return {
            entry.multicast_group_id: frozenset(entry.replicas) for entry in self._read(finsy.P4MulticastGroupEntry())
        }

    def write_group(self, group: int, ports: frozenset[int], *, is_new: bool) -> None:
        described = finsy.P4MulticastGroupEntry(group, replicas=sorted(ports))
        self._write([+described if is_new else ~described])

    def delete_group(self, group: int) -> None:
        self._write([-finsy.P4MulticastGroupEntry(group)])

    def counters(self) -> dict[str, int]:
        found = Counter({entry.index: entry.packet_count for entry in self._read(finsy.P4CounterEntry("outcomes"))})
        return counters_by_place(found, self.jobs, parents=True)

    def _read(self, what: Any) -> list[Any]:
        request = p4r.ReadRequest(device_id=self._device_id, entities=[what.encode(self._schema)])
        responses = self._call(lambda *args, **options: list(self._stub.Read(*args, **options)), request)
        return [type(what).decode(entity, self._schema) for response in responses for entity in response.entities]

    def _write(self, updates: list[Any]) -> None:
        if updates:
            request = p4r.WriteRequest(
                device_id=self._device_id,
                election_id=self._election_id,
                updates=[update.encode_update(self._schema) for update in updates],
            )
            self._call(self._stub.Write, request)

    # The right to write

    @property
    def _election_id(self) -> "p4r.Uint128":
        assert self._stream is not None, "not within change()"
        return self._stream.election_id

    def change(self, act: Callable[[], _T]) -> _T:
        """Call a function with the right to write, again whenever another program has taken it, for up to 30 s."""
        end = time.monotonic() + _CONTEST_S
        while True:
            try:
                with self._writing():
                    return act()
            except _RightLostError:
                if time.monotonic() > end:
                    raise
            time.sleep(random.uniform(0, _LONGEST_PAUSE_S))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the right to write within the block, unless another program takes it."""
        stream = _Stream(self._stub)
        try:
            self._become_primary(stream)
            self._stream = stream
            yield
        except grpc.RpcError as error:
            raise self._failure(error) from error
        finally:
            self._stream = None
            stream.close()

    def _become_primary(self, stream: "_Stream") -> None:
        arbitration = p4r.MasterArbitrationUpdate(device_id=self._device_id, election_id=stream.election_id)
        stream.send(p4r.StreamMessageRequest(arbitration=arbitration))
        response = stream.receive(_TIMEOUT_S)
        if response is None:
            raise P4sgdError(f"the switch at {self._address} does not answer within {_TIMEOUT_S:.0f} s")
        self._check_primary(response)

    def _check_primary(self, response: "p4r.StreamMessageResponse") -> None:
        """Raise if a message says that another program has become the primary, which a switch tells all clients."""
        if response.WhichOneof("update") == "arbitration" and response.arbitration.status.code != rpc_code.OK:
            raise _RightLostError(f"the switch at {self._address} is controlled by another program")

    # Slots

    def read_slots(self, place: int, slots: range) -> list[SlotView]:
        """Probe slots by packets through the CPU port, as the switch's P4Runtime server cannot read registers."""
        job = self.served().get(place)
        if job is None:
            raise P4sgdError(f"no job is served in place {place}, so its slots cannot be seen")
        number = secrets.randbits(31)  # so that echoes of other readings are ignored
        waiting = {slot: _probe(job, slot, number) for slot in slots}
        found: dict[int, SlotView] = {}
        self.change(partial(self._probe_all, waiting, job.number, number, found))
        return [found[slot] for slot in slots]

    def _probe_all(self, waiting: dict[int, bytes], job: int, number: int, found: dict[int, SlotView]) -> None:
        """Send the probes in ``waiting``, by slot, until all are answered, and move answered ones to ``found``."""
        assert self._stream is not None
        tries = 0
        while waiting:
            if tries == _PROBE_TRIES:
                raise P4sgdError(f"the switch at {self._address} does not answer probes: start it with --cpu-port 510")
            under_way = dict(list(waiting.items())[:_PROBES])
            for frame in under_way.values():
                self._stream.send(p4r.StreamMessageRequest(packet=p4r.PacketOut(payload=frame)))
            tries += 1
            while under_way and (response := self._stream.receive(_PROBE_S)) is not None:
                self._check_primary(response)
                echo = _echo_of(response, job, number)
                if echo is not None and under_way.pop(echo.slot, b""):
                    del waiting[echo.slot]
                    acknowledged = echo.values[EchoValue.ACKNOWLEDGED] & 0xFFFF_FFFF
                    found[echo.slot] = SlotView(echo.round, echo.bitmap, acknowledged)
                    tries = 0

    # Failures

    def _call(self, method: Any, request: Any) -> Any:
        try:
            return method(request, timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            raise self._failure(error) from error

    def _failure(self, error: "grpc.RpcError") -> P4sgdError:
        assert isinstance(error, grpc.Call)
        code, details = error.code(), error.details() or ""
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return P4sgdError(f"the switch at {self._address} cannot be reached: {details}")
        if code is grpc.StatusCode.FAILED_PRECONDITION:
            return P4sgdError(f"the switch at {self._address} runs no program: p4sgd switch deploy loads P4SGD's")
        if code is grpc.StatusCode.PERMISSION_DENIED:
            return _RightLostError(f"the switch at {self._address} is controlled by another program: {details}")
        reasons = "; ".join(_reasons(error)) or details
        return P4sgdError(f"the switch at {self._address} refuses, {code.name}: {reasons}")


class _Stream:
    """The stream channel to a switch. The right to write lasts as long as it is open."""

    def __init__(self, stub: "p4r_grpc.P4RuntimeStub") -> None:
        self.election_id = p4r.Uint128(low=time.time_ns())
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._responses: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._call = stub.StreamChannel(iter(self._requests.get, None))
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            for response in self._call:
                self._responses.put(response)
        except grpc.RpcError as error:
            self._responses.put(error)

    def send(self, message: "p4r.StreamMessageRequest") -> None:
        self._requests.put(message)

    def receive(self, timeout_s: float) -> "p4r.StreamMessageResponse | None":
        """The next message; None if none comes in time."""
        try:
            response = self._responses.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(response, grpc.RpcError):
            raise response
        assert isinstance(response, p4r.StreamMessageResponse)
        return response

    def close(self) -> None:
        self._requests.put(None)
        self._call.cancel()


def _entry_of(table: str, found: "finsy.P4TableEntry") -> Entry:
    action = found.action
    assert isinstance(action, finsy.P4TableAction)
    return Entry(table, action.name, dict(found.match or {}), dict(action.args))


def _probe(job: Job, slot: int, number: int) -> bytes:
    return Packet(
        type=PacketType.PROBE,
        job=job.number,
        slot=slot,
        round=0,
        shard=0,
        workers=len(job.members),
        bitmap=1,
        values=(number, *[0] * (VALUES - 1)),
        destination=BROADCAST,
        source=_PROBER_MAC,
    ).to_bytes()


def _echo_of(response: "p4r.StreamMessageResponse", job: int, number: int) -> Packet | None:
    """The ECHO in a message, if it answers a probe of this job and number."""
    if response.WhichOneof("update") != "packet":
        return None
    try:
        packet = Packet.from_bytes(response.packet.payload)
    except MalformedPacketError:
        return None
    is_it = packet.type is PacketType.ECHO and packet.job == job and packet.values[EchoValue.NUMBER] == number
    return packet if is_it else None


def _reasons(error: "grpc.Call") -> list[str]:
    """Messages about the failed updates of a write request."""
    found = []
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in rpc_status.Status.FromString(value).details:
                reason = p4r.Error()
                if detail.Unpack(reason) and reason.canonical_code != rpc_code.OK:
                    found.append(reason.message)
    return found


def _credentials(tls: Tls) -> "grpc.ChannelCredentials":
    paths = (tls.ca, tls.key, tls.certificate)
    return grpc.ssl_channel_credentials(*(None if path is None else _read(path) for path in paths))


def _read(path: Path) -> bytes:
    try:
        with open_ordinary(path) as file:
            return file.read()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
