"""A cable between two network namespaces that flips bits in the payloads of some UDP datagrams."""

import random
import select
import socket
import struct
import threading

_OUTGOING = 4
_IP, _BODY = 14, 34
_CHECKSUMS = {socket.IPPROTO_UDP: slice(_BODY + 6, _BODY + 8), socket.IPPROTO_TCP: slice(_BODY + 16, _BODY + 18)}


def _with_checksum(frame: bytearray, checksum: slice) -> bytearray:
    """Complete the checksum of UDP or TCP as an interface does: so far it is the sum of the pseudo-header."""
    if frame[checksum] == b"\0\0":  # there is none
        return frame
    frame[checksum] = b"\0\0"
    size = int.from_bytes(frame[_IP + 2 : _IP + 4]) - (_BODY - _IP)
    frame = frame[: _BODY + size]
    words = frame[_IP + 12 : _BODY] + struct.pack(">HH", frame[_IP + 9], size) + frame[_BODY:] + bytes(size % 2)
    total = sum(struct.unpack(f">{len(words) // 2}H", words))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    frame[checksum] = (~total & 0xFFFF or 0xFFFF).to_bytes(2)
    return frame


class CorruptingCable:
    """Joins ``near`` in each of two namespaces, which has the addresses 10.0.0.1 and 10.0.0.2 there.

    ``flips`` counts the datagrams with a bit flipped; the chance of each is ``chance``.
    """

    def __init__(self, namespaces, chance, seed):
        self.flips = 0
        self._chance, self._random = chance, random.Random(seed)
        self._ends = []
        for host, namespace in enumerate(namespaces, 1):
            namespace.pair("near", "far")
            namespace.ip("address", "add", f"10.0.0.{host}/24", "dev", "near")
            end = namespace.call(socket.socket, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            end.bind(("far", 3))
            self._ends.append(end)
        self._stop, self._stopped = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        near, far = self._ends
        while self._stopped not in (ready := select.select([near, far, self._stopped], [], [])[0]):
            for end in ready:
                data, (_, _, direction, *_) = end.recvfrom(2048)
                if direction != _OUTGOING:
                    (far if end is near else near).send(self._pass_on(bytearray(data)))

    def _pass_on(self, frame):
        checksum = _CHECKSUMS.get(frame[_IP + 9]) if frame[12:14] == b"\x08\x00" else None
        if checksum is not None:
            frame = _with_checksum(frame, checksum)
            if frame[_IP + 9] == socket.IPPROTO_UDP and self._random.random() < self._chance:
                self.flips += 1
                frame[self._random.randrange(_BODY + 8, len(frame))] ^= 1 << self._random.randrange(8)
        return frame

    def close(self):
        self._stop.send(b"x")
        self._thread.join()
        for each in (*self._ends, self._stop, self._stopped):
            each.close()
