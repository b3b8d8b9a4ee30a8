"""Asks the suite's own fixtures to notice what they are there for."""

from __future__ import annotations

import time

import pytest

from tests.conftest import Programs
from tests.loops import on_loop


def test_a_blocking_call_on_the_loop_is_recorded(blocking_calls: list[str]) -> None:
    async def blocks() -> None:
        time.sleep(0.0)  # noqa: ASYNC251 - that is what the fixture is to notice

    with pytest.raises(Exception, match="Blocking call to time.sleep"):
        on_loop(blocks)
    assert len(blocking_calls) == 1
    blocking_calls.clear()


def test_a_blocking_call_elsewhere_is_none_of_its_business(blocking_calls: list[str]) -> None:
    time.sleep(0.0)
    assert not blocking_calls


def test_a_program_gets_the_limit_and_shows_its_output(programs: Programs) -> None:
    script = programs.script(
        "print('so far', flush=True)\nimport threading\nthreading.Event().wait()"
    )
    program = programs.start(["python", script])
    program.wait_for("so far")
    program.limit = 0.2
    with pytest.raises(pytest.fail.Exception, match="ran longer than 0.2 s; its output:\nso far"):
        program.wait()
    assert program.process.returncode is not None


def test_a_program_that_fails_shows_its_output(programs: Programs) -> None:
    with pytest.raises(pytest.fail.Exception, match="ended with 3, not 0; its output:\nwhy"):
        programs.run(["python", "-c", "print('why'); raise SystemExit(3)"])


def test_ranks_get_what_env_reads(programs: Programs) -> None:
    script = programs.script("import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'])")
    assert [program.wait() for program in programs.ranks(script, 2)] == ["0 2\n", "1 2\n"]
