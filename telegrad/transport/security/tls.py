"""The TLS settings of a process: the certificate it shows and the checks of the other end's.

    tls=TlsOptions(...)       mutual: both ends show certificates of one authority. In a hello the
                              holders may state no other names than those in them
    without, beyond loopback  self-signed: made at the start, kept in memory. No authority signs it;
                              the handshake's proofs cover its fingerprint, so that an attacker in
                              between, with another certificate, is found out

The token is proved in both cases. Everything here reads files and belongs into the thread that
starts an agent, never on the loop.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from telegrad.errors import AuthenticationError
from telegrad.transport.security.certificate import Certificate, KeyPair
from telegrad.transport.security.certificates import make_self_signed, read_certificate
from telegrad.transport.security.own_file import UnfitFileError, read_secret

VARIABLES: Final = {
    "ca": "TELEGRAD_TLS_CA",
    "certificate": "TELEGRAD_TLS_CERTIFICATE",
    "key": "TELEGRAD_TLS_KEY",
}
NAME = "{name}"
ALPN: Final = ["h2"]  # the protocol of gRPC, which gRPC insists on
# The most bytes of a certificate file with its chain; anything larger is the wrong file.
MOST_BYTES = 1 << 20
_LINE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


@final
@dataclass(frozen=True, kw_only=True)
class TlsOptions:
    """The PEM files with which a worker proves its name; `telegrad certs` makes them.

    `{name}` in a path stands for the worker's name, so that one setting fits all of them.

    Attributes:
        ca: The certificates of the authorities that this worker trusts.
        certificate: This worker's certificate, and those between it and its authority, if any.
        key: The private key to the certificate; no other user may read it.

    >>> TlsOptions(ca="ca.crt", certificate="{name}.crt", key="{name}.key").of("worker1").key
    'worker1.key'
    """

    ca: str | os.PathLike[str]
    certificate: str | os.PathLike[str]
    key: str | os.PathLike[str]

    def __post_init__(self) -> None:
        for name in VARIABLES:
            value = getattr(self, name)
            if not isinstance(value, str | os.PathLike) or not os.fspath(value):
                raise TypeError(f"TlsOptions.{name} must be a path, not {value!r}")
            object.__setattr__(self, name, os.fspath(value))

    def of(self, name: str) -> TlsOptions:
        """Returns the options of one worker.

        Raises:
            AuthenticationError: The worker has no name yet, and a path needs it.
        """
        paths = {field: os.fspath(getattr(self, field)) for field in VARIABLES}
        if not name and any(NAME in path for path in paths.values()):
            raise AuthenticationError(
                f"{NAME} in the paths of the certificates stands for the worker's name, and this "
                "worker has none yet; give it one, as init_rpc('worker5', ...), or write the paths"
            )
        told = {field: path.replace(NAME, name) for field, path in paths.items()}
        return dataclasses.replace(self, **told)


@final
@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Tls:
    """The certificate of this process, and the trust it has in others; made once, never changed.

    Attributes:
        pair: The certificate that it shows, with its key.
        binding: The fingerprint of that certificate.
        certificate: The facts in that certificate; None for a self-signed one.
        authorities: The trusted authorities in PEM form; empty if no certificate is demanded.
        dialling: The context that fetches and checks the listener's certificate, before gRPC does
            and past it.
        listening: The context that shows this certificate, past gRPC.
    """

    pair: KeyPair
    binding: bytes
    certificate: Certificate | None
    authorities: bytes
    dialling: ssl.SSLContext
    listening: ssl.SSLContext

    @property
    def mutual(self) -> bool:
        """True if both ends show certificates that an authority signed."""
        return self.certificate is not None

    def only_name(self) -> str:
        """Returns the one name in the certificate, for a worker that was given none.

        Raises:
            AuthenticationError: The certificate has several names, or none.
        """
        names = () if self.certificate is None else self.certificate.names
        if len(names) != 1:
            raise AuthenticationError(
                f"this worker has no name, and {self.certificate or 'its certificate'} does not "
                "say which it is; give it one, as init_rpc('worker5', ...)"
            )
        return names[0]

    def check_name(self, name: str, why: str = "this worker") -> None:
        """Checks that a worker of this process may state a name in its hellos.

        Raises:
            AuthenticationError: The certificate is for other names.
        """
        if self.certificate is None or self.certificate.has(name):
            return
        raise AuthenticationError(
            f"{why} is {name!r}, and {self.certificate} is not for that name; run: "
            f"{issue_command(name)}, or name another file in TlsOptions.certificate or "
            f"{VARIABLES['certificate']}"
        )


def tls_options(explicit: TlsOptions | None, environ: Mapping[str, str]) -> TlsOptions | None:
    """Returns the program's own options, else those of the environment; None if there are none.

    >>> tls_options(None, {})

    Args:
        explicit: `RpcOptions.tls`.
        environ: `os.environ`, or a test's substitute.

    Raises:
        AuthenticationError: Some of the variables are set and others are not.
    """
    if explicit is not None:
        return explicit
    found = {field: environ.get(name, "") for field, name in VARIABLES.items()}
    missing = [name for field, name in VARIABLES.items() if not found[field]]
    if len(missing) == len(VARIABLES):
        return None
    if missing:
        raise AuthenticationError(
            f"{' and '.join(missing)} must be set, too, where "
            f"{' or '.join(sorted(set(VARIABLES.values()) - set(missing)))} is; set all three, or "
            "none"
        )
    return TlsOptions(**found)


def find_tls(explicit: TlsOptions | None, environ: Mapping[str, str], name: str) -> Tls | None:
    """Returns the TLS settings of a worker; None if it has no certificate.

    Args:
        explicit: `RpcOptions.tls`.
        environ: `os.environ`, or a test's substitute.
        name: The worker's name; "" if it takes its name from its certificate.

    Raises:
        AuthenticationError: A file cannot be used; see `load_tls`.
    """
    options = tls_options(explicit, environ)
    return None if options is None else load_tls(options, name)


def self_signed_tls() -> Tls:
    """Makes a self-signed certificate for the life of this process.

    Raises:
        AuthenticationError: The package cryptography is not installed.
    """
    pair = make_self_signed()
    return Tls(
        pair=pair,
        binding=fingerprint(_der(pair.certificate)),
        certificate=None,
        authorities=b"",
        dialling=trusting_context(),
        listening=_showing_context(pair),
    )


def load_tls(options: TlsOptions, name: str) -> Tls:
    """Reads the certificate of one worker, and checks it in the way its peers will.

    Args:
        options: The paths of the files.
        name: The worker's name; "" if it gets its name from the coordinator.

    Raises:
        AuthenticationError: A file cannot be used; the certificate is not from this authority, has
            expired or is for another worker; or the package cryptography is not installed.
    """
    paths = options.of(name)
    authorities = _read(paths.ca, "ca")
    pair = KeyPair(_read(paths.certificate, "certificate"), _read(paths.key, "key", private=True))
    try:
        certificate = read_certificate(pair.certificate)
        read_certificate(authorities)
        binding = fingerprint(_der(pair.certificate))
    except ValueError as error:
        raise AuthenticationError(
            f"{paths.certificate!r} or {paths.ca!r} is no certificate in PEM form ({error}); "
            f"make one by: {issue_command(name)}"
        ) from error
    dialling = _context(ssl.PROTOCOL_TLS_CLIENT, paths, certificate)
    listening = _context(ssl.PROTOCOL_TLS_SERVER, paths, certificate)
    _try_out(dialling, listening, paths, certificate)
    tls = Tls(
        pair=pair,
        binding=binding,
        certificate=certificate,
        authorities=authorities,
        dialling=dialling,
        listening=listening,
    )
    if name:
        tls.check_name(name)
    return tls


def trusting_context() -> ssl.SSLContext:
    """Returns a context that fetches a certificate without checking it."""
    context = _new_context(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_mode = ssl.CERT_NONE
    return context


def _showing_context(pair: KeyPair) -> ssl.SSLContext:
    """Returns a context that shows a certificate which is in no file.

    OpenSSL reads certificates and keys from files alone. This one has no name, or where the system
    has no such files, a name for that moment; only this user may read it.
    """
    context = _new_context(ssl.PROTOCOL_TLS_SERVER)
    if hasattr(os, "memfd_create"):
        with open(os.memfd_create("telegrad"), "wb", buffering=0) as file:
            file.write(pair.certificate + pair.key)
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    else:
        with tempfile.NamedTemporaryFile(prefix="telegrad-") as named:
            named.write(pair.certificate + pair.key)
            named.flush()
            context.load_cert_chain(named.name)
    return context


def _new_context(protocol: int) -> ssl.SSLContext:
    """Returns a context of TLS 1.3 alone, which knows no renegotiation, and without tickets.

    Nobody resumes a session of TLS, and a ticket would be data that comes in a handshake's midst.
    """
    context = ssl.SSLContext(protocol)
    context.check_hostname = False  # names are those of workers, and telegrad compares them
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(ALPN)
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    return context


def fingerprint(der: bytes) -> bytes:
    """Returns the SHA-256 of a certificate's DER form, which identifies it."""
    return hashlib.sha256(der).digest()


def issue_command(name: str) -> str:
    """Returns the command that makes a worker's certificate.

    >>> issue_command("worker1")
    'telegrad certs issue worker1'
    """
    return f"telegrad certs issue {name or 'NAME'}"


def handshake_in_memory(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Runs a TLS handshake between two contexts, without a socket.

    Raises:
        ssl.SSLError: One of them refuses the other.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=None),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(3):  # hello; hello and certificate; certificate: the last turn checks that
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


def _context(protocol: int, paths: TlsOptions, certificate: Certificate) -> ssl.SSLContext:
    context = _new_context(protocol)
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(cafile=paths.ca)
        context.load_cert_chain(paths.certificate, paths.key, password=_refuse_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise AuthenticationError(
            f"{paths.key!r} is no key to {certificate} in {paths.certificate!r}, or {paths.ca!r} "
            f"holds no certificate ({error}); name the files that belong together"
        ) from error
    return context


def _refuse_password() -> str:
    raise ValueError("the key has a password; write it without one, for its owner alone")


def _try_out(
    client: ssl.SSLContext, server: ssl.SSLContext, paths: TlsOptions, certificate: Certificate
) -> None:
    """Shows the certificate to its own authority, so that a bad one is reported here, at once."""
    try:
        handshake_in_memory(client, server)
    except ssl.SSLCertVerificationError as error:
        raise AuthenticationError(
            f"{certificate} in {paths.certificate!r} does not stand up to the authority in "
            f"{paths.ca!r}: {error.verify_message}; run: "
            f"{issue_command(certificate.names[0] if certificate.names else '')}"
        ) from error
    except ssl.SSLError as error:
        raise AuthenticationError(
            f"{certificate} in {paths.certificate!r} cannot be used ({error}); run: "
            f"{issue_command(certificate.names[0] if certificate.names else '')}"
        ) from error


def _read(path: str | os.PathLike[str], field: str, *, private: bool = False) -> bytes:
    try:
        if private:
            return read_secret(path, MOST_BYTES)
        with open(path, "rb") as file:
            return file.read(MOST_BYTES)
    except UnfitFileError as error:
        raise AuthenticationError(
            f"the key {os.fspath(path)!r} is refused: {error.strerror}"
        ) from error
    except OSError as error:
        raise AuthenticationError(
            f"the file {os.fspath(path)!r} cannot be read ({error.strerror}); name another one in "
            f"TlsOptions.{field} or {VARIABLES[field]}, or make it by `telegrad certs`"
        ) from error


def _der(pem: bytes) -> bytes:
    """Returns the first certificate of a PEM file; ignores any text around it."""
    found = _LINE.search(pem)
    if found is None:
        raise ValueError("it holds no certificate")
    return ssl.PEM_cert_to_DER_cert(found[0].decode())
