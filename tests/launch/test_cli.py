"""The command line itself."""

from __future__ import annotations

import importlib.metadata

import pytest

from telegrad.launch.cli import main


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"telegrad {importlib.metadata.version('telegrad')}\n"


@pytest.mark.parametrize(
    "example",
    ["telegrad run --nproc-per-node 3 train.py", "telegrad tune --nnodes 2 --node-rank 0"],
)
def test_help_has_an_example(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([example.split()[1], "--help"]) == 0
    assert example in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [[], ["start"], ["run"], ["certs"], ["certs", "issue"], ["certs", "burn"]]
)
def test_bad_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
