"""Tokens: the secret of those who may use a control socket over TCP.

The token gives the key of an authority. Each side shows a certificate of this authority in TLS and demands one, so the
token is never sent, and connections can be neither read nor changed nor passed on.
"""

import datetime
import functools
import hashlib
import os
import ssl
import stat
from pathlib import Path

from p4sgd.host.errors import UserError
from p4sgd.host.files import open_ordinary

_FEWEST, _MOST = 16, 4096
"""Bounds of a token's length in bytes: the lower one against guessing."""


def read_token(path: Path) -> bytes:
    """Read a token from its file, without white space around it; raises UserError if others may, or it is none."""
    make = f"(umask 077; head -c 32 /dev/urandom | base64 > {path})"
    try:
        with open_ordinary(path) as file:
            mode = os.fstat(file.fileno()).st_mode
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


@functools.cache
def tls_context(token: bytes, purpose: ssl.Purpose) -> ssl.SSLContext:
    """The context of servers (``CLIENT_AUTH``) or clients (``SERVER_AUTH``) that have a token."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    # scrypt makes it slow to guess a weak token from a server's certificate. P-256 has about 2^256 keys.
    secret = hashlib.scrypt(token, salt=b"p4sgd control socket", n=1 << 14, r=8, p=1, dklen=31)
    authority = ec.derive_private_key(1 + int.from_bytes(secret), ec.SECP256R1())
    own = ec.generate_private_key(ec.SECP256R1())

    def certify(name: str, key: ec.EllipticCurvePrivateKey) -> str:
        issuer, subject = (
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, each)]) for each in ("p4sgd token", name)
        )
        builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(datetime.datetime(2000, 1, 1)).not_valid_after(datetime.datetime(9999, 1, 1))
        constraints = x509.BasicConstraints(ca=key is authority, path_length=None)
        builder = builder.add_extension(constraints, critical=True)
        return builder.sign(authority, hashes.SHA256()).public_bytes(Encoding.PEM).decode()

    is_server = purpose is ssl.Purpose.CLIENT_AUTH
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the token names nobody
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certify("p4sgd token", authority))
    key = own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    with open(os.memfd_create("p4sgd"), "w") as file:  # it takes files only
        file.write(certify("p4sgd", own) + key)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context
