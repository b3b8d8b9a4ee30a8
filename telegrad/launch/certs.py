"""`telegrad certs`: an authority for one's own workers, and their certificates, as files.

DIR/ca.crt     the authority's certificate: every worker needs a copy
DIR/ca.key     the authority's key, which signs; it stays on the machine where it was made
DIR/NAME.crt   a worker's certificate, with its name
DIR/NAME.key   the key to that; only that worker's user may read it
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from telegrad.errors import AuthenticationError
from telegrad.rendezvous import COORDINATOR_NAME, check_name
from telegrad.transport import (
    Certificate,
    KeyPair,
    make_authority,
    make_certificate,
    read_certificate,
)

DIRECTORY: Final = "certs"
AUTHORITY: Final = "ca"
DAYS: Final = 365.0
MOST_DAYS: Final = 36500.0
REFUSED: Final = 1
EXAMPLE = """\
example:
  telegrad certs init
  telegrad certs issue coordinator worker0 worker1
  telegrad certs show certs/worker0.crt

Then set TELEGRAD_TLS_CA, TELEGRAD_TLS_CERTIFICATE and TELEGRAD_TLS_KEY as `issue` says, and start
the job as before: every worker proves its name, and whoever has no certificate is not heard.
"""


class _RefusedError(Exception):
    """The request cannot be fulfilled; the message gives the reason."""


def add_certs(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the command to a parser."""
    parser = commands.add_parser(
        "certs",
        help="make certificates with which workers prove their names",
        description="Makes an authority, and certificates with which workers prove their names.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    init = verbs.add_parser("init", help="make an authority")
    init.add_argument("directory", nargs="?", default=DIRECTORY, metavar="DIR")
    issue = verbs.add_parser("issue", help="make certificates for workers, one for each name")
    issue.add_argument("names", nargs="+", metavar="NAME", help="workers, or `coordinator`")
    issue.add_argument(
        "--dir", dest="directory", default=DIRECTORY, metavar="DIR", help="the authority's"
    )
    issue.add_argument(
        "--host",
        dest="addresses",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="an address, for programs that check addresses; may be repeated",
    )
    issue.add_argument("--days", type=float, default=DAYS, metavar="N", help="default: 365")
    issue.add_argument(
        "--coordinator",
        action="store_true",
        help="also certify the name `coordinator`, for a rank 0 that hosts it",
    )
    show = verbs.add_parser("show", help="print the contents of a certificate")
    show.add_argument("file", metavar="FILE")


def certs(options: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    verbs: dict[str, Callable[[argparse.Namespace], int]] = {
        "init": _init,
        "issue": _issue,
        "show": _show,
    }
    try:
        return verbs[options.verb](options)
    except (_RefusedError, AuthenticationError) as error:
        words = str(error)
    except OSError as error:
        words = f"{error.filename!r}: {error.strerror}" if error.filename else str(error)
    print(f"telegrad certs {options.verb}: {words}", file=sys.stderr)
    return REFUSED


def _init(options: argparse.Namespace) -> int:
    directory = Path(options.directory)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths = _paths(directory, AUTHORITY)
    _check_new(paths)
    _write(paths, make_authority())
    where = "" if options.directory == DIRECTORY else f" --dir {directory}"
    print(f"made {paths[0]} and {paths[1]}; keep the key where it is, and copy it nowhere")
    print(f"next: telegrad certs issue{where} {COORDINATOR_NAME} worker0 worker1")
    return 0


def _issue(options: argparse.Namespace) -> int:
    names: list[str] = options.names
    _check_request(names, options.days)
    directory = Path(options.directory)
    authority = _authority(directory)
    targets = {name: _paths(directory, name) for name in names}
    _check_new([path for paths in targets.values() for path in paths])
    for name, paths in targets.items():
        also = [COORDINATOR_NAME] if options.coordinator and name != COORDINATOR_NAME else []
        try:
            pair = make_certificate(
                authority, [name, *also], addresses=options.addresses, days=options.days
            )
        except ValueError as error:
            raise _RefusedError(
                f"cannot sign with {_paths(directory, AUTHORITY)[1]}: {error}"
            ) from error
        _write(paths, pair)
        print(f"made {paths[0]} and {paths[1]}: {_summary(read_certificate(pair.certificate))}")
    place = directory.absolute()
    print("next: copy these and ca.crt, not ca.key, to the hosts of their workers, and there set")
    print(f"  export TELEGRAD_TLS_CA={place / 'ca.crt'}")
    print(f"  export TELEGRAD_TLS_CERTIFICATE='{place}/{{name}}.crt'")
    print(f"  export TELEGRAD_TLS_KEY='{place}/{{name}}.key'")
    return 0


def _show(options: argparse.Namespace) -> int:
    try:
        found = read_certificate(Path(options.file).read_bytes())
    except ValueError as error:
        raise _RefusedError(f"{options.file} is no certificate ({error})") from error
    problem = _problem(found)
    rows = {
        "names": ", ".join(found.names) or ("(an authority)" if found.authority else "none"),
        "addresses": ", ".join(found.addresses),
        "signed by": found.issuer,
        "valid from": f"{found.valid_from:%Y-%m-%d %H:%M} UTC",
        "valid until": f"{found.valid_until:%Y-%m-%d %H:%M} UTC{problem and f' ({problem})'}",
        "fingerprint": found.fingerprint,
    }
    for label, text in rows.items():
        if text:
            print(f"{label + ':':<13}{text}")
    return REFUSED if problem else 0


def _authority(directory: Path) -> KeyPair:
    certificate, key = _paths(directory, AUTHORITY)
    for path in (certificate, key):
        if not path.exists():
            raise _RefusedError(
                f"there is no authority in {directory} ({path.name} is missing); run: telegrad "
                f"certs init {directory}"
            )
    mode = stat.S_IMODE(key.stat().st_mode)
    if mode & 0o077:
        raise _RefusedError(
            f"the authority's key {key} may be used by others (mode {mode:04o}), who could then be "
            f"any worker; run: chmod 600 {key}, or, if somebody may have read it, make a new one"
        )
    pair = KeyPair(certificate.read_bytes(), key.read_bytes())
    try:
        found = read_certificate(pair.certificate)
    except ValueError as error:
        raise _RefusedError(f"{certificate} is no certificate ({error})") from error
    problem = _problem(found)
    if problem or not found.authority:
        raise _RefusedError(
            f"{certificate} {problem or 'is no authority'}; make a new one: telegrad certs init DIR"
        )
    return pair


def _check_request(names: Sequence[str], days: float) -> None:
    for name in names:
        try:
            check_name(name)
        except ValueError as error:
            raise _RefusedError(str(error)) from error
        if name.lower() == AUTHORITY:
            raise _RefusedError(
                f"{name!r} is what the authority's own files are called; choose another"
            )
    lower = [name.lower() for name in names]
    twice = sorted({name for name in lower if lower.count(name) > 1})
    if twice:
        raise _RefusedError(f"{', '.join(twice)}: named twice; names are distinct without case")
    if not (math.isfinite(days) and 0 < days <= MOST_DAYS):
        raise _RefusedError(f"--days must be above 0 and at most {MOST_DAYS:g} (got {days:g})")


def _problem(certificate: Certificate) -> str:
    now = datetime.datetime.now(datetime.UTC)
    if now > certificate.valid_until:
        return f"has expired on {certificate.valid_until:%Y-%m-%d}"
    if now < certificate.valid_from:
        return f"does not count before {certificate.valid_from:%Y-%m-%d}"
    return ""


def _summary(certificate: Certificate) -> str:
    holders = ", ".join((*certificate.names, *certificate.addresses))
    return f"for {holders}, valid until {certificate.valid_until:%Y-%m-%d}"


def _paths(directory: Path, name: str) -> tuple[Path, Path]:
    return directory / f"{name}.crt", directory / f"{name}.key"


def _check_new(paths: Sequence[Path]) -> None:
    there = [str(path) for path in paths if path.exists() or path.is_symlink()]
    if there:
        raise _RefusedError(
            f"{' and '.join(there)} {'are' if len(there) > 1 else 'is'} there already, and nothing "
            "is overwritten; move it away first, or name another directory"
        )


def _write(paths: tuple[Path, Path], pair: KeyPair) -> None:
    for path, content, mode in ((paths[1], pair.key, 0o600), (paths[0], pair.certificate, 0o644)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
