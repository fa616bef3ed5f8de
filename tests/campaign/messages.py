r"""Damaged frames and requests: servers refuse or drop them, agree on them, and change nothing because of them.

    python tests/campaign/messages.py [--runs 1000000] [--seed 0] [--jobs 2] [--only SEED]

A seed stands for a hundred messages of one kind. Frames go to the compiled aggregator and to the model, which must
answer alike, and to a worker's endpoint; one of version 2 that differs by up to three bits must change no sum.
Requests go to the methods of an aggregator and of a worker, and bytes to the reader of messages.
"""

import json
import random
import socket
import sys
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from p4sgd.host.errors import UserError
from p4sgd.host.rpc.address import ControlAddress, ControlListener
from p4sgd.host.rpc.message import RefusedError, receive
from p4sgd.host.serve.aggregator import Requests
from p4sgd.host.serve.worker import WorkerServer, cycles_now
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.packet import PacketType, key_in_round
from p4sgd.sim.emulator import EmulatorError
from p4sgd.sim.emulator.networked import NetworkedWorker
from p4sgd.sim.network.batch import BatchAggregator
from p4sgd.sim.network.endpoint import Endpoint

sys.path.append(str(Path(__file__).parents[1]))  # as pytest does

from campaign.damage import damaged
from campaign.runner import Outcome, main
from support.aggregator_model import Aggregator
from support.batch import answers_of
from support.switch import MAC, from_worker, job_of, worker_mac
from support.worker_process import PairLink

MESSAGES = 100
FIGURES = ("frames", "dropped", "up to three bits", "requests", "refused", "streams", "no messages", "failures")
KEY = 0x0123_4567_89AB_CDEF
SLOTS = 2


def frames(rng: random.Random, counts: Counter[str]) -> str:
    """Into a job of two workers: what leads a slot on, and in half of all cases damage to it."""
    most, first = rng.choice((0, 3)), rng.choice((1, 65535, 65536 + 7))
    job = job_of(2, key=KEY if most else None)
    model, batch = (kind(SLOTS, mac=MAC, most=most) for kind in (Aggregator, BatchAggregator))
    end = Endpoint(SLOTS, shard=0, workers=2, job=1, peer_mac=MAC, key=job.key, most=most, local_mac=worker_mac(0))
    model.begin(0, job, first)
    batch.begin(0, job, first)
    before = b""
    for _ in range(MESSAGES):
        slot, shard = rng.randrange(SLOTS), rng.randrange(2)
        now = model.slots[0][slot]
        ahead = int(now.acknowledged == 0b11 or not now.aggregated)
        kind = PacketType.PARTIAL if ahead or now.aggregated != 0b11 else PacketType.ACK
        round_ = now.wraps * 65536 + now.round + ahead
        key = key_in_round(KEY, round_) if most else None
        values = [rng.randrange(-9, 9)] * 8 if kind is PacketType.PARTIAL or not most else []
        frame = from_worker(kind, slot, round_ % 65536, shard, 2, values, key=key).to_bytes()
        bits, whole = 0, frame
        if rng.random() < 0.25 and most:
            bits, changed = rng.randint(1, 3), bytearray(frame)
            for place in rng.sample(range(8 * 14, 8 * len(frame)), bits):
                changed[place // 8] ^= 1 << place % 8
            frame = bytes(changed)
        elif rng.random() < 0.4:
            frame = damaged(rng, frame, before or frame)
        state = batch.read_slots(0, range(SLOTS)), batch._state.sums.tobytes()
        answer = model.receive_frame(frame, shard)
        found = answers_of(batch, [frame], shard)
        if found != ([(answer.packet.to_bytes(), answer.ports)] if answer else []):
            return f"the aggregators differ on {frame.hex()}"
        if bits and state != (batch.read_slots(0, range(SLOTS)), batch._state.sums.tobytes()):
            return f"{bits} bits of {whole.hex()} change a slot: {frame.hex()}"
        end.receive_frame(frame, 0)
        end.receive_frame(damaged(rng, found[0][0] if found else frame, frame), 0)
        counts += Counter({"frames": 1, "up to three bits": int(bits > 0)})
        before = frame
    if (seen := batch.counters()) != model.counters() | {name: seen[name] for name in seen.keys() - model.counters()}:
        return "the aggregators count differently"
    counts["dropped"] += sum(count for name, count in seen.items() if name.startswith("DROPPED"))
    return ""


JUNK = (None, True, -1, 0, 1, 7, 1 << 31, 1 << 48, 1 << 64, -(1 << 70), 0.5, "", "x", "begin", [], {}, [[]], {"mac": 1})


def mutated(rng: random.Random, value: Any) -> Any:
    """A JSON document with something else somewhere."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.15:
        return rng.choice(JUNK)
    if isinstance(value, list):
        place = rng.randrange(len(value))
        return [*value[:place], *([mutated(rng, value[place])] * rng.choice((0, 1, 1, 2))), *value[place + 1 :]]
    name = rng.choice(list(value))
    changed = {key: each for key, each in value.items() if key != name}
    return changed | {rng.choice((name, name, name, "do", "place", "other")): mutated(rng, value[name])}


JOB = msgspec.to_builtins(job_of(2))
OF_AGGREGATOR = [
    {"do": "begin", "place": 0, "job": JOB, "first_round": 1},
    *({"do": do} for do in ("size", "served", "counters")),
    *({"do": do, "place": 0} for do in ("end", "promote")),
    {"do": "set_mac", "mac": 5},
    {"do": "promote", "place": 0, "shard": 1},
    {"do": "read_slots", "place": 0, "first": 0, "count": 2},
]
OF_WORKER = [
    {"do": "read_registers", "offsets": [0, 4, 8]},
    {"do": "write_registers", "words": [[16, 5], [20, 6]]},
    {"do": "read_memory", "bank": 0, "address": 0, "size": 8},
    {"do": "prepare_write", "bank": 0, "address": 8, "size": 64},
    {"do": "write_memory", "bank": 0, "address": 0, "size": 8},
    {"do": "await_end", "within_ms": 0},
]


@cache
def worker_methods() -> Any:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    link = PairLink(near)
    worker = NetworkedWorker(WorkerConfig.tiny(), link.send, cycles_now)
    with tempfile.TemporaryDirectory() as folder:  # nobody connects
        server = WorkerServer(worker, link, ControlListener(ControlAddress(path=Path(folder, "control"))), 1 << 20)
    return server._control._methods, (server, far)


def requests(rng: random.Random, counts: Counter[str]) -> str:
    """To an aggregator or a worker."""
    links = {"a": PairLink(socket.socketpair()[0]), "b": PairLink(socket.socketpair()[0])}
    of_aggregator = Requests(BatchAggregator(SLOTS, jobs=2), links, slots=SLOTS, places=2).methods
    for _ in range(MESSAGES):
        methods, good = rng.choice(((of_aggregator, OF_AGGREGATOR), (worker_methods()[0], OF_WORKER)))
        request = rng.choice(good)
        for _ in range(rng.randint(0, 3)):
            request = mutated(rng, request)
        counts["requests"] += 1
        if isinstance(request, dict):  # of others the reader of messages tells
            try:
                result = methods.call(dict(request), np.arange(8, dtype=np.uint8))
                if methods is of_aggregator:
                    json.dumps(result)
            except (RefusedError, EmulatorError, UserError, ValueError):
                counts["refused"] += 1
            except Exception as error:
                return f"{type(error).__name__}: {error}: {request}"
    for link in links.values():
        link.close()
    return ""


class Stream:
    """A connection that has brought some bytes."""

    def __init__(self, content: bytes) -> None:
        self._left = content

    def recv_into(self, room: memoryview) -> int:
        count = min(len(room), len(self._left), 1 + len(self._left) // 2)
        room[:count], self._left = self._left[:count], self._left[count:]
        return count


def streams(rng: random.Random, counts: Counter[str]) -> str:
    """Bytes that may be a message."""
    for _ in range(MESSAGES):
        head, body = json.dumps(rng.choice(OF_AGGREGATOR + OF_WORKER)).encode(), rng.randbytes(rng.choice((0, 0, 8)))
        whole = len(head).to_bytes(4, "big") + len(body).to_bytes(8, "big") + head + body
        counts["streams"] += 1
        try:
            for _ in receive(Stream(damaged(rng, whole, whole[::-1])), 64):
                pass
        except (ValueError, ConnectionResetError):
            counts["no messages"] += 1
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return ""


def run(seed: int) -> Outcome:
    """A hundred messages."""
    rng = random.Random(seed)
    counts = Counter[str](runs=MESSAGES)
    failure = rng.choice((frames, frames, requests, streams))(rng, counts)
    counts["failures"] += bool(failure)
    return Outcome(seed, counts, failure)


if __name__ == "__main__":
    sys.exit(main(__doc__, run, FIGURES, runs=1_000_000, batch=MESSAGES))
