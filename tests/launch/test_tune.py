"""`telegrad tune` on one host: it measures by TCP, and writes a table that groups take."""

from __future__ import annotations

from pathlib import Path

import pytest

from telegrad.collectives import Thresholds
from telegrad.launch.cli import main
from tests.conftest import Programs

QUICK = ["--longest", "4096", "--repeats", "1"]
USES = """
from telegrad import collectives as dist

print(dist.init_process_group().thresholds.digest)
dist.destroy_process_group()
"""


@pytest.mark.long
def test_it_writes_a_table_that_a_job_takes(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table.toml"
    command: list[str | Path] = ["telegrad", "tune", "--nproc-per-node", "2", *QUICK]
    said = programs.run([*command, "--output", table])
    assert said == f"wrote {table}; set TELEGRAD_THRESHOLDS to its path\n"
    assert table.read_text().startswith("# telegrad tune, 2 ranks, by TCP on ")
    measured = Thresholds.load(table)
    used = Thresholds(few_ranks=measured.few_ranks + 1)
    used.save(table)
    monkeypatch.setenv("TELEGRAD_THRESHOLDS", str(table))
    output = programs.run(["telegrad", "run", "--nproc-per-node", "2", programs.script(USES)])
    assert sorted(output.splitlines()) == [f"[{r}] {used.digest}" for r in range(2)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nproc-per-node", "1"], "at least 2 on one host: one rank sends nothing"),
        (["--output", "/no/such/place/table.toml"], "--output cannot be written: no directory"),
        (["--nnodes", "2"], "--nnodes 2 needs --node-rank, --master-addr, --master-port as well"),
        (["--nnodes", "0"], "--nnodes must be at least 1"),
        (["--longest", "much"], "invalid int value"),
    ],
)
def test_bad_usage(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_what_cannot_be_measured_is_told(programs: Programs, tmp_path: Path) -> None:
    command: list[str | Path] = [
        "telegrad",
        "tune",
        "--longest",
        "10",
        "--output",
        tmp_path / "table.toml",
    ]
    said = programs.run(command, code=1)
    assert "longest_bytes must be at least 1024" in said
    assert not (tmp_path / "table.toml").exists()
