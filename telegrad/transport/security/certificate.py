"""A certificate with its key, and what one says."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import final

__all__ = ["Certificate", "KeyPair"]


@final
@dataclass(frozen=True, slots=True, repr=False)
class KeyPair:
    """A certificate, and those that follow it to its authority, and its private key; PEM."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        """Shows no key."""
        return "<KeyPair>"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What a certificate says; as a string, in words for errors.

    Attributes:
        names: The workers that it is for.
        addresses: The addresses that it is for; no worker looks at them.
        issuer: Who signed it.
        valid_from: Since when it counts, in UTC.
        valid_until: Until when it counts, in UTC.
        authority: Whether it may sign others.
        fingerprint: SHA-256 of its DER form, in hexadecimal.
    """

    names: tuple[str, ...]
    addresses: tuple[str, ...]
    issuer: str
    valid_from: datetime.datetime
    valid_until: datetime.datetime
    authority: bool
    fingerprint: str

    def __str__(self) -> str:
        """Says whose it is, and until when it counts."""
        whose = "of " + " and ".join(map(repr, self.names)) if self.names else "without a name"
        if self.authority:
            whose = "of an authority"
        return (
            f"the certificate {whose} (signed by {self.issuer!r}, valid until "
            f"{self.valid_until:%Y-%m-%d %H:%M} UTC)"
        )

    def has(self, name: str) -> bool:
        """Returns whether it is for a worker of that name; names are equal without case."""
        return name.lower() in map(str.lower, self.names)
