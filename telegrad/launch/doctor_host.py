"""What `telegrad doctor` sees of the host that it runs on: versions, addresses, token, certificates."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import platform
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from telegrad.errors import AuthenticationError
from telegrad.launch.env import available_cores
from telegrad.transport import (
    address_of,
    find_tls,
    find_token,
    interfaces,
    is_loopback_address,
    read_token_file,
)

__all__ = ["Finding", "HostFacts", "look_at_host"]

PACKAGES: Final = ("telegrad", "numpy", "grpcio")
TLS_ADVICE: Final = "run: pip install 'telegrad[tls]'"
USER_TOKEN: Final = Path(".config") / "telegrad" / "token"
SHOWN: Final = ("TELEGRAD_", "GRPC_")  # variables that change what workers do
SECRET: Final = "TELEGRAD_TOKEN"
OWN: Final = ("GRPC_ENABLE_FORK_SUPPORT", "GRPC_VERBOSITY")  # which telegrad sets itself


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong with this host, or on the way from it.

    Attributes:
        words: What.
        remedy: How to mend it.
    """

    words: str
    remedy: str


@final
@dataclass(frozen=True, slots=True)
class HostFacts:
    """What there is to say of a host.

    Attributes:
        lines: In words.
        problems: What is wrong.
        notes: What may be wrong one day.
    """

    lines: tuple[str, ...]
    problems: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()

    def to_dict(self) -> dict[str, list[object]]:
        """Returns it as JSON can say it."""
        return {
            "lines": list(self.lines),
            "problems": [_plain(each) for each in self.problems],
            "notes": [_plain(each) for each in self.notes],
        }


def look_at_host(environ: Mapping[str, str], *, master: str | None, name: str) -> HostFacts:
    """Returns what there is to say of this host.

    Args:
        environ: `os.environ`, or what a test puts in its place.
        master: Where host 0 is, in a job of several hosts; then a token is made where there is
            none, and encryption is needed. None in a job of one.
        name: Whose certificate a launcher here has to show, where there are certificates.
    """
    several = master is not None
    problems: list[Finding] = []
    notes: list[Finding] = []
    token = _token(environ, problems, several=several)
    tls = _tls(environ, problems, notes, several=several, name=name)
    if master in (None, socket.gethostname()):
        _check_own_name(notes)
    versions = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{package} {importlib.metadata.version(package)}")
    found = ", ".join(map(str, interfaces())) or "none but loopback"
    lines = [
        f"host {socket.gethostname()}: {', '.join(versions)}; cores: {available_cores()}",
        f"addresses: {found}",
        f"token: {token}",
        f"encryption: {tls}",
    ]
    told = {
        key: environ[key]
        for key in sorted(environ)
        if key.startswith(SHOWN) and key != SECRET and key not in OWN
    }
    if told:
        lines.append("environment: " + ", ".join(f"{key}={value}" for key, value in told.items()))
    return HostFacts(tuple(lines), tuple(problems), tuple(notes))


def _token(environ: Mapping[str, str], problems: list[Finding], *, several: bool) -> str:
    """Says where the token is; several hosts need one and the same."""
    try:
        if several:
            find_token(None, environ)  # made where there is none, as by `telegrad run`
        if SECRET in environ:
            find_token(None, environ)
            return f"from {SECRET}"
        path = _token_path(environ)
        if not path.exists():
            return f"none yet; the first job makes {path}"
        read_token_file(path)
        return f"{path} (mode {stat.S_IMODE(path.stat().st_mode):04o})"
    except (AuthenticationError, OSError) as error:
        words, _, remedy = str(error).partition("; ")
        problems.append(Finding(words, remedy or "name another one in TELEGRAD_TOKEN_FILE"))
        return "cannot be used"


def _token_path(environ: Mapping[str, str]) -> Path:
    named = environ.get("TELEGRAD_TOKEN_FILE")
    if named:
        return Path(named)
    home = environ.get("HOME")
    return (Path(home) if home else Path.home()) / USER_TOKEN


def _tls(
    environ: Mapping[str, str],
    problems: list[Finding],
    notes: list[Finding],
    *,
    several: bool,
    name: str,
) -> str:
    """Says how what leaves this host is encrypted."""
    try:
        tls = find_tls(None, environ, name)
    except AuthenticationError as error:
        words, _, remedy = str(error).partition("; ")
        problems.append(Finding(words, remedy or "see docs/certificates.md"))
        return "the certificates cannot be used"
    installed = importlib.util.find_spec("cryptography") is not None
    if tls is not None:
        return f"with certificates of the job's own authority, here {tls.certificate}"
    if installed:
        version = importlib.metadata.version("cryptography")
        return f"beyond loopback, with certificates made at the start (cryptography {version})"
    found = Finding("the package cryptography, which encrypts, is not installed", TLS_ADVICE)
    (problems if several else notes).append(found)
    return "not beyond loopback: the package cryptography is not installed"


def _check_own_name(notes: list[Finding]) -> None:
    """Notes a host whose own name leads to loopback, as on Debian."""
    name = socket.gethostname()
    try:
        address = address_of(name)
    except OSError:
        return
    if is_loopback_address(address):
        found = ", ".join(each.address for each in interfaces()) or "an address of its own"
        notes.append(
            Finding(
                f"the name of this host, {name!r}, means {address} here, which leads nowhere from "
                "other hosts",
                f"name an address in --master-addr and MASTER_ADDR ({found}), or mend /etc/hosts",
            )
        )


def _plain(finding: Finding) -> dict[str, str]:
    return {"words": finding.words, "remedy": finding.remedy}
