"""Learns which page of Python's manual a line is from: a table on a server, dense layers in DDP.

    telegrad run --nproc-per-node 3 examples/ddp_rpc.py

Rank 0 owns a table of vectors, one for each word and each pair of words. Every other rank is a
trainer with a part of the lines. It asks the server for what it needs of the table, by a call; the
layers behind are a copy on every trainer, whose gradients are averaged. One backward does both.

                          server, by RPC                 trainers, in DDP
    trainer 1   words ──► rows of the table ─► mean ──►  layers ─ loss     gradients of the layers:
    trainer 2   words ──► rows of the table ─► mean ──►  layers ─ loss     averaged among trainers
                          gradient of the table: of the rows that were used, and stays there

The table has 32,768 rows, of which a batch uses some hundred: its gradient is a `RowSparse`, and a
step of Adagrad computes those rows alone (`docs/sparse.md`). The texts are of Python's help().
"""

from __future__ import annotations

import re
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pydoc_data.topics import topics
from typing import TypeAlias, final

import numpy as np
import numpy.typing as npt

import telegrad as tg
from telegrad import collectives as dist
from telegrad import dist_autograd, nn, optim, rpc
from telegrad.nn import functional
from telegrad.parallel import DistributedDataParallel, DistributedOptimizer, parameter_rrefs

Integers: TypeAlias = npt.NDArray[np.int64]

EPOCHS = 2  # a third one learns the lines by heart
BATCH = 32  # of one trainer
ROWS = 32_768
DIMENSION = 32
HIDDEN = 64
PAGES = 10
LEARNING_RATE = 0.1
LINE_EVERY = 14  # batches
FEWEST_WORDS = 4  # of a line
LONGEST = 32  # words and pairs of a line that count
NAME = "table"  # under which the server's part is found


@final
class Table(nn.Module):
    """The server's part: rows by number, to the mean of their vectors.

    Args:
        rows: How many vectors there are; row 0 is none, and fills up short lines.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        self.vectors = nn.Embedding(rows, DIMENSION, padding_idx=0, sparse=True, rng=rng)
        self.vectors.weight.data *= 0.1  # small beside a step: what is learned soon counts

    def forward(self, lines: Integers) -> tg.Tensor:
        """Returns the mean vector of each line: (batch, LONGEST) rows to (batch, DIMENSION)."""
        lengths = (lines != 0).sum(axis=1, keepdims=True).astype(np.float32)
        means: tg.Tensor = self.vectors(lines).sum(axis=1) / lengths
        return means


def make_layers(seed: int) -> nn.Module:
    """Returns the trainers' part: (batch, DIMENSION) vectors to (batch, PAGES) logits."""
    rng = np.random.default_rng(seed)
    return nn.Sequential(
        nn.Linear(DIMENSION, HIDDEN, rng=rng), nn.ReLU(), nn.Linear(HIDDEN, PAGES, rng=rng)
    )


@final
class Trainer:
    """Owns a copy of the dense layers; the table is the server's.

    Args:
        table: The server's part.
        trainers: The group of all trainers, who make theirs at the same time.
    """

    def __init__(self, table: rpc.RRef[Table], trainers: dist.ProcessGroup) -> None:
        self.table = table
        self.layers = DistributedDataParallel(make_layers(seed=0), process_group=trainers)
        self.optimizer = DistributedOptimizer(
            optim.Adagrad,
            [*parameter_rrefs(table), *parameter_rrefs(self.layers)],
            lr=LEARNING_RATE,
        )

    def logits(self, lines: Integers) -> tg.Tensor:
        """Returns what the model makes of some lines."""
        logits: tg.Tensor = self.layers(self.table.rpc_sync().forward(lines))
        return logits

    def step(self, lines: Integers, pages: Integers) -> float:
        """Trains on one batch and returns its loss."""
        with dist_autograd.context() as context_id:
            loss = functional.cross_entropy(self.logits(lines), pages)
            dist_autograd.backward(context_id, [loss])
            self.optimizer.step(context_id)
        return float(loss.item())

    def accuracy(self, text: Text) -> float:
        """Returns of how many percent of some lines the model knows the page."""
        with tg.no_grad():
            logits = self.logits(text.lines)
        return 100.0 * float((logits.numpy().argmax(axis=1) == text.pages).mean())


@final
@dataclass(frozen=True, slots=True)
class Text:
    """Lines and where they are from.

    Attributes:
        lines: Rows of the table by line, filled up with 0, shape (lines, LONGEST).
        pages: The number of the page of each, shape (lines,).
    """

    lines: Integers
    pages: Integers

    def part(self, which: Integers) -> Text:
        """Returns some of the lines."""
        return Text(self.lines[which], self.pages[which])


def rows_of(line: str) -> list[int]:
    """Returns the rows of a line's words and pairs of words; some share one (Weinberger, 2009)."""
    words = re.findall(r"[a-z_]+", line.lower())
    pairs = [f"{one} {two}" for one, two in pairwise(words)]
    if len(words) < FEWEST_WORDS:
        return []
    return [1 + zlib.crc32(each.encode()) % (ROWS - 1) for each in [*words, *pairs]][:LONGEST]


def load_data() -> tuple[Text, Text]:
    """Returns four fifths of the lines of the longest pages, and the fifth held out."""
    names = sorted(topics, key=lambda name: (-len(topics[name]), name))[:PAGES]
    found = [
        (rows + [0] * (LONGEST - len(rows)), page)
        for page, name in enumerate(names)
        for rows in map(rows_of, topics[name].splitlines())
        if rows
    ]
    text = Text(np.array([rows for rows, _ in found]), np.array([page for _, page in found]))
    order = np.random.default_rng(0).permutation(len(found))
    train, test = np.split(order, [len(order) * 4 // 5])
    return text.part(train), text.part(test)


def batches(count: int, size: int, epoch: int) -> Iterator[Integers]:
    """Yields the same batches on every trainer; all are whole, so that all have as many."""
    order = np.random.default_rng(epoch).permutation(count)
    for start in range(0, count - size + 1, size):
        yield order[start : start + size]


def train(group: dist.ProcessGroup) -> None:
    """Is one trainer, from the first step to the result."""
    began = time.monotonic()
    text, held_out = load_data()
    trainer = Trainer(rpc.lookup(0, NAME), group)
    first = group.rank == 0
    losses: list[float] = []
    for epoch in range(1, EPOCHS + 1):
        for batch in batches(len(text.pages), BATCH * group.size, epoch):
            mine = text.part(batch[group.rank :: group.size])
            losses.append(trainer.step(mine.lines, mine.pages))
            if first and len(losses) % LINE_EVERY == 0:
                loss = np.mean(losses[-LINE_EVERY:])
                print(f"epoch {epoch}/{EPOCHS}  batch {len(losses):3}  loss {loss:.4f}", flush=True)
    own = np.concatenate([array.ravel() for array in trainer.layers.state_dict().values()])
    copies = dist.all_gather(own, group=group)
    if first:
        often = 100.0 * np.bincount(held_out.pages).max() / len(held_out.pages)
        equal = all(copy.tobytes() == own.tobytes() for copy in copies)
        print(f"{len(text.pages):,} lines, {len(held_out.pages)} others for the test")
        print(
            f"test accuracy: {trainer.accuracy(held_out):.1f} %   "
            f"always the longest page: {often:.1f} %"
        )
        print(f"dense layers bitwise equal on all trainers: {'yes' if equal else 'no'}")
        print(f"time: {time.monotonic() - began:.1f} s", flush=True)


def main() -> None:
    """Is the server or a trainer, by rank."""
    with rpc.init_rpc() as agent:
        if agent.world_size < 2:
            sys.exit("a server trains nothing; run: telegrad run --nproc-per-node 3 " + __file__)
        if agent.rank == 0:
            rpc.publish(NAME, Table(ROWS))
            print(f"one server, {agent.world_size - 1} trainers", flush=True)
        else:
            train(dist.new_group(range(1, agent.world_size)))


if __name__ == "__main__":
    main()
