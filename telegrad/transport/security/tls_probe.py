"""The TLS handshake before gRPC's own: fetches and checks the listener's certificate.

gRPC's dialling end cannot tell which certificate it was shown. So a plain TLS handshake fetches it
first, and checks it if this worker has authorities. Then gRPC gets that one certificate as all that
it trusts, self-signed or not (it takes a leaf as an anchor: X509_V_FLAG_PARTIAL_CHAIN, seen in
version 1.85). gRPC's connection shows the same certificate, or does not come up. So a carrier is
bound to the certificate that was fetched here, under mutual TLS as well.

    connect ─▶ TLS handshake ─▶ the listener's first bytes ─▶ hang up ─▶ gRPC
                                   it has accepted our certificate, too

With TLS 1.3 a listener checks our certificate after we have checked its own. gRPC's listener hangs
up without a word if it rejects ours. A listener that accepts connections and hangs up twice has
rejected it.
"""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, final

from telegrad.errors import AuthenticationError
from telegrad.transport.security.certificates import read_certificate
from telegrad.transport.security.handshake import Reason, RefusedError
from telegrad.transport.security.tls import Tls, fingerprint, issue_command, trusting_context

SELF_SIGNED_NAME: Final = "telegrad"  # in all certificates that workers make at their start
SIGNS_ITSELF: Final = frozenset({18, 19})  # X509_V_ERR_..SELF_SIGNED_CERT..
HANG_UPS = 2  # a single one may be the end of a process


class NoTlsError(RefusedError):
    """The listener does not speak TLS."""


class _HungUpError(ConnectionError):
    """The listener hung up after it saw our certificate, or saw that there is none."""


@final
@dataclass(frozen=True, slots=True)
class Shown:
    """A certificate that a listener has shown, and whose key it holds.

    Attributes:
        certificate: The certificate alone, in PEM form.
        binding: The fingerprint of the certificate.
        names: The names that our authorities certify; None if we have no authorities.
        target: The name under which gRPC must verify it: any of its own names.
    """

    certificate: bytes
    binding: bytes
    names: frozenset[str] | None
    target: str


@final
class TlsProbe:
    """Fetches certificates of listeners; runs on the loop, but is made outside of it.

    Args:
        tls: The TLS settings of this worker. With None or a self-signed certificate it shows
            nothing and trusts nobody; the handshake's proofs have to cover the listener's
            certificate.
    """

    def __init__(self, tls: Tls | None) -> None:
        self._tls = tls if tls is not None and tls.mutual else None
        self._trusting = trusting_context()
        self._context = self._trusting if self._tls is None else self._tls.dialling

    async def fetch(self, endpoint: str, connect: Callable[[], Awaitable[socket.socket]]) -> Shown:
        """Makes a TLS handshake with a listener.

        Args:
            endpoint: The listener's address, for errors.
            connect: Makes a connection to the listener; may be called more than once.

        Raises:
            NoTlsError: The listener speaks no TLS.
            RefusedError: One side rejects the other's certificate, or lack of one.
            OSError: A connection broke, or cannot be made.
        """
        for _ in range(HANG_UPS):
            with await connect() as connected:
                try:
                    return self._shown(await _shake_hands(self._context, connected), endpoint)
                except _HungUpError:
                    continue
                except ssl.SSLCertVerificationError as error:
                    unverified = error
                    break
                except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionResetError) as error:
                    raise ConnectionResetError("it hung up in the midst of it") from error
                except ssl.SSLError as error:
                    raise NoTlsError(
                        Reason.AUTHENTICATION, self._no_tls(endpoint, error)
                    ) from error
        else:
            raise _refused(self._hung_up(endpoint))
        with await connect() as connected:
            words = await self._unverified(endpoint, connected, unverified)
        raise _refused(words) from unverified

    def _shown(self, handshake: tuple[bytes, frozenset[str]], endpoint: str) -> Shown:
        der, verified = handshake
        pem = ssl.DER_cert_to_PEM_cert(der).encode()
        if self._tls is None:
            return Shown(pem, fingerprint(der), None, SELF_SIGNED_NAME)
        names = sorted(name for name in verified if "*" not in name)
        if not names:
            raise _refused(
                f"{endpoint} shows {read_certificate(der)}; give its worker one with its name: "
                f"{issue_command('')}"
            )
        return Shown(pem, fingerprint(der), frozenset(names), names[0])

    def _no_tls(self, endpoint: str, error: ssl.SSLError) -> str:
        return (
            f"{endpoint} does not speak TLS ({error.reason or error}); start the worker there with "
            "certificates, too (RpcOptions.tls, or TELEGRAD_TLS_CA, TELEGRAD_TLS_CERTIFICATE and "
            "TELEGRAD_TLS_KEY), and check the address"
        )

    def _hung_up(self, endpoint: str) -> str:
        if self._tls is None or self._tls.certificate is None:
            return (
                f"{endpoint} hangs up on a worker without a certificate; get one by `telegrad "
                "certs issue NAME` and name it in RpcOptions.tls, or in TELEGRAD_TLS_CA, "
                "TELEGRAD_TLS_CERTIFICATE and TELEGRAD_TLS_KEY"
            )
        mine = self._tls.certificate
        now = datetime.datetime.now(datetime.UTC)
        why = "its authority is another one, or one of both clocks is wrong"
        if not mine.valid_from <= now <= mine.valid_until:
            why = "it has expired" if now > mine.valid_until else "it does not count yet"
        return (
            f"{endpoint} hangs up when it is shown {mine}, this worker's: {why}; issue it anew "
            f"with the authority of the worker there: {issue_command(mine.names[0])}"
        )

    async def _unverified(
        self, endpoint: str, connected: socket.socket, error: ssl.SSLCertVerificationError
    ) -> str:
        """Returns an error text with the rejected certificate; a second handshake reads it."""
        try:
            der, _ = await _shake_hands(self._trusting, connected, patient=False)
            found = str(read_certificate(der))
        except (OSError, ValueError, AuthenticationError):
            found = "a certificate"
        if error.verify_code in SIGNS_ITSELF:
            return (
                f"{endpoint} shows {found}, which no authority stands for; start the worker there "
                "with certificates, too (RpcOptions.tls, or TELEGRAD_TLS_CA, "
                "TELEGRAD_TLS_CERTIFICATE and TELEGRAD_TLS_KEY)"
            )
        return (
            f"{endpoint} shows {found}, which this worker does not believe: "
            f"{error.verify_message}; issue it anew with this worker's authority: "
            f"{issue_command('')}"
        )


async def _shake_hands(
    context: ssl.SSLContext, connected: socket.socket, *, patient: bool = True
) -> tuple[bytes, frozenset[str]]:
    """Makes the handshake, and waits for the listener's first bytes if `patient`.

    Returns:
        The listener's certificate in DER form, and the names that were verified.
    """
    # Names are those of workers, and not of the host.
    reader, writer = await asyncio.open_connection(sock=connected, ssl=context, server_hostname="")
    try:
        tls = writer.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True) or b""
        told = (tls.getpeercert() or {}).get("subjectAltName", ())
        if patient and not await reader.read(1):
            raise _HungUpError
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError) as error:
        raise _HungUpError from error
    finally:
        writer.transport.abort()
    return certificate, frozenset(str(entry[1]) for entry in told if entry[0] == "DNS")


def _refused(words: str) -> RefusedError:
    return RefusedError(Reason.AUTHENTICATION, words)
