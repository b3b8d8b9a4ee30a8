"""A certificate with its private key, and the facts that a certificate states."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True, repr=False)
class KeyPair:
    """A certificate with the chain to its authority, and its private key; both in PEM form."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        """Shows no key."""
        return "<KeyPair>"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The facts in a certificate; `str` gives a description for error messages.

    Attributes:
        names: The names of workers that it is for.
        addresses: The addresses that it is for; no worker checks them.
        issuer: The name of the authority that signed it.
        valid_from: The start of its validity, in UTC.
        valid_until: The end of its validity, in UTC.
        authority: True if it may sign other certificates.
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
        """Returns its holder, issuer and end of validity, in words."""
        whose = "of " + " and ".join(map(repr, self.names)) if self.names else "without a name"
        if self.authority:
            whose = "of an authority"
        return (
            f"the certificate {whose} (signed by {self.issuer!r}, valid until "
            f"{self.valid_until:%Y-%m-%d %H:%M} UTC)"
        )

    def has(self, name: str) -> bool:
        """Returns True if it is for a worker of that name, upper and lower case alike."""
        return name.lower() in map(str.lower, self.names)
