"""Certificates: made, signed and read with the package `cryptography`, imported on use.

authority    signs for its workers; its key stays on the host where it was made
worker's     lists the names that the holder of its key may state in a hello: DNS names, with any
             characters; valid for dialling and for listening
self-signed  made at the start of a process, which keeps the key in memory
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from telegrad.errors import AuthenticationError
from telegrad.transport.security.certificate import Certificate, KeyPair

AUTHORITY_DAYS = 3650.0
CERTIFICATE_DAYS = 365.0


def make_authority(*, days: float = AUTHORITY_DAYS) -> KeyPair:
    """Makes an authority that signs certificates of workers, and no further authorities.

    Raises:
        AuthenticationError: The package cryptography is not installed.
    """
    with _cryptography("making certificates"):
        from telegrad.transport.security import certificate_maker  # noqa: PLC0415 - it is large
    return certificate_maker.make_authority(days=days)


def make_certificate(
    authority: KeyPair,
    names: Sequence[str],
    *,
    addresses: Sequence[str] = (),
    days: float = CERTIFICATE_DAYS,
) -> KeyPair:
    """Makes a key, and a certificate in which an authority signs that its holder has these names.

    Args:
        authority: The authority's certificate and key.
        names: Names of workers, at least one.
        addresses: IP addresses or host names of the host, for programs that check them. A host
            name counts as a worker's name, too.
        days: The days for which the certificate is valid.

    Raises:
        AuthenticationError: The package cryptography is not installed.
        ValueError: The authority's files are not a certificate and its key.
    """
    with _cryptography("making certificates"):
        from telegrad.transport.security import certificate_maker  # noqa: PLC0415 - it is large
    return certificate_maker.make_certificate(authority, names, addresses=addresses, days=days)


def make_self_signed() -> KeyPair:
    """Makes the certificate of one process, signed by itself and by no authority.

    Raises:
        AuthenticationError: The package cryptography is not installed.
    """
    with _cryptography("encryption beyond this machine"):
        from telegrad.transport.security import certificate_maker  # noqa: PLC0415 - it is large
    return certificate_maker.make_self_signed()


def read_certificate(data: bytes) -> Certificate:
    """Reads a certificate in PEM or DER form; the first one if there are several.

    Raises:
        AuthenticationError: The package cryptography is not installed.
        ValueError: The data is not a certificate.
    """
    with _cryptography("reading certificates"):
        from telegrad.transport.security import certificate_maker  # noqa: PLC0415 - it is large
    return certificate_maker.read_certificate(data)


@contextlib.contextmanager
def _cryptography(what: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise AuthenticationError(
            f"{what} needs the package cryptography; run: pip install cryptography"
        ) from error
