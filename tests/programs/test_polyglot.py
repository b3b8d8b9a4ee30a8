"""A program in another language joins a job, calls, is refused, and leaves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import polyglot
from telegrad.transport.security.certificates import make_authority, make_certificate
from tests.conftest import Programs

JOINED = r"joined as node, rank 1, incarnation \d+\n"
EXPECTED = """\
scale: <f4 [ 3 ] [ 0.5, 1, 1.5 ]
column_sums: { '0': 4, '1': 6 }
scale: <f4 [ 1000000 ] true
RemoteError of type builtins:ValueError: a matrix was expected, not 'no matrix'
RemoteError of type telegrad.errors:CallRefusedError
left
"""


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "mutual TLS"])
def test_a_node_program_calls_functions_of_a_worker(
    programs: Programs, tmp_path: Path, encrypted: bool
) -> None:
    reason = polyglot.missing() or polyglot.install()
    if reason is not None:
        pytest.skip(reason)
    env = certificates(tmp_path) if encrypted else {}
    output = programs.run(["python", "scripts/polyglot.py"], env=env, limit=90.0)
    assert re.search(JOINED + re.escape(EXPECTED), output), output
    assert output.splitlines()[-1] == "[server] served"


def certificates(directory: Path) -> dict[str, str]:
    """Writes what both programs show and demand; returns the environment that says where."""
    authority = make_authority()
    (directory / "ca.crt").write_bytes(authority.certificate)
    for name, names in (("server", ["server", "coordinator"]), ("node", ["node"])):
        pair = make_certificate(authority, names)
        (directory / f"{name}.crt").write_bytes(pair.certificate)
        (directory / f"{name}.key").touch(0o600)
        (directory / f"{name}.key").write_bytes(pair.key)
    return {
        "TELEGRAD_TLS_CA": f"{directory}/ca.crt",
        "TELEGRAD_TLS_CERTIFICATE": f"{directory}/{{name}}.crt",
        "TELEGRAD_TLS_KEY": f"{directory}/{{name}}.key",
    }


def test_without_node_it_says_what_is_skipped(programs: Programs) -> None:
    output = programs.run(["python", "scripts/polyglot.py"], env={"PATH": "/nowhere"})
    assert output == "skipped: the Node client of examples/polyglot, since node is not installed\n"
