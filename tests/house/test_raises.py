"""Checks that what telegrad raises on purpose derives from TelegradError."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "telegrad"

# What Python itself raises for a wrong argument, name or index, or for a lack of something outside
# of telegrad: whoever calls a function in a wrong way gets these from any library.
OF_ARGUMENTS = {
    "TypeError", "ValueError", "AttributeError", "KeyError", "IndexError", "ZeroDivisionError",
    "NotImplementedError", "ImportError", "MemoryError", "AssertionError", "SystemExit",
    "StopIteration", "StopAsyncIteration", "KeyboardInterrupt",
}  # fmt: skip

# Built-in errors that a file may make, and why no user meets them as they are.
ELSEWHERE: dict[tuple[str, str], str] = {
    ("rpc/rref/calls.py", "RuntimeError"): "is kept for a reference that nobody sees",
    ("transport/security/tls_probe.py", "ConnectionResetError"): "is caught beside it",
    ("rpc/pool/user_loop.py", "CancelledError"): "asyncio's own, of a coroutine that never began",
    ("rpc/pool/user_loop.py", "RuntimeError"): "the call that it was for gets NotInitializedError",
    ("rpc/verbs/race.py", "RuntimeError"): "stands for an error that is there",
    (
        "rpc/call/runner.py",
        "CancelledError",
    ): "asyncio's own, of a coroutine that cancelled itself",
    ("rpc/future/future.py", "CancelledError"): "asyncio's own, for asyncio's functions",
    ("rendezvous/file.py", "OSError"): "becomes a RendezvousError",
    ("transport/security/own_file.py", "TimeoutError"): "becomes an AuthenticationError",
    ("transport/loop.py", "RuntimeError"): "a mistake of telegrad's",
    (
        "transport/host.py",
        "RuntimeError",
    ): "as Python's own, where no thread starts; names the limit",
    ("transport/sockets/tls_socket.py", "BlockingIOError"): "as of a socket that does not block",
    ("transport/session/exchange.py", "RuntimeError"): "a mistake of telegrad's",
    ("transport/session/link.py", "TimeoutError"): "becomes words of the doctor",
    ("arrays/shared.py", "OSError"): "the system has no shared memory",
    ("checkpoint.py", "OSError"): "of the disk, of which safetensors tells the text alone",
    ("arrays/device_memory.py", "LookupError"): "the session takes another way",
    ("doctor/report.py", "LookupError"): "a wrong argument",
    ("launch/run.py", "TimeoutError"): "the launcher writes it and exits",
    ("testing/cluster.py", "TimeoutError"): "a test took too long",
    ("testing/fork_server.py", "ConnectionError"): "for telegrad's own tests",
}
# Dialling and listening raise the system's errors: the session makes a WorkerLostError of those of a
# dial, a join a RendezvousError; what cannot listen is an OSError of init_rpc, as it says.
OF_THE_SYSTEM = {"OSError", "ConnectionError", "ConnectionRefusedError", "PermissionError"}
SYSTEM_FILES = ("transport/", "testing/faults.py")

# Classes of errors that are no TelegradError: control flow inside a package.
INSIDE = {
    "BadTagError", "CarrierClosedError", "EndedElsewhereError", "LeakError", "LedOnError", "NoTlsError", "Refused",
    "RefusedError", "UnfitFileError", "_ConsumerGoneError", "_HungUpError", "_RefusedError",
}  # fmt: skip


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text())


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def is_error(name: str) -> bool:
    found = getattr(builtins, name, None)
    return name == "CancelledError" or (
        isinstance(found, type) and issubclass(found, BaseException)
    )


def test_no_file_makes_a_plain_error() -> None:
    """Whether it raises it or puts it into a future; or the tables above say why."""
    found: set[tuple[str, str]] = set()
    for file, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Name):
                made = node.exc.id
            elif isinstance(node, ast.Call):
                made = name_of(node.func)
            else:
                continue
            of_system = made in OF_THE_SYSTEM and file.startswith(SYSTEM_FILES)
            if is_error(made) and made not in OF_ARGUMENTS and not of_system:
                found.add((file, made))
    assert found == set(ELSEWHERE)


def test_every_class_of_errors_is_telegrads() -> None:
    bases: dict[str, set[str]] = {}
    for _, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                bases.setdefault(node.name, set()).update(map(name_of, node.bases))

    def ancestors(name: str) -> set[str]:
        found = bases.get(name, set()) - {name}
        return found.union(*map(ancestors, found))

    errors = {name for name in bases if any(map(is_error, ancestors(name)))} - {"TelegradError"}
    assert len(errors) > 30
    assert {name for name in errors if "TelegradError" not in ancestors(name)} == INSIDE
