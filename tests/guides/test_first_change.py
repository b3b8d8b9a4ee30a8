"""The examples of docs/internals/first-change.md: their patches apply, and their commands pass."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "internals" / "first-change.md").read_text()
PATCHES = re.findall(r"^```diff\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
GENERATED = shutil.ignore_patterns(".*", "__pycache__", "node_modules", "site", "dist")

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def apply_patches(tree: Path) -> None:
    for patch in PATCHES:
        done = subprocess.run(
            ["git", "apply", "-"], cwd=tree, input=patch, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{done.stderr}\n{patch}"


def test_the_patches_apply(tmp_path: Path) -> None:
    """Where this fails, write the context and the line numbers of a patch anew."""
    for name in re.findall(r"^--- a/(.*)$", "".join(PATCHES), re.MULTILINE):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    apply_patches(tmp_path)
    made = re.findall(r"^--- /dev/null\n\+\+\+ b/(.*)$", "".join(PATCHES), re.MULTILINE)
    assert len(made) == 2
    assert all((tmp_path / name).exists() for name in made)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_commands_pass(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(ROOT, tree, ignore=GENERATED)
    apply_patches(tree)
    assert len(COMMANDS) >= 10
    for command in COMMANDS:
        tool, *words = command.split()
        assert tool.startswith(".venv/bin/")
        program = [Path(sys.executable).with_name(tool.rpartition("/")[2]), *words]
        done = subprocess.run(
            program,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
