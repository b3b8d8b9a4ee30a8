"""Runs examples/polyglot: a Python worker, and a Node client that calls its functions.

    scripts/polyglot.py

Where node or npm is missing it says so and runs nothing; that is no failure. The client's packages
are installed in examples/polyglot/node_modules, by the versions of its package-lock.json.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "polyglot"
INSTALL = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent")
OLDEST_NODE = (20, 19)  # what @noble/hashes asks for
INSTALL_SECONDS = 120.0
RUN_SECONDS = 60.0


def say(text: str) -> None:
    """Prints at once: the client's own lines come between."""
    sys.stdout.write(text)
    sys.stdout.flush()


def missing() -> str | None:
    """Returns what keeps the example from running here; None where nothing does."""
    for command in ("node", "npm"):
        if shutil.which(command) is None:
            return f"{command} is not installed"
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False)
    found = tuple(map(int, re.findall(r"\d+", version.stdout)[:2]))
    if found < OLDEST_NODE:
        oldest = ".".join(map(str, OLDEST_NODE))
        return f"node is {version.stdout.strip() or 'broken'}, the packages need {oldest} or later"
    return None


def install() -> str | None:
    """Installs the client's packages, once; returns why that cannot be, else None."""
    stamp, lock = EXAMPLE / "node_modules" / ".package-lock.json", EXAMPLE / "package-lock.json"
    if stamp.exists() and stamp.stat().st_mtime >= lock.stat().st_mtime:
        return None
    say("installing into examples/polyglot/node_modules: what package-lock.json names\n")
    try:
        done = subprocess.run(
            INSTALL,
            cwd=EXAMPLE,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"npm installed nothing within {INSTALL_SECONDS:g} s"
    return None if done.returncode == 0 else f"npm cannot install: {done.stderr.strip()[-500:]}"


def run() -> int:
    """Runs both programs; returns an exit code."""
    with tempfile.TemporaryDirectory() as directory:
        job = Path(directory) / "job"
        token = {"TELEGRAD_TOKEN": secrets.token_hex(32)}
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **token}
        with subprocess.Popen(
            [sys.executable, EXAMPLE / "server.py", job],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as server:  # fmt: skip
            try:
                assert server.stdout is not None
                for line in server.stdout:  # it has joined, and written the file, when it serves
                    say(f"[server] {line}")
                    if line.startswith("serving"):
                        break
                else:
                    return server.wait(RUN_SECONDS) or 1
                client = ["node", str(EXAMPLE / "client.mjs"), str(job)]
                code = subprocess.run(client, env=environment, timeout=RUN_SECONDS, check=False)
                for line in server.stdout if code.returncode == 0 else ():
                    say(f"[server] {line}")
                return code.returncode or server.wait(RUN_SECONDS)
            finally:
                server.kill()


def main() -> int:
    """Runs the command; returns its exit code."""
    reason = missing()
    if reason is not None:
        say(f"skipped: the Node client of examples/polyglot, since {reason}\n")
        return 0
    reason = install()
    if reason is not None:
        sys.stderr.write(f"error: {reason}\n")
        return 1
    return run()


if __name__ == "__main__":
    sys.exit(main())
