"""Certificates: made, signed and read with the package `cryptography`, imported on use.

authority    signs for its workers; its key stays where it was made
worker's     lists the names that whoever holds its key may say in a hello: DNS names, whatever
             characters they have; good for dialling and for listening
self-signed  made at the start of a process, which keeps the key in memory
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from telegrad.errors import AuthenticationError
from telegrad.transport.security.certificate import Certificate, KeyPair

__all__ = ["make_authority", "make_certificate", "make_self_signed", "read_certificate"]

AUTHORITY_DAYS = 3650.0
CERTIFICATE_DAYS = 365.0


def make_authority(*, days: float = AUTHORITY_DAYS) -> KeyPair:
    """Makes an authority that signs certificates of workers, and no further authorities.

    Raises:
        AuthenticationError: The package cryptography is not installed.
    """
    with _extra("making certificates"):
        from telegrad.transport.security import certificate_maker  # noqa: PLC0415 - an extra
    return certificate_maker.make_authority(days=days)


def make_certificate(
    authority: KeyPair,
    names: Sequence[str],
    *,
    addresses: Sequence[str] = (),
    days: float = CERTIFICATE_DAYS,
) -> KeyPair:
    """Makes a key, and has an authority sign that its holder has these names.

    Args:
        authority: Signs.
        names: Of workers, at least one.
        addresses: Of the host, for programs that look at them: IP addresses or host names. A host
            name counts as a worker's name, too.
        days: How long it counts.

    Raises:
        AuthenticationError: The package cryptography is not installed.
        ValueError: The authority's are no certificate and key.
    """
    with _extra("making certificates"):
        from telegrad.transport.security import certificate_maker  # noqa: PLC0415 - an extra
    return certificate_maker.make_certificate(authority, names, addresses=addresses, days=days)


def make_self_signed() -> KeyPair:
    """Makes the certificate of one process, which no authority stands for.

    Raises:
        AuthenticationError: The package cryptography is not installed.
    """
    with _extra("encryption beyond this machine"):
        from telegrad.transport.security import certificate_maker  # noqa: PLC0415 - an extra
    return certificate_maker.make_self_signed()


def read_certificate(data: bytes) -> Certificate:
    """Reads a certificate, PEM or DER; of several the first.

    Raises:
        AuthenticationError: The package cryptography is not installed.
        ValueError: It is no certificate.
    """
    with _extra("reading certificates"):
        from telegrad.transport.security import certificate_maker  # noqa: PLC0415 - an extra
    return certificate_maker.read_certificate(data)


@contextlib.contextmanager
def _extra(what: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise AuthenticationError(
            f"{what} needs the package cryptography; run: pip install 'telegrad[tls]'"
        ) from error
