"""The certificates that a worker begins with: what is checked before anybody is dialled."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from telegrad.errors import AuthenticationError
from telegrad.transport import (
    TlsOptions,
    load_tls,
    make_authority,
    make_certificate,
    read_certificate,
)
from telegrad.transport.security import tls as tls_module
from tests.transport.workers import Authority


def test_a_key_that_others_may_read(authority: Authority) -> None:
    options = authority.options("alice")
    os.chmod(options.key, 0o640)
    with pytest.raises(AuthenticationError, match=r"mode 0640\); run: chmod 600"):
        load_tls(options, "alice")


def test_files_that_do_not_belong_together(authority: Authority, tmp_path: Path) -> None:
    alice, bob = authority.options("alice"), authority.options("bob")
    other = Authority(tmp_path / "other").options("alice")
    empty = tmp_path / "empty"
    empty.touch(0o600)
    for options, words in (
        (dataclasses.replace(alice, key=bob.key), "is no key to the certificate of 'alice'"),
        (dataclasses.replace(alice, ca=other.ca), "does not stand up to the authority"),
        (dataclasses.replace(alice, certificate=empty), "is no certificate in PEM form"),
        (dataclasses.replace(alice, ca=empty), "is no certificate in PEM form"),
        (dataclasses.replace(alice, key=empty), "is no key to the certificate"),
        (dataclasses.replace(alice, ca=tmp_path / "none"), "cannot be read"),
        (bob, "is 'alice', and the certificate of 'bob'"),
    ):
        with pytest.raises(AuthenticationError) as error:
            load_tls(options, "alice")
        assert words in str(error.value)


def test_one_setting_for_all_names(authority: Authority, tmp_path: Path) -> None:
    made = authority.options("Worker_1")
    for field in ("certificate", "key"):
        os.rename(getattr(made, field), tmp_path / f"Worker_1.{field}")
    shared = TlsOptions(
        ca=made.ca, certificate=tmp_path / "{name}.certificate", key=tmp_path / "{name}.key"
    )
    assert load_tls(shared, "Worker_1").only_name() == "Worker_1"
    with pytest.raises(AuthenticationError, match="this worker has none yet"):
        load_tls(shared, "")


def test_the_environment_names_the_files() -> None:
    names = {"TELEGRAD_TLS_CA": "a", "TELEGRAD_TLS_CERTIFICATE": "b", "TELEGRAD_TLS_KEY": "c"}
    explicit = TlsOptions(ca="x", certificate="y", key="z")
    assert tls_module.tls_options(None, names) == TlsOptions(ca="a", certificate="b", key="c")
    assert tls_module.tls_options(explicit, names) is explicit
    del names["TELEGRAD_TLS_KEY"]
    with pytest.raises(AuthenticationError, match="^TELEGRAD_TLS_KEY must be set, too"):
        tls_module.tls_options(None, names)


def test_a_key_is_not_shown(authority: Authority) -> None:
    tls = authority.tls("alice")
    assert "PRIVATE" not in f"{tls!r} {tls.pair!r} {make_authority()!r}"


def test_addresses_in_a_certificate_are_no_names(authority: Authority) -> None:
    pair = make_certificate(make_authority(), ["alice"], addresses=["10.0.0.7", "::1", "node7"])
    found = read_certificate(pair.certificate)
    assert found.addresses == ("10.0.0.7", "::1")
    assert found.names == ("alice", "node7")
    assert not found.authority
