"""The command line itself."""

from __future__ import annotations

import importlib.metadata

import pytest

from telegrad.launch.cli import main


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"telegrad {importlib.metadata.version('telegrad')}\n"


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    assert "telegrad run --nproc-per-node 3 train.py" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["start"], ["run"]])
def test_bad_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
