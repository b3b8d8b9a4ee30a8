"""What `import telegrad` loads; how long that takes is measured by `make size`."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import telegrad

# Each of them was seen to make the import slower by a tenth or more.
SLOW = {
    "asyncio",
    "cupy",
    "email",
    "google.protobuf",
    "grpc",
    "importlib.metadata",
    "msgpack",
    "multiprocessing",
    "ssl",
}


def test_the_version_is_that_of_the_distribution() -> None:
    assert telegrad.__version__ == importlib.metadata.version("telegrad")


def test_importing_telegrad_loads_nothing_slow_that_numpy_does_not_load() -> None:
    program = (
        "import sys, numpy; before = set(sys.modules); import telegrad; "
        f"print(sorted({SLOW!r} & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stdout + done.stderr
