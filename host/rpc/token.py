"""Tokens: the secret of those who may use a control socket over TCP, and how both sides prove that they have it.

The server sends a nonce, the client another one and its proof, then the server its own: HMAC-SHA256 (RFC 2104) of side,
kind of server and both nonces. Another digest of these is the key that signs all messages on the connection from then
on. So the token is never sent, what was recorded is worth nothing, and who passes a connection on cannot add to it.
"""

import hmac
import os
import re
import secrets
import stat
from pathlib import Path
from typing import Any

from p4sgd.host.errors import UserError

OTHER_TOKEN = "has another token: give both sides the same file"
"""What a server says of itself to a client with a wrong proof, by which the client knows the reason."""

_FEWEST, _MOST = 16, 4096
"""Bounds of a token's length in bytes: the lower one against guessing."""


def read_token(path: Path) -> bytes:
    """Read a token from its file: all that is in there, without white space around it.

    Raises
    ------
    UserError
        If there is no such file, it is a device, others than its owner may access it, or its content is no token.
    """
    make = f"(umask 077; head -c 32 /dev/urandom | base64 > {path})"
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if stat.S_ISCHR(mode):
                raise UserError(f"{path}: is a device: a token is in a file that only its owner may read")
            token = file.read(_MOST + 1).strip()
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file with a token: copy it there, or make one: {make}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot read the token: {error.strerror}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UserError(f"{path}: others than its owner may read this token: chmod 600 {path}")
    if not _FEWEST <= len(token) <= _MOST:
        raise UserError(f"{path}: a token has {_FEWEST} to {_MOST} bytes, not {len(token)}: make one: {make}")
    return token


def new_nonce() -> str:
    """A number that was never used before."""
    return secrets.token_hex(32)


def prove(token: bytes, side: str, server: str, nonces: tuple[str, str]) -> bytes:
    """The proof of a ``side``, ``"client"`` or ``"server"``, to have the token; of ``"key"``, the connection's key.

    ``server`` is the kind of server, such as ``"worker"``; the nonces are the server's and the client's.
    """
    return hmac.digest(token, "\0".join((side, server, *nonces)).encode(), "sha256")


def is_nonce(value: Any) -> bool:
    """Whether a value received is a nonce."""
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def is_proof(value: Any, proof: bytes) -> bool:
    """Whether a value received is this proof in hexadecimal. The time that it takes does not tell how much is right."""
    return isinstance(value, str) and hmac.compare_digest(value.encode(errors="replace"), proof.hex().encode())
