"""Asks scripts/environment.sh for one clear line about whatever a machine lacks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout without an environment, at a path with a space in it."""
    place = tmp_path / "a check out"
    place.mkdir()
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, place)
    shutil.copytree(ROOT / "scripts", place / "scripts")
    return place


def make(checkout: Path, *words: str, **environ: str) -> str:
    """Runs make, which must fail, and returns what it says of its own."""
    ours = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHON"}  # of the make that runs the tests
    env = {name: value for name, value in os.environ.items() if name not in ours} | environ
    done = subprocess.run(
        ["make", *words], cwd=checkout, env=env, capture_output=True, text=True, timeout=50
    )
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if not line.startswith("make:")]
    assert len(said) == 1, done.stderr
    return said[0]


def python_that(checkout: Path, case: str, answer: str) -> str:
    """Writes an interpreter that answers differently when its program contains a word."""
    path = checkout / "python-stub"
    path.write_text(
        f'#!/bin/sh\ncase "$2" in *{case}*) {answer};; *) exec {sys.executable} "$@";; esac\n'
    )
    path.chmod(0o755)
    return "./python-stub"


def test_an_interpreter_that_is_not_there_is_named(checkout: Path) -> None:
    said = make(checkout, "PYTHON=python3.99", "demo")
    assert said.startswith("error: PYTHON=python3.99 is not there; name a Python of 3.11")


def test_an_interpreter_that_is_too_old_is_named_with_its_version(checkout: Path) -> None:
    stub = python_that(
        checkout, "version_info", 'case "$2" in *print*) echo 3.9;; *) exit 1;; esac'
    )
    said = make(checkout, f"PYTHON={stub}", "demo")
    assert said == f"error: PYTHON={stub} is Python 3.9, telegrad needs 3.11 or later"


def test_a_missing_venv_module_is_named_with_the_remedy(checkout: Path) -> None:
    said = make(checkout, f"PYTHON={python_that(checkout, 'ensurepip', 'exit 1')}", "demo")
    assert "sudo apt install python3-venv" in said


@pytest.mark.long  # makes an environment with pip in it: 5 s
def test_an_index_that_cannot_be_reached_is_said_in_one_line(checkout: Path) -> None:
    said = make(
        checkout,
        f"PYTHON={sys.executable}",
        "demo",
        PIP_CONFIG_FILE="/dev/null",
        PIP_FIND_LINKS="",
        PIP_INDEX_URL="http://127.0.0.1:9/simple",
        PIP_RETRIES="0",
        PIP_NO_CACHE_DIR="1",
    )
    assert said.startswith("error: no package index that has the pinned versions can be reached")


def test_nothing_is_installed_again_while_the_stamp_is_newer(checkout: Path) -> None:
    binaries = checkout / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").symlink_to(sys.executable)
    (checkout / ".venv" / ".installed-examples").touch()
    done = subprocess.run(
        ["sh", "scripts/environment.sh", ".venv", "examples"],
        cwd=checkout, capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_pins_name_no_index_and_cover_every_extra() -> None:
    pins = (ROOT / "constraints.txt").read_text()
    assert "://" not in pins
    assert "--" not in pins
    for name in ("grpcio==", "grpcio-tools==1.80.0", "hatchling==", "scikit-learn==", "uv=="):
        assert f"\n{name}" in pins
