"""`telegrad run` on two hosts: two launchers, at two addresses of loopback."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from telegrad.launch.run import how_to_copy
from tests.conftest import unused_port
from tests.launch.test_run import FORKED_WORKERS, WAIT, Run, wait_until_gone

TOKEN = "a token that only the tests use"
HEAD = """import os, signal, sys
from telegrad import rpc

def who():
    return "{RANK} {LOCAL_RANK} {WORLD_SIZE} {LOCAL_WORLD_SIZE} {TELEGRAD_NAME}".format(**os.environ)

def never():
    signal.pause()

"""

StartNodes = Callable[..., list[Run]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartNodes]:
    """Starts a launcher for each number of workers, with the text of a script."""
    runs: list[Run] = []

    def start(script: str, *workers: int, tokens: tuple[str, ...] = ()) -> list[Run]:
        port = unused_port()
        (tmp_path / "script.py").write_text(HEAD + script)
        for node, n in enumerate(workers):
            token = tokens[node] if tokens else TOKEN
            options = {
                "--nnodes": len(workers),
                "--node-rank": node,
                "--nproc-per-node": n,
                "--master-addr": "127.0.0.2",
                "--master-port": port,
            }
            words = [str(word) for pair in options.items() for word in pair]
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("TELEGRAD_TOKEN", token)
                runs.append(Run(tmp_path, *words, "script.py", command=[*FORKED_WORKERS, "run"]))
        return runs

    yield start
    for each in runs:
        each.close()


@pytest.mark.long
def test_ranks_go_by_node_and_all_are_one_job(start: StartNodes) -> None:
    script = (
        "rpc.init_rpc()\n"
        "print(*[rpc.rpc_sync(rank, who) for rank in range(3)], sep='; ')\n"
        "rpc.shutdown()\n"
    )
    said = "0 0 3 2 worker0; 1 1 3 2 worker1; 2 0 3 1 worker2"
    for node, run in enumerate(start(script, 2, 1)):
        code, lines = run.finish()
        assert code == 0, lines
        for rank in ((0, 1), (2,))[node]:
            assert f"[{rank}] {said}" in lines


@pytest.mark.parametrize("node", [0, 1])
def test_each_host_first_says_what_it_lacks_itself(tmp_path: Path, node: int) -> None:
    """Node 1 would wait for node 0 in vain, which lacks the same and has ended."""
    (tmp_path / "script.py").write_text("print('started')")
    without = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from telegrad.launch.cli import main; sys.exit(main())"
    )
    words = f"run --nnodes 2 --node-rank {node} --master-addr 192.0.2.1 --bind 0.0.0.0"
    command = [sys.executable, "-c", without, *words.split()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TELEGRAD_TOKEN", TOKEN)
        port = str(unused_port())
        run = Run(tmp_path, "--master-port", port, "script.py", command=command)
    with closing(run):
        code, lines = run.finish()
    assert code == 1
    (line,) = lines
    assert line.startswith("telegrad run: could not start: "), line
    assert "needs the package cryptography; run: pip install cryptography" in line


@pytest.mark.long
def test_a_failure_on_one_host_ends_the_job_on_all_and_is_named_there(start: StartNodes) -> None:
    """The other one fails as well, since it calls the first: it is not the one to be named."""
    script = (
        "rpc.init_rpc()\n"
        "if os.environ['RANK'] == '1':\n"
        "    raise ValueError('rank 1 is broken')\n"
        "rpc.rpc_sync(1, never)\n"
    )
    first, second = start(script, 1, 1)
    code, lines = second.finish()
    assert code == 1, lines
    assert lines[-1] == "telegrad run: rank 1 failed with exit code 1", lines
    assert "[1] ValueError: rank 1 is broken" in lines
    code, lines = first.finish()
    assert code == 1
    assert lines[-2:] == [
        "[1] ValueError: rank 1 is broken",
        "telegrad run: rank 1 on node 1 failed with exit code 1",
    ], lines


@pytest.mark.long
def test_a_rank_that_ended_elsewhere_without_joining_is_waited_for_by_nobody(
    start: StartNodes,
) -> None:
    runs = start(
        "if os.environ['RANK'] == '1':\n"
        "    raise SystemExit(0)\n"
        "from telegrad import rpc\n"
        "rpc.init_rpc(options=rpc.RpcOptions(init_timeout=float('inf')))\n",
        1,
        1,
    )
    words = r"RendezvousError: rank 1 ended \(exit code 0\) without joining"
    assert re.search(words, "\n".join(runs[0].finish()[1]))
    assert runs[1].finish()[0] == 1


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.long
def test_ctrl_c_on_any_host_interrupts_all(start: StartNodes, node: int) -> None:
    runs = start(WAIT, 1, 1)
    for run in runs:
        run.wait_for(r"pid=\d+ ready")
    runs[node].process.send_signal(signal.SIGINT)
    for each, run in enumerate(runs):
        code, lines = run.finish()
        assert code == 130, lines
        assert any("KeyboardInterrupt" in line for line in lines), lines
        if each != node:
            assert f"telegrad run: node {node} got SIGINT" in lines


@pytest.mark.long
@pytest.mark.parametrize("node", [0, 1])
def test_a_launcher_that_is_killed_ends_the_job_on_all(start: StartNodes, node: int) -> None:
    """The loss of node 0 is heard of at once, since its port is closed; of others by silence."""
    runs = start(WAIT, 1, 1)
    for run in runs:
        run.wait_for(r"pid=\d+ ready")
    runs[node].process.kill()
    other = runs[1 - node]
    code, lines = other.finish()
    assert code == 1, lines
    assert any(f"node {node} is lost" in line for line in lines), lines
    wait_until_gone([pid for run in runs for pid in run.pids()])


def test_tokens_that_differ_are_told_with_the_command_that_mends_it(start: StartNodes) -> None:
    runs = start(WAIT, 1, 1, tokens=(TOKEN, "another token of the same length"))
    code, lines = runs[1].finish()
    assert code == 1
    assert "set TELEGRAD_TOKEN to the same value on all nodes" in lines[-1], lines
    runs[0].wait_for(r"telegrad run: turned away: node1 from 127\.0\.0\.\d+ \(the dialler holds")
    runs[0].process.send_signal(signal.SIGINT)
    code, lines = runs[0].finish()
    assert code == 130
    assert not any('"event"' in line for line in lines), lines


def test_the_command_that_copies_a_token_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TELEGRAD_TOKEN", raising=False)
    monkeypatch.setenv("TELEGRAD_TOKEN_FILE", "/etc/telegrad/token")
    assert how_to_copy("node0").endswith("scp -p node0:/etc/telegrad/token /etc/telegrad/token")
    monkeypatch.delenv("TELEGRAD_TOKEN_FILE")
    assert how_to_copy("node0") == (
        "copy node 0's to this one: mkdir -p -m 700 ~/.config/telegrad && "
        "scp -p node0:~/.config/telegrad/token ~/.config/telegrad/token"
    )
