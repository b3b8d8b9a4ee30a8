"""The benchmarks still run against the library as it is; what they find is not judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import ROOT, Programs


def test_no_call_runs_more_functions_than_before(programs: Programs) -> None:
    output = programs.run(["python", "benchmarks/functions.py", "--calls", "200", "--most"])
    assert "| empty call | " in output


@pytest.mark.long
def test_the_benchmark_of_calls_runs_and_writes_what_it_found(
    programs: Programs, tmp_path: Path
) -> None:
    path = tmp_path / "found.json"
    few = ["--peers", "telegrad", "--rounds", "1", "--seconds", "0.05", "--workers", "3"]
    output = programs.run(["python", "benchmarks/rpc.py", *few, "--json", path])
    reports = json.loads(path.read_text())["peers"]["telegrad"]
    for state in ("idle", "busy"):
        figures = reports["2 workers"][0]["figures"][state]
        for what in ("call", "echo 1 KiB", "echo 1 MiB", "echo 64 MiB", "reference"):
            assert 0 < figures[what]["p50"] <= figures[what]["p99"]
        assert figures["calls"]["per_second"] > 0
    assert reports["growth 3"][0]["figures"]["idle"]["start"]["ms"] > 0
    for row in ("echo 64 MiB, p50 us, busy callee", "all workers up, ms, 3 workers"):
        assert f"| {row} | " in output


@pytest.mark.long
def test_the_benchmark_of_gradients_runs_and_writes_what_it_found(
    programs: Programs, tmp_path: Path
) -> None:
    path = tmp_path / "found.json"
    few = ["--peers", "telegrad", "numpy", "--rounds", "1", "--seconds", "0.01"]
    networks = ["lstm", "small_cnn", "transformer_block", "attention_step"]
    cases = ["perceptron", "chain", *networks, "rosenbrock"]
    output = programs.run(
        ["python", "benchmarks/autograd.py", *few, "--json", path, "--cases", *cases]
    )
    found = json.loads(path.read_text())["cases"]
    assert list(found) == cases
    assert all(not figures["errors"] for figures in found.values())
    assert set(found["perceptron"]["seconds"]) == {"telegrad", "numpy"}
    assert set(found["perceptron"]["bytes"]) == {"telegrad", "numpy"}
    assert found["attention_step"]["bytes"]["telegrad"] > 0
    assert "us an operation of the chain" in output


@pytest.mark.long
@pytest.mark.timeout(180)  # seven processes, which import NumPy and gRPC
def test_the_benchmark_of_gradients_across_workers_runs_and_writes_what_it_found(
    programs: Programs, tmp_path: Path
) -> None:
    path = tmp_path / "found.json"
    few = ["--peers", "telegrad", "--rounds", "1", "--seconds", "0.05", "--workers", "2", "3"]
    output = programs.run(
        ["python", "benchmarks/dist_autograd.py", *few, "--json", path], limit=150.0
    )
    reports = json.loads(path.read_text())["peers"]["telegrad"]
    assert list(reports) == ["one other", "chain of 2", "chain of 3"]
    for plan, figure in (("one other", "step"), ("one other", "tensors 1000"), *CHAINS):
        found = reports[plan][0]["figures"][figure]
        assert 0 < found["p50"] <= found["p99"]
    for row in ("step", "1,000 tensors", "chain of 3 workers"):
        assert f"| {row} | " in output
    assert "telegrad, each more worker of the chain: " in output
    assert "telegrad, each more tensor: " in output


CHAINS = (("chain of 2", "chain"), ("chain of 3", "chain"))


@pytest.mark.long
@pytest.mark.timeout(180)  # a dozen processes, which import NumPy and gRPC
def test_make_bench_runs_and_writes_what_it_found(programs: Programs, tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    names = ["calls", "step", "jobs", "mlp", "collectives", "ddp", "growth"]
    few = ["--quick", "--peers", "telegrad", "--only", *names]
    output = programs.run(["python", "benchmarks/bench.py", *few, "--json", path], limit=150.0)
    parts = json.loads(path.read_text())["parts"]
    assert list(parts) == names
    assert list(parts["growth"]["telegrad"]) == ["2 workers", "4 workers"]
    assert parts["calls"]["telegrad"]["2 workers"][0]["transport"]
    rows = [line for line in output.splitlines() if line.startswith("| ")]
    assert sum("| – | at " in row for row in rows) == 27  # torch was not asked for
    assert not any("| – | – | at " in row for row in rows)


@pytest.mark.long
@pytest.mark.timeout(180)  # a dozen processes, which import NumPy and gRPC
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="compares with a commit")
def test_make_bench_quick_runs_and_compares_with_a_commit(programs: Programs) -> None:
    few = ["--rounds", "1", "--seconds", "0.05"]
    output = programs.run(["python", "benchmarks/quick.py", *few], limit=150.0)
    rows = [line for line in output.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 31
    assert not any("not measured" in row for row in rows)


@pytest.mark.long
@pytest.mark.parametrize("transport", ["grpc", "local", "inproc"])
def test_make_profile_runs_and_says_where_a_call_spends_its_time(
    programs: Programs, transport: str
) -> None:
    few = ["--transport", transport, "--calls", "100"]
    output = programs.run(["python", "benchmarks/call_profile.py", *few])
    assert f"An empty call over `{transport}`: " in output
    for row in (
        "encode the request",
        "decode the request",
        "read the arguments, run, settle",
        "encode the reply",
        "return",
    ):
        assert f" | {row} | " in output
    assert "| caller | all of these | " in output
    assert " | worker1-pool-1 | " in output
    assert "is not there" not in output


@pytest.mark.long
def test_the_profile_of_the_chain_runs_and_says_where_time_goes(programs: Programs) -> None:
    output = programs.run(
        ["python", "benchmarks/chain_profile.py", "--rounds", "1", "--seconds", "0.5"]
    )
    for row in ("forward: NumPy's own", "backward: order, rules, sums", "all"):
        assert f"| {row} | " in output
    assert "| `operation" in output


@pytest.mark.long
@pytest.mark.timeout(200)
def test_pipelines_are_measured(programs: Programs) -> None:
    few = ["--only", "step", "crossing", "--peers", "telegrad", "--rounds", "1", "--seconds", "0.1"]
    output = programs.run(["python", "benchmarks/pipeline.py", *few], limit=150.0)
    rows = [line.split("|")[1].strip() for line in output.splitlines() if line.startswith("| ")]
    assert rows == [
        *("step", "one process", "one process, micro-batches", "gpipe", "1f1b"),
        *("crossing", "2 stages", "4 stages"),
        *("2 stages, backward in halves", "4 stages, backward in halves"),
        *("gpipe", "gpipe, a step", "1f1b", "1f1b, a step", "interleaved", "interleaved, a step"),
        *("zb-h1", "zb-h1, a step", "zb-v", "zb-v, a step"),
    ]
