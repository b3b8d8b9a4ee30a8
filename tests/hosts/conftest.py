"""What the tests between hosts share: hosts, launchers on them, and workers that tests talk to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import Program, Programs
from tests.hosts.namespaces import Hosts

TOKEN = "a token that only the tests use"
PORT = 29500  # a host has all its ports for itself

MakeHosts = Callable[..., Hosts]
Launch = Callable[..., list[Program]]


@pytest.fixture
def make_hosts() -> Iterator[MakeHosts]:
    """Makes hosts as `Hosts` does, and takes them away; skips where they cannot be made."""
    with ExitStack() as stack:
        yield lambda n, **options: stack.enter_context(Hosts.made(n, **options))


@pytest.fixture
def launch(programs: Programs, tmp_path: Path) -> Launch:
    """Runs `telegrad run` on each of some hosts, with so many workers each; node 0 on the first.

    `arguments` and `names` (what is `/etc/hosts`) are by host. With `nnodes` the job has
    more hosts than are started here.
    """

    def launch(
        hosts: Hosts,
        script: str,
        *workers: int,
        nnodes: int | None = None,
        master: str = "",
        arguments: Sequence[Sequence[str]] = (),
        names: Sequence[Path] = (),
    ) -> list[Program]:
        path = programs.script(script)
        started = []
        for node, n in enumerate(workers):
            options = {
                "--nnodes": nnodes or len(workers),
                "--node-rank": node,
                "--nproc-per-node": n,
                "--master-addr": master or hosts.address(0),
                "--master-port": PORT,
            }
            words = [str(word) for pair in options.items() for word in pair]
            program = programs.start(
                [
                    *hosts.on(node, names=names[node] if names else None),
                    *("python", "-m", "telegrad.launch.cli", "run"),
                    *words,
                    *(arguments[node] if arguments else ()),
                    path,
                ],
                env={
                    "TELEGRAD_TOKEN": TOKEN,
                    "TMPDIR": str(tmp_path),
                    "OMP_NUM_THREADS": "1",
                },
            )
            started.append(program)
        return started

    return launch
