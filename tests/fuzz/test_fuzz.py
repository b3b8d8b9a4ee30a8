"""The short run: the corpus and some thousand mutations of it; `make fuzz` is the long one."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import engine, mutations, targets
from tests.fuzz.parts import join, split
from tests.fuzz.seeds import CORPUS, corpus, seeds

SEED = 20
INPUTS = 2000  # of each target; about a second
MEASURED = 500
# A part of 4 MiB is taken when its first piece is here (`targets.LIMITS`); the rest is in proportion.
LEAST_BYTES = 6 * 2**20
BYTES_PER_BYTE = 400


@pytest.fixture
def tracing() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.parametrize("target", targets.TARGETS)
def test_nothing_breaks(target: str) -> None:
    report = engine.run(target, INPUTS, SEED)
    assert report.count == INPUTS + len(corpus(target))


@pytest.mark.usefixtures("tracing")
@pytest.mark.parametrize("target", targets.TARGETS)
def test_memory_is_in_proportion(target: str) -> None:
    kept = corpus(target)
    parts, trees = targets.TARGETS[target].parts, target == "decoder"
    for data in islice(mutations.inputs(kept, SEED + 1, parts=parts, trees=trees), MEASURED):
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        engine.run_one(target, data)
        taken = tracemalloc.get_traced_memory()[1] - before
        assert taken < LEAST_BYTES + BYTES_PER_BYTE * len(data), data


def test_the_corpus_holds_the_seeds_and_is_small() -> None:
    for target, inputs in seeds().items():
        assert set(inputs) <= set(corpus(target)), "python -m tests.fuzz.seeds"
    assert {path.name for path in CORPUS.iterdir()} == set(targets.TARGETS)
    assert sum(file.stat().st_size for file in CORPUS.rglob("*") if file.is_file()) < 2**18


def test_what_breaks_is_found_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(data: bytes) -> None:
        if b"\xff" in data:
            raise ValueError("it is broken")

    monkeypatch.setattr(targets, "TARGETS", {"frame": targets.Target(fails)})
    monkeypatch.setattr(engine, "TARGETS", targets.TARGETS)
    with pytest.raises(engine.Broken, match="it is broken"):
        engine.run("frame", 10_000, SEED, tmp_path)
    assert b"\xff" in (tmp_path / "broken-frame").read_bytes()


def test_the_same_seed_makes_the_same_inputs() -> None:
    one, again, other = (
        list(islice(mutations.inputs(corpus("frame"), seed, parts=False, trees=False), 100))
        for seed in (1, 1, 2)
    )
    assert one == again
    assert one != other


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=5))
def test_parts(parts: list[bytes]) -> None:
    assert split(join(*parts)) == parts


@given(st.binary())
def test_any_input_has_parts(data: bytes) -> None:
    assert split(data)
