"""`make gpu` itself: its words where it cannot run, its table, and its timings on small arrays."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts import gpu as script
from scripts import gpu_calls, gpu_fused, gpu_steps, gpu_timing

SMALL = gpu_timing.Sizes(
    rows=((4, 3),), buckets=((2, 4),), copy_bytes=64, transfer_bytes=64, steps=((4, 8),)
)


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("580.159.03", "'.[cuda13x]'"),
        ("595.10", "'.[cuda13x]'"),
        ("550.54.15", "'.[cuda12x]'"),
        ("525.60", "'.[cuda12x]'"),
        ("470.82", "a driver of version 525 or later"),
        ("nonsense", "a driver of version 525 or later"),
    ],
)
def test_what_to_install_goes_by_the_driver(version: str, words: str) -> None:
    assert words in script.extra_for(version)


def run(tmp_path: Path, *, smi: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the script where no CuPy is, with an nvidia-smi that says something, or none."""
    if importlib.util.find_spec("cupy") is not None:
        pytest.skip("CuPy is installed here")
    if smi is not None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{smi}\n")
        program.chmod(0o755)
    command = [sys.executable, str(script.ROOT / "scripts" / "gpu.py")]
    command += ["--venv", str(tmp_path / "none"), "--json", str(tmp_path / "gpu.json")]
    environment = {**os.environ, "PATH": str(tmp_path)}
    environment.pop("PYTHON", None)
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_without_a_gpu_it_says_so_and_fails(tmp_path: Path) -> None:
    for smi in (None, "echo no devices were found; exit 6"):
        done = run(tmp_path, smi=smi)
        assert done.returncode == 1
        assert done.stderr.startswith("error: there is no GPU here: nvidia-smi is not there or")
        assert not (tmp_path / "gpu.json").exists()


def test_a_driver_that_does_not_answer_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(script, "ASK_SECONDS", 0.1)
    assert script.driver() is None


def test_without_cupy_it_says_what_to_install(tmp_path: Path) -> None:
    done = run(tmp_path, smi="echo NVIDIA H200, 580.159.03")
    assert done.returncode == 1
    assert "there is a GPU (NVIDIA H200, driver 580.159.03) but no Python" in done.stderr
    assert f"{sys.executable} lacks cupy" in done.stderr
    assert "pip install '.[cuda13x]'" in done.stderr


@pytest.mark.long
def test_every_case_runs_and_is_timed(xp: Any) -> None:
    found = gpu_timing.measure(xp, SMALL)
    names = [row["what"] for row in found["rows"]]
    assert names == [
        "copy",
        "cross_entropy",
        "cross_entropy_gradient",
        "flatten",
        "unflatten",
        "to the host",
        "from the host",
        "training step",
    ]
    assert all(row["cupy_ms"] >= 0 for row in found["rows"])
    text = script.timing_table(found)
    assert len(text.splitlines()) == len(names) + 2
    assert script.timing_table({"error": "it broke"}) == "no timings: it broke"


@pytest.mark.long
def test_fused_kernels_are_timed(xp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WARM_UP", "SECONDS", "FEWEST"):
        monkeypatch.setattr(gpu_timing, name, int(name == "FEWEST"))
    rows = gpu_timing.measure_fused(xp, gpu_fused.fused_cases(xp, shape=(8, 16)), busy_bytes=64)
    names = ["gelu", "gelu tanh", "glu", "layer norm", "batch norm", "group norm", "softmax"]
    names += ["cross entropy", "dropout", "convolution", "max pool"]
    names += [f"cast to {short}" for short in gpu_fused.SHORT]
    names.append("8 bits")
    names += ["attention, causal", "attention in tiles, causal", "lstm"]
    others = {"embedding, back", "flatten", "joint norm", "the largest 1 %"}
    others |= {f"{name} step" for name in gpu_fused.STEPS}
    assert {row["what"] for row in rows} == {*names, *(f"{name}, back" for name in names)} | others
    assert all(row["composed_ms"] for row in rows if row["what"].startswith("layer norm"))
    text = script.timing_table({"rows": rows, "copy_gb_per_s": 1.0})
    assert len(text.splitlines()) == 2 + 1 + 2 + len(rows)


def test_staging_is_timed(xp: Any) -> None:
    rows = gpu_calls.measure_staging(xp, size=2**20, calls=1)
    assert len(rows) == 2 * len(gpu_calls.PIECES) + 2
    assert len(script.timing_table({"rows": rows, "copy_gb_per_s": 1.0}).splitlines()) == 16


@pytest.mark.long
@pytest.mark.usefixtures("workers_have_cupy")
def test_calls_are_timed(xp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TELEGRAD_TOKEN", "a token that only the tests use")
    monkeypatch.setattr(gpu_calls, "TORCH_PROGRAM", Path(__file__))  # it prints nothing
    rows = gpu_calls.measure_calls(xp, sizes=(2**17, 2**20), calls=2)
    assert [row["size"] for row in rows] == ["0.125 MiB", "1 MiB"]
    assert all(row["host"] > 0 and row["shared"] > 0 for row in rows)
    assert all(row["torch"] is None and row["why"] for row in rows)


@pytest.mark.long
@pytest.mark.usefixtures("workers_have_cupy")
def test_reductions_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TELEGRAD_TOKEN", "a token that only the tests use")
    rows = gpu_calls.measure_reductions(sizes=(2**17, 2**20), calls=2)
    assert [row["size"] for row in rows] == ["0.125 MiB", "1 MiB"]
    assert all(row["host"] > 0 and row["shared"] > 0 for row in rows)


@pytest.mark.long
def test_training_steps_are_timed(xp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_steps, "SECONDS", 0.0)
    monkeypatch.setattr(gpu_steps, "FEWEST", 1)
    rows = gpu_steps.measure_steps(xp, sizes=gpu_steps.SMALL)
    names = ["MLP", "convolutional net", "LSTM", "transformer block", "transformer block"]
    assert [row["what"] for row in rows] == names
    assert [row["why"] for row in rows] == [""] * len(rows)
    assert all(row["ours"]["wall"] >= row["ours"]["host"] > 0 for row in rows)


@pytest.mark.long
def test_training_steps_that_compute_another_loss_or_fail_say_so(
    xp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_steps, "SECONDS", 0.0)
    monkeypatch.setattr(gpu_steps, "FEWEST", 1)
    cudnn = types.SimpleNamespace(allow_tf32=True)
    torch = types.SimpleNamespace(backends=types.SimpleNamespace(cudnn=cudnn))
    seen = []

    def their_step(torch: Any, xp: Any, case: gpu_steps.StepCase, first: Any) -> Any:
        seen.append(cudnn.allow_tf32)
        if case.what == "LSTM":
            raise RuntimeError("cuDNN is missing")
        return lambda: np.float32(123.0)

    monkeypatch.setattr(gpu_steps, "their_step", their_step)
    rows = gpu_steps.measure_steps(xp, torch, gpu_steps.SMALL)
    assert all(row["ours"] and row["torch"] is None for row in rows)
    assert rows[2]["why"] == "RuntimeError: cuDNN is missing"
    assert rows[0]["why"].startswith("losses differ: 2.")
    assert rows[0]["why"].endswith("and torch's 123.0000")
    assert (seen, cudnn.allow_tf32) == ([False] * 5, True)


def test_steps_and_calls_have_tables_of_their_own() -> None:
    step = {"what": "MLP", "size": "1", "why": ""}
    ours = {"gpu": 1.0, "wall": 3.0, "host": 2.0}
    broken = {**step, "ours": ours, "torch": None, "why": "it broke"}
    steps = [{**step, "ours": ours, "torch": {"gpu": 2.0, "wall": 4.0, "host": 2.5}}, broken]
    call = {"size": "1 MiB", "host": 4.0, "shared": 1.0, "torch": 2.0, "why": ""}
    calls = [call, {**call, "torch": None, "why": "it hung"}]
    reductions = [{"size": "2 MiB", "host": 4.0, "shared": 1.0}]
    found = {"rows": [], "steps": steps, "calls": calls, "reductions": reductions}
    found["error"] = "too long"
    text = script.timing_table(found)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    numbers = ["1.000", "2.000", "0.50", "3.000", "4.000", "0.75", "2.000", "2.500"]
    assert ["MLP", "1", *numbers] in lines
    assert ["MLP", "1", "1.000", "it broke", "", "3.000", "", "", "2.000", ""] in lines
    assert ["1 MiB", "4.000", "1.000", "2.000", "0.50"] in lines
    assert ["1 MiB", "4.000", "1.000", "it hung", ""] in lines
    assert ["2 MiB", "4.000", "1.000", "0.25"] in lines
    assert text.endswith("not all of it: too long")


def test_what_was_timed_before_an_end_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "python"
    program.write_text(
        "#!/bin/sh\necho '{\"rows\": []}'\necho '{\"rows\": [1'\necho no >&2\nexit 3"
    )
    program.chmod(0o755)
    assert script.run_timings(str(program)) == {"rows": [], "error": "no"}
    program.write_text("#!/bin/sh\nexit 3")
    assert script.run_timings(str(program)) == {"error": "no words"}
    program.write_text("#!/bin/sh\necho '{\"rows\": []}'\nexec sleep 60")
    monkeypatch.setattr(script, "TIMING_SECONDS", 1)
    assert script.run_timings(str(program))["error"] == "the timings took longer than 1 s"


def test_what_a_run_measured_goes_between_the_marks_of_the_page(tmp_path: Path) -> None:
    row = {"size": "1", "numpy_ms": None, "cupy_ms": 0.5, "gb_per_s": 2.0}
    rows = [{"what": "copy", **row}, {"what": "to the GPU in pieces of 1 MiB", **row}]
    keys = ("name", "driver", "cupy", "numpy", "python")
    result = {
        "when": "2026-01-02T03:04:05Z",
        "commit": "0123456789",
        "machine": dict.fromkeys(keys, "x"),
        "tests": [{"outcome": word} for word in ("passed", "passed", "failed")],
        "timings": {"rows": rows, "copy_gb_per_s": 4.0},
    }
    text = script.measured(result)
    assert text.startswith("2026-01-02, commit 0123456: x, driver x, CuPy x, NumPy x")
    assert "Of 3 tests, 2 passed, 1 failed and 0 were skipped." in " ".join(text.split())
    assert "| copy |" in text
    assert "50 %" in text
    assert "in pieces" not in text
    page = tmp_path / "page.md"
    begin, end = script.MARKS
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    script.put(page, text)
    assert page.read_text() == f"before\n{begin}\n\n{text}\n\n{end}\nafter\n"
    page.write_text(f"{end}\n{begin}\n")
    with pytest.raises(ValueError, match="once each"):
        script.put(page, text)
    assert all(script.PAGE.read_text().count(mark) == 1 for mark in script.MARKS)


def test_results_of_pytest_are_read(tmp_path: Path) -> None:
    path = tmp_path / "results.xml"
    path.write_text(
        """<testsuites><testsuite><testcase classname="tests.gpu.test_a" name="t1" time="0.5"/>
        <testcase classname="tests.gpu.test_a" name="t2" time="1"><failure message="m">x</failure>
        <failure message="contains 1 failed subtest">x</failure></testcase><testcase classname="tests.gpu.test_b" name="t3" time="0"><skipped message="s"/>
        </testcase></testsuite></testsuites>"""
    )
    found = script.read_results(path)
    assert [entry["outcome"] for entry in found] == ["passed", "failed", "skipped"]
    assert [entry["message"] for entry in found] == ["", "m\ncontains 1 failed subtest", "s"]
    assert script.test_table(found).splitlines()[2].split("|")[1:6] == [
        " gpu/test_a ",
        " 1      ",
        " 0       ",
        " 1      ",
        " 1.5     ",
    ]
