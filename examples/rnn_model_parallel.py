"""Learns to write Python's documentation, with a model whose layers live on two workers.

    telegrad run --nproc-per-node 3 examples/rnn_model_parallel.py

Worker 1 owns the embedding and the decoder, worker 2 the LSTM between them. Rank 0 owns no
parameter: it has the text, and drives both.

    worker0    symbols ──┐       ┌─ vectors ──┐       ┌─ vectors ──┐        ┌─► loss
    worker1              └► embed┘            │       │            └► decode┘
    worker2                                   └► LSTM ┘

`backward` goes the same way back, and the optimizer steps each parameter where it lives. The text
is what `help()` says about the language, as it comes with every Python: half a million characters.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pydoc_data.topics import topics
from typing import TypeAlias, final

import numpy as np
import numpy.typing as npt

import telegrad as tg
from telegrad import dist_autograd, nn, optim, rpc
from telegrad.nn import functional
from telegrad.parallel import DistributedOptimizer, RemoteModule, parameter_rrefs
from telegrad.types import Array

Symbols: TypeAlias = npt.NDArray[np.int64]
State: TypeAlias = tuple[Array, Array]
"""What the LSTM remembers of the text before, for each part of a batch."""

TRAINING_STEPS = 400
BATCH = 32  # parts of the text, read side by side
LENGTH = 50  # characters of each in one step
EMBEDDING = 32
HIDDEN = 128
LEARNING_RATE = 0.01
LINE_EVERY = 50
SAMPLE = 300  # characters
TEMPERATURE = 0.6  # below 1 the model writes what it holds for likely more often than it should


@final
class CharacterModel(nn.Module):
    """Tells how likely each character is to come next; its layers live on other workers.

    Args:
        characters: How many there are.
        outer: Who makes and keeps the embedding and the decoder.
        inner: Who makes and keeps the LSTM.
    """

    def __init__(self, characters: int, outer: rpc.WorkerInfo, inner: rpc.WorkerInfo) -> None:
        super().__init__()
        for worker in (outer, inner):
            rpc.rpc_sync(worker, seed, (worker.rank,))
        self.embedding = RemoteModule(outer, nn.Embedding, (characters, EMBEDDING))
        self.lstm = RemoteModule(inner, nn.LSTM, (EMBEDDING, HIDDEN), {"batch_first": True})
        self.decoder = RemoteModule(outer, nn.Linear, (HIDDEN, characters))

    def forward(self, symbols: Symbols, state: State | None) -> tuple[tg.Tensor, State]:
        """Returns the logits and what to remember.

        Args:
            symbols: What was read; shape (batch, length).
            state: What is remembered of the text before; None at its beginning.

        Returns:
            Logits of shape (batch, length, characters), and the state, without its graph: the
            gradient goes no further back than this step.
        """
        vectors, (h, c) = self.lstm(self.embedding(symbols), state)
        return self.decoder(vectors), (h.data, c.data)


def seed(number: int) -> None:
    """Runs on a worker: what it draws from now on is the same in every run."""
    tg.manual_seed(number)


@final
class Text:
    """A text as numbers, and which character each is."""

    def __init__(self, text: str) -> None:
        self.characters = sorted(set(text))
        self.numbers = {character: i for i, character in enumerate(self.characters)}
        symbols = self.encode(text)
        self.training, self.held_out = np.split(symbols, [len(symbols) * 39 // 40])

    def encode(self, text: str) -> Symbols:
        """Returns the numbers of characters."""
        return np.array([self.numbers[character] for character in text])

    def decode(self, symbols: Symbols) -> str:
        """Returns the characters of numbers."""
        return "".join(self.characters[i] for i in symbols)


def load_text() -> Text:
    """Returns what Python's `help()` says about all of its topics."""
    return Text("\n\n".join(topics[name] for name in sorted(topics)))


def batches(symbols: Symbols) -> Iterator[tuple[Symbols, Symbols, bool]]:
    """Yields pieces of shape (BATCH, LENGTH), what follows each character, and if it is a start.

    The text is cut into BATCH parts, which are read side by side, again and again.
    """
    length = (len(symbols) - 1) // BATCH // LENGTH * LENGTH
    read = symbols[: BATCH * length].reshape(BATCH, length)
    following = symbols[1 : BATCH * length + 1].reshape(BATCH, length)
    while True:
        for start in range(0, length, LENGTH):
            piece = slice(start, start + LENGTH)
            yield read[:, piece], following[:, piece], start == 0


def cross_entropy(logits: tg.Tensor, following: Symbols) -> tg.Tensor:
    """Returns the mean over all characters; its exponential is the perplexity."""
    return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), following.ravel())


@final
class Training:
    """A model and its optimizer."""

    def __init__(self, model: CharacterModel) -> None:
        self.model = model
        self.optimizer = DistributedOptimizer(optim.Adam, parameter_rrefs(model), lr=LEARNING_RATE)
        self.state: State | None = None

    def step(self, symbols: Symbols, following: Symbols, starts: bool) -> float:
        """Trains on one piece of the text and returns its loss."""
        with dist_autograd.context() as context_id:
            logits, self.state = self.model(symbols, None if starts else self.state)
            loss = cross_entropy(logits, following)
            dist_autograd.backward(context_id, [loss])
            self.optimizer.step(context_id)
        return float(loss.item())


def perplexity(model: CharacterModel, symbols: Symbols) -> float:
    """Returns of how many characters, as it were, the model does not know which one is next."""
    read = symbols[: len(symbols) // BATCH * BATCH].reshape(BATCH, -1)
    with tg.no_grad():
        logits, _ = model(read[:, :-1], None)
        return float(np.exp(cross_entropy(logits, read[:, 1:]).item()))


def write(model: CharacterModel, text: Text, beginning: str, length: int) -> str:
    """Returns a text that the model goes on with, one character after the other."""
    rng = np.random.default_rng(0)
    written = text.encode(beginning)
    read, state = written, None
    with tg.no_grad():
        for _ in range(length):
            logits, state = model(read[None], state)
            likely = functional.softmax(logits[0, -1] / TEMPERATURE, -1).numpy().astype(float)
            read = rng.choice(len(likely), 1, p=likely / likely.sum())
            written = np.concatenate([written, read])
    return text.decode(written)


def train() -> None:
    """Makes the model, trains it, and has it write."""
    began = time.monotonic()
    text = load_text()
    _, outer, inner, *_ = rpc.get_worker_infos()
    model = CharacterModel(len(text.characters), outer, inner)
    print(
        f"embedding and decoder on {outer.name}, LSTM on {inner.name}; "
        f"{len(text.training):,} characters, {len(text.characters)} different ones"
    )
    print(f"perplexity of held-out text: {perplexity(model, text.held_out):.1f}", flush=True)
    training, losses = Training(model), list[float]()
    pieces = batches(text.training)
    for i in range(1, TRAINING_STEPS + 1):
        losses.append(training.step(*next(pieces)))
        if i % LINE_EVERY == 0:
            print(
                f"step {i:3}/{TRAINING_STEPS}  "
                f"perplexity {np.exp(np.mean(losses[-LINE_EVERY:])):5.2f}  "
                f"of held-out text {perplexity(model, text.held_out):5.2f}",
                flush=True,
            )
    print(f"time: {time.monotonic() - began:.1f} s", flush=True)
    print("it writes:")
    print(write(model, text, "The ", SAMPLE))


if __name__ == "__main__":
    with rpc.init_rpc() as agent:
        if agent.rank == 0:
            if agent.world_size < 3:
                sys.exit("it takes three; run: telegrad run --nproc-per-node 3 " + __file__)
            train()
