"""Sums over ranks by an aggregator: what hot columns of data-parallel training need."""

import contextlib
import errno
import itertools
import secrets
import select
import socket
import time
from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np

from p4sgd.host.aggregators.cluster_file import Cluster, WorkerAddress
from p4sgd.host.aggregators.controller import Controller
from p4sgd.host.aggregators.membership import JoinRequest, Membership, NumberTakenError, free_number
from p4sgd.host.aggregators.opening import open_controller
from p4sgd.host.distributed.communicator import Communicator, broadcast, raise_on_all
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.links.opening import open_link
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.job import JOB_NUMBERS
from p4sgd.hw.spec.packet import KEY_BITS, ROUND_BITS, VALUES, mac_text
from p4sgd.sim.network.endpoint import Endpoint

_SLOTS = 64  # sums that are under way at the same time
_LOOK_MS = 200  # longest wait for a frame before a look at what else may have happened
_SILENCE_NS = 2_000_000_000  # without sums, then an interrupted rank waits no longer for the call in which all stop


class AggregatedRows:
    """Sums over the ranks, by an aggregator to which each of them is connected as a worker is: worker i of the cluster
    is rank i, and has an interface. Rank 0 controls the aggregator.

    Raises `UserError` if an interface cannot be opened, if another program uses its MAC address, or if the aggregator
    cannot be reached, and `P4sgdError` if that refuses the job.
    """

    def __init__(self, cluster: Cluster, ranks: Communicator) -> None:
        self._ranks = ranks
        own = cluster.workers[ranks.rank]
        with contextlib.ExitStack() as opened:

            def connect() -> None:
                self._link = opened.enter_context(contextlib.closing(open_link(own.interface)))
                self._mac = _claim_mac(own, opened)

            raise_on_all(ranks, connect)
            macs = ranks.all_gather(self._mac)
            number, first_round, key, self._aggregator = _begin(cluster, macs, ranks, opened)
            self._opened = opened.pop_all()
        network = cluster.network
        self._endpoint = Endpoint(
            _SLOTS,
            job=number,
            shard=ranks.rank,
            workers=ranks.size,
            local_mac=self._mac,
            peer_mac=cluster.aggregator.address,
            first_round=first_round,
            resend_after=network.resend_us * 1000,
            doublings=network.doublings,
            resends=network.resends,
            key=key,
            most=1,
        )
        self._readable = select.poll()
        self._readable.register(self._link, select.POLLIN)
        self._begun = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def __call__(self, values: IntArray) -> IntArray:
        """Sums over the ranks of int64 (8·n,), each of which fits int32.

        Raises `P4sgdError` if no answer has come for too long, if the process of the aggregator has ended, or after
        Ctrl-C if no sums come for 2 s: `KeyboardInterrupt` would tell that all ranks stop in the same call.
        """
        if not self._begun:  # others may still compile loops, which takes longer than packets wait
            self._ranks.all_gather(None)
            self._begun = True
        endpoint, rows = self._endpoint, values.reshape(-1, VALUES).tolist()
        sums: list[tuple[int, ...]] = []
        submitted, progress = 0, time.monotonic_ns()
        while len(sums) < len(rows):
            while submitted < len(rows) and endpoint.can_submit:
                self._link.send(endpoint.submit(rows[submitted], time.monotonic_ns()).to_bytes())
                submitted += 1
            self._receive()
            now = time.monotonic_ns()
            if endpoint.sums:
                progress = now
            elif self._ranks.interrupted and now - progress > _SILENCE_NS:
                raise P4sgdError("interrupted while it waited for the aggregator")
            sums += endpoint.sums
            endpoint.sums.clear()
        return np.array(sums, np.int64).reshape(values.shape)

    def _receive(self) -> None:
        """Take all frames that have come; if there are none, wait for one or for the time to send something again."""
        endpoint, now = self._endpoint, time.monotonic_ns()
        frame = self._link.receive()
        if frame is None:
            due = endpoint.next_resend()
            assert due is not None  # a slot that waits for nothing could be submitted to
            self._readable.poll(min(max(0.0, (due - now) / 1e6), _LOOK_MS))
            for packet in endpoint.resend(time.monotonic_ns()):
                self._link.send(packet.to_bytes())
            if self._aggregator is not None:
                self._aggregator.check_process()
            if endpoint.given_up is not None:
                waited, slot = endpoint.given_up.phase.name, endpoint.given_up.slot
                raise P4sgdError(
                    f"rank {endpoint.shard} gave up waiting for the aggregator's answer to {waited} in slot {slot}: "
                    f"p4sgd switch status shows what the job waits for"
                )
        while frame is not None:
            if (answer := endpoint.receive_frame(frame, time.monotonic_ns())) is not None:
                self._link.send(answer.to_bytes())
            frame = self._link.receive()


def _claim_mac(own: WorkerAddress, opened: contextlib.ExitStack) -> int:
    """A MAC address that no other program on this machine uses until what is opened is closed.

    An aggregator's job with the same address counts as left behind and is ended (`Membership`). So programs that share
    an interface need different addresses, and a program that follows one that was killed needs the same one. Linux
    frees the name of an abstract socket however its process ends, and it belongs to a network namespace like interfaces
    (unix(7))."""
    macs: Iterable[int] = map(own.default_mac, itertools.count()) if own.address is None else [own.address]
    for mac in macs:
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0p4sgd rank {mac_text(mac)}")
        except OSError as error:
            claim.close()
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            opened.enter_context(claim)
            return mac
    raise UserError(  # in UDP the link could not have been opened
        f"{own.interface}: another training uses the address {mac_text(mac)} of the cluster file: leave mac out, or "
        "give this training another"
    )


def _begin(
    cluster: Cluster, macs: Sequence[int], ranks: Communicator, opened: contextlib.ExitStack
) -> tuple[int, int, int | None, Controller | None]:
    """Have the aggregator serve a new job, which ends when what is opened is closed: its number, first round and key,
    and in rank 0 the controller."""
    controller: Controller | None = None
    job: tuple[int, int, int | None] | None = None

    def begin() -> None:
        nonlocal job, controller
        controller = opened.enter_context(contextlib.closing(open_controller(cluster)))
        membership = Membership(controller)

        @opened.callback
        def end() -> None:
            with contextlib.suppress(P4sgdError, UserError):
                membership.end()

        # A late packet of an earlier run, which had the same addresses, must not be added. It has another key. Version
        # 1 has none: there it is only unlikely, about 1 in 2^24, that both number and round fit.
        key = secrets.randbits(KEY_BITS) if controller.most else None
        first_round = secrets.randbelow(1 << ROUND_BITS)
        last, taken = secrets.randbelow(JOB_NUMBERS), {each.number for each in controller.served().values()}
        while job is None:
            number = free_number(taken, last)
            try:
                for shard, worker in enumerate(cluster.workers):
                    request = JoinRequest(number, shard, ranks.size, macs[shard], cluster.aggregator.address, key)
                    membership.join(request, worker.port, first_round, index=shard)
                job = number, first_round, key
            except NumberTakenError:  # by another program at the same moment
                taken.add(number)

    raise_on_all(ranks, begin if ranks.rank == 0 else None)
    job = broadcast(ranks, job)
    assert job is not None
    return *job, controller
