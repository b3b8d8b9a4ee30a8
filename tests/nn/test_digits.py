"""The whole compute tower at work: a perceptron learns scikit-learn's digits in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import telegrad as tg
from telegrad import nn, optim
from tests.gpu.comparison import host, of

EPOCHS, BATCH, HELD_OUT = 6, 64, 360


def test_a_perceptron_learns_digits(xp: Any) -> None:
    data = pytest.importorskip("sklearn.datasets").load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = xp.asarray((data.data[order] / 16).astype(np.float32))
    labels = xp.asarray(data.target[order])
    train_images, train_labels = images[HELD_OUT:], labels[HELD_OUT:]

    rng = np.random.default_rng(1)
    model = nn.Sequential(nn.Linear(64, 64, rng=rng), nn.ReLU(), nn.Linear(64, 10, rng=rng))
    if xp is not np:
        model.to("cuda")
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(EPOCHS):
        shuffled = xp.asarray(rng.permutation(len(train_labels)))
        for start in range(0, len(shuffled), BATCH):
            batch = shuffled[start : start + BATCH]
            loss = nn.functional.cross_entropy(model(train_images[batch]), train_labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    assert all(of(xp, p) for p in model.parameters())
    with tg.no_grad():
        guesses = np.argmax(model(images[:HELD_OUT]), axis=1)
    accuracy = float(np.mean(host(guesses) == host(labels[:HELD_OUT])))
    assert accuracy >= 0.95
