"""Trains a language model of characters whose layers are on four workers, on one host or on two.

    telegrad run --nproc-per-node 4 examples/character_pipeline.py

The model has four recurrent layers, and each worker has one of them. The micro-batches of a step
follow each other through the stages, forward and backward by turns (`docs/pipelines.md`):

    host 0    worker0    symbols ─► embedding, GRU ─┐
              worker1                               └► GRU ─┐
    host 1    worker2                                       └► GRU ─┐
              worker3                                               └► GRU, decoder ─► loss

Rank 0 has the text and drives the others. The text is what `help()` says about the language, as it
comes with every Python: half a million characters.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from pydoc_data.topics import topics
from typing import TypeAlias, final

import numpy as np
import numpy.typing as npt

import telegrad as tg
from telegrad import nn, optim, rpc
from telegrad.parallel import Pipeline

Symbols: TypeAlias = npt.NDArray[np.int64]

STEPS = 200
BATCH = 64  # pieces of the text in one step
MICRO_BATCHES = 8
LENGTH = 64  # characters of a piece
CHARACTERS = 128  # those of ASCII
WIDTH = 64
LAYERS = 4  # one on each worker
LEARNING_RATE = 0.01
MAX_NORM = 1.0
LINE_EVERY = 20
SAMPLE = 200  # characters
TEMPERATURE = 0.7  # below 1 the model writes what it holds for likely more often than it should


@final
class Layer(nn.Module):
    """Adds to each vector what a GRU makes of it and of those before it."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True, rng=rng)

    def forward(self, vectors: tg.Tensor) -> tg.Tensor:
        """Returns vectors of the same shape, (batch, length, WIDTH)."""
        read, _ = self.gru(vectors)
        result: tg.Tensor = vectors + read
        return result


def make_model() -> nn.Sequential:
    """Returns the whole model, the same on each call."""
    rng = np.random.default_rng(0)
    return nn.Sequential(
        nn.Embedding(CHARACTERS, WIDTH, rng=rng),
        *(Layer(rng) for _ in range(LAYERS)),
        nn.LayerNorm(WIDTH),
        nn.Linear(WIDTH, CHARACTERS, rng=rng),
    )


def cross_entropy(logits: tg.Tensor, following: Symbols) -> tg.Tensor:
    """Runs on the last worker: returns the mean over all characters."""
    return nn.functional.cross_entropy(logits.reshape(-1, CHARACTERS), following.reshape(-1))


def make_pipeline(workers: list[str]) -> Pipeline:
    """Gives each worker one layer; the first has the embedding, too, and the last the decoder."""
    return Pipeline.from_sequential(
        make_model(),
        workers,
        balance=[2, 1, 1, 3],
        schedule="1f1b",
        num_microbatches=MICRO_BATCHES,
        loss=cross_entropy,
    )


def encode(text: str) -> Symbols:
    """Returns the numbers of characters."""
    return np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int64)


def load_text() -> Symbols:
    """Returns what Python's `help()` says about all of its topics."""
    return encode("\n\n".join(topics[name] for name in sorted(topics)))


def draw_batch(text: Symbols, rng: np.random.Generator) -> tuple[Symbols, Symbols]:
    """Returns pieces of shape (BATCH, LENGTH), and the character that follows each character."""
    starts = rng.integers(len(text) - LENGTH, size=(BATCH, 1))
    pieces = text[starts + np.arange(LENGTH + 1)]
    return pieces[:, :-1], pieces[:, 1:]


def write(pipe: Pipeline, beginning: str, length: int) -> str:
    """Returns a text that the model goes on with, one character after the other."""
    rng = np.random.default_rng(0)
    written = encode(beginning)
    for _ in range(length):
        logits = pipe.forward(written[None, -LENGTH:])[0, -1]
        likely = nn.functional.softmax(logits / TEMPERATURE, -1).numpy().astype(float)
        written = np.append(written, rng.choice(CHARACTERS, p=likely / likely.sum()))
    return bytes(written.astype(np.uint8)).decode("ascii")


def train(picture: Path) -> None:
    """Makes the pipeline, trains it, draws its last step, and has it write."""
    text, rng = load_text(), np.random.default_rng(0)
    pipe = make_pipeline([worker.name for worker in rpc.get_worker_infos()])
    optimizer = pipe.optimizer(optim.Adam, lr=LEARNING_RATE, max_norm=MAX_NORM)
    began = time.monotonic()
    for i in range(1, STEPS + 1):
        loss = pipe.step(*draw_batch(text, rng))
        optimizer.step()
        if i == 1 or i % LINE_EVERY == 0:
            print(f"step {i:3}/{STEPS}  loss {loss:.3f}", flush=True)
    seconds = time.monotonic() - began
    print(f"{STEPS * BATCH * LENGTH / seconds:,.0f} characters/s, {seconds:.1f} s")

    picture.write_text(pipe.picture(svg=True))
    print(f"most micro-batches that a stage held: {pipe.report().held}; the last step: {picture}")
    print("it writes:")
    print(write(pipe, "The ", SAMPLE))


def main() -> None:
    """Is the driver or serves its stage, by rank."""
    parser = argparse.ArgumentParser(description="Learns to write, in a pipeline.")
    parser.add_argument("--picture", type=Path, default="step.svg", help="where to draw a step")
    picture = parser.parse_args().picture
    with rpc.init_rpc() as agent:
        if agent.world_size != LAYERS:
            sys.exit(f"it takes {LAYERS}; run: telegrad run --nproc-per-node {LAYERS} {__file__}")
        if agent.rank == 0:
            train(picture)


if __name__ == "__main__":
    main()
