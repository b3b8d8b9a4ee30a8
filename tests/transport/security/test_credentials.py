from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from telegrad.errors import AuthenticationError
from telegrad.transport import find_token, make_token, read_token_file, write_token_file
from tests.transport.workers import at_once

LONG = "a token that is long enough"


def test_the_order(tmp_path: Path) -> None:
    named = tmp_path / "named"
    write_token_file(named, b"from the file, long enough")
    environ = {"HOME": str(tmp_path)}
    own = find_token(None, environ)
    environ["TELEGRAD_TOKEN_FILE"] = str(named)
    assert find_token(None, environ) == b"from the file, long enough"
    environ["TELEGRAD_TOKEN"] = LONG
    assert find_token(None, environ) == LONG.encode()
    assert find_token("said by the program", environ) == b"said by the program"
    assert find_token(b"said by the program", environ) == b"said by the program"
    assert find_token(None, {"HOME": str(tmp_path)}) == own


def test_none_can_be_made() -> None:
    with pytest.raises(
        AuthenticationError, match="no credentials.*job.token.*export TELEGRAD_TOKEN_"
    ):
        find_token(None, {"HOME": "/dev/null"})


def test_the_users_own_is_made_once_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    found: list[bytes] = []
    at_once(*8 * [lambda: found.append(find_token(None, {"HOME": str(tmp_path)}))])
    assert len(set(found)) == 1
    assert len(found[0]) == 64
    path = tmp_path / ".config" / "telegrad" / "token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == ["token"]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o606])
def test_a_file_that_others_may_use(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    write_token_file(path)
    path.chmod(mode)
    with pytest.raises(AuthenticationError, match="chmod 600"):
        read_token_file(path)


def test_a_file_that_is_not_there_or_empty(tmp_path: Path) -> None:
    with pytest.raises(AuthenticationError, match="No such file"):
        find_token(None, {"TELEGRAD_TOKEN_FILE": str(tmp_path / "none")})
    (tmp_path / "empty").touch(0o600)
    with pytest.raises(AuthenticationError, match="too short"):
        read_token_file(tmp_path / "empty")


def test_a_token_that_can_be_guessed() -> None:
    with pytest.raises(AuthenticationError, match=r"characters: 6, at least 16"):
        find_token("secret", {})
    with pytest.raises(AuthenticationError, match=r"RpcOptions.token is too short"):
        find_token("", {})
    with pytest.raises(AuthenticationError, match="TELEGRAD_TOKEN is too short"):
        find_token(None, {"TELEGRAD_TOKEN": ""})


def test_an_inherited_descriptor() -> None:
    reading, writing = os.pipe()
    os.write(writing, LONG.encode() + b"\n")
    os.close(writing)
    assert find_token(None, {"TELEGRAD_TOKEN_FILE": f"/dev/fd/{reading}"}) == LONG.encode()
    os.close(reading)


def test_a_token_file_is_never_overwritten(tmp_path: Path) -> None:
    token = write_token_file(tmp_path / "token")
    with pytest.raises(FileExistsError):
        write_token_file(tmp_path / "token")
    assert read_token_file(tmp_path / "token") == token
    assert make_token() != make_token()


def test_only_a_file_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A FIFO blocked for ever, and root read the token of another user."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    with pytest.raises(AuthenticationError, match="is refused: it is no regular file; name a file"):
        find_token(None, {"TELEGRAD_TOKEN_FILE": str(fifo)})
    path = tmp_path / "token"
    write_token_file(path)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)  # the user that runs the tests may be root
    with pytest.raises(AuthenticationError, match=f"belongs to another user .uid {own}; this one"):
        read_token_file(path)


def test_an_inherited_pipe_that_nobody_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("telegrad.transport.security.own_file.PIPE_SECONDS", 0.02)
    reading, writing = os.pipe()
    try:
        os.write(writing, LONG.encode())
        with pytest.raises(AuthenticationError, match=r"it did not end within 0\.02 s"):
            read_token_file(f"/dev/fd/{reading}")
    finally:
        os.close(reading)
        os.close(writing)
