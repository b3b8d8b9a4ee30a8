"""The job's token: its sources, how a new one is made, and the permissions of its file."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

from telegrad.errors import AuthenticationError
from telegrad.transport.log import get_logger
from telegrad.transport.security.own_file import UnfitFileError, read_secret

logger = get_logger(__name__)

TOKEN_BYTES = 32  # 256 random bits
MIN_TOKEN_CHARACTERS = 16  # shorter ones can be guessed
USER_TOKEN_FILE = Path(".config") / "telegrad" / "token"


def make_token() -> bytes:
    """Returns a new random token: 256 bits, written in hexadecimal.

    >>> len(make_token())
    64
    """
    return secrets.token_hex(TOKEN_BYTES).encode()


def find_token(explicit: str | bytes | None, environ: Mapping[str, str]) -> bytes:
    """Finds the token of this job.

    The first of these counts: the program's own option, `TELEGRAD_TOKEN`, the file that
    `TELEGRAD_TOKEN_FILE` names (or the inherited descriptor, as `/dev/fd/N`), and the user's own
    file `~/.config/telegrad/token`, which is made with mode 0600 if it does not exist.

    Args:
        explicit: `RpcOptions.token`.
        environ: `os.environ`, or a test's substitute.

    Raises:
        AuthenticationError: A token is too short; or its file is missing, empty, or accessible to
            other users; or there is no token and none can be made.
    """
    if explicit is not None:
        text = explicit.encode() if isinstance(explicit, str) else bytes(explicit)
        return _checked(text, "RpcOptions.token")
    if "TELEGRAD_TOKEN" in environ:
        return _checked(environ["TELEGRAD_TOKEN"].encode(), "TELEGRAD_TOKEN")
    path = token_path(environ)
    if not environ.get("TELEGRAD_TOKEN_FILE") and not path.exists():
        try:
            _make_user_token(path)
        except OSError as error:
            raise AuthenticationError(
                f"this worker has no credentials: {path} is not there and cannot be made "
                f"({error.strerror}); run: (umask 077; python -c 'import secrets; "
                "print(secrets.token_hex())' > job.token), then: export "
                "TELEGRAD_TOKEN_FILE=$PWD/job.token"
            ) from error
    return read_token_file(path)


def token_path(environ: Mapping[str, str]) -> Path:
    """Returns the file of the token: the one that is named, else the user's own.

    >>> token_path({"HOME": "/home/ann"}), token_path({"TELEGRAD_TOKEN_FILE": "job.token"})
    (PosixPath('/home/ann/.config/telegrad/token'), PosixPath('job.token'))
    """
    if environ.get("TELEGRAD_TOKEN_FILE"):
        return Path(environ["TELEGRAD_TOKEN_FILE"])
    return Path(environ.get("HOME") or Path.home()) / USER_TOKEN_FILE


def write_token_file(path: str | os.PathLike[str], token: bytes | None = None) -> bytes:
    """Writes a token (a new one by default) to a new file that only its owner may read.

    Returns:
        The token.

    Raises:
        FileExistsError: The file exists already; it is left alone.
    """
    token = make_token() if token is None else token
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(token + b"\n")
    return token


def read_token_file(path: str | os.PathLike[str]) -> bytes:
    """Reads a token from a file that only its owner may read.

    Raises:
        AuthenticationError: The file cannot be read, is empty, is another user's, or others may
            read or write it.
    """
    try:
        text = read_secret(path, 4096)
    except UnfitFileError as error:
        raise AuthenticationError(
            f"the token file {os.fspath(path)!r} is refused: {error.strerror}"
        ) from error
    except OSError as error:
        raise AuthenticationError(
            f"the token file {os.fspath(path)!r} cannot be read ({error.strerror}); "
            f"name another one in TELEGRAD_TOKEN_FILE"
        ) from error
    return _checked(text, f"the token file {os.fspath(path)!r}")


def _checked(text: bytes, source: str) -> bytes:
    token = text.strip()
    if len(token) < MIN_TOKEN_CHARACTERS:
        raise AuthenticationError(
            f"the token in {source} is too short (characters: {len(token)}, at least "
            f"{MIN_TOKEN_CHARACTERS}); python -c 'import secrets; print(secrets.token_hex())' "
            f"makes a good one"
        )
    return token


def _make_user_token(path: Path) -> None:
    """Makes the user's token file; if several processes do so at once, one of them wins.

    The token is first written to a separate file, which is then linked. So no process ever reads
    half a token.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".token-{os.getpid()}-{time.monotonic_ns()}-{secrets.token_hex(4)}")
    write_token_file(draft)
    try:
        os.link(draft, path)
        logger.info("made a token for this user's jobs: %s", path)
    except FileExistsError:
        logger.debug("another process made %s first", path)
    finally:
        draft.unlink()
