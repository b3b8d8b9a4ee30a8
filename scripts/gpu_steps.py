"""Times whole training steps beside torch's eager ones: forward, loss, backward, optimizer.

Each model is built twice by one function, of telegrad's modules and of torch's, with the same first
parameters and inputs in the same memory. Both must compute the same first loss. Torch's optimizers are
its fused ones. Products in float32 are computed in float32 on both sides: neither CuPy nor torch uses
TF32 in cuBLAS by default, and torch's use of it in cuDNN (its default) is switched off.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from scripts.gpu_fused import without_tf32
from telegrad import arrays, nn, optim

__all__ = ["SIZES", "SMALL", "StepSizes", "measure_steps"]

WARM_UP = 5
FEWEST, MOST = 20, 200
SECONDS = 1.0  # for one number, once the fewest steps are done
LOSSES_DIFFER = 0.02  # at the most, as a part of the loss: products of the one are in float16
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 1e-3, "momentum": 0.9},
    "Adam": {"lr": 1e-4},
}
Run = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class StepSizes:
    """How big models and inputs are."""

    mlp: tuple[int, int, int]  # batch, inputs, width
    images: tuple[int, int, int]  # batch, side, channels of the first layer
    lstm: tuple[int, int, int]  # steps, batch, hidden
    block: tuple[int, int, int, int]  # batch, tokens, width, heads


SIZES = StepSizes(
    mlp=(128, 784, 1024), images=(64, 32, 32), lstm=(50, 64, 512), block=(8, 512, 1024, 16)
)
SMALL = StepSizes(mlp=(4, 6, 8), images=(2, 8, 2), lstm=(3, 2, 4), block=(2, 4, 8, 2))


@dataclass(frozen=True)
class StepCase:
    """One row of the table.

    Attributes:
        what: The model.
        size: Of the model and its inputs.
        optimizer: A key of `OPTIMIZERS`.
        build: Makes the model of the modules of `telegrad.nn` or `torch.nn`.
        x: The inputs, on the host.
        target: Labels, or numbers of the output's shape, on the host.
        dtype: That of products: float32, or float16 by autocast and with a scaled loss.
    """

    what: str
    size: str
    optimizer: str
    build: Callable[[Any], Any]
    x: np.ndarray[Any, Any]
    target: np.ndarray[Any, Any]
    dtype: str = "float32"


def step_cases(sizes: StepSizes) -> Iterator[StepCase]:
    """Returns the rows."""
    rng = np.random.default_rng(0)

    def numbers(*shape: int) -> np.ndarray[Any, Any]:
        return rng.normal(size=shape).astype(np.float32)

    batch, inputs, wide = sizes.mlp

    def mlp(nn: Any) -> Any:
        first = nn.Linear(inputs, wide), nn.ReLU()
        return nn.Sequential(*first, nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 10))

    words = f"{inputs}-{wide}-{wide}-10, batch {batch}"
    labels = rng.integers(0, 10, batch)
    yield StepCase("MLP", words, "SGD", mlp, numbers(batch, inputs), labels)

    batch, side, channels = sizes.images

    def convolutional(nn: Any) -> Any:
        layers: list[Any] = []
        for before, after in ((3, channels), (channels, 2 * channels)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after)]
            layers += [nn.ReLU(), nn.MaxPool2d(2)]
        outputs = 2 * channels * (side // 4) ** 2
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(outputs, 10))

    words = f"{batch} x 3 x {side} x {side}, {channels} and {2 * channels} channels"
    labels = rng.integers(0, 10, batch)
    yield StepCase(
        "convolutional net", words, "SGD", convolutional, numbers(batch, 3, side, side), labels
    )

    steps, batch, hidden = sizes.lstm
    x, target = numbers(steps, batch, hidden), numbers(steps, batch, hidden)
    words = f"{steps} steps, batch {batch}, hidden {hidden}"
    yield StepCase("LSTM", words, "Adam", lambda nn: nn.LSTM(hidden, hidden), x, target)

    batch, tokens, width, heads = sizes.block

    def block(nn: Any) -> Any:
        options = {"activation": "gelu", "batch_first": True, "norm_first": True, "dropout": 0.0}
        return nn.TransformerEncoderLayer(width, heads, dim_feedforward=4 * width, **options)

    x, target = numbers(batch, tokens, width), numbers(batch, tokens, width)
    words = f"{batch} x {tokens} tokens, width {width}, {heads} heads"
    yield StepCase("transformer block", words, "Adam", block, x, target)
    yield StepCase("transformer block", words, "Adam", block, x, target, "float16")


def our_step(xp: Any, case: StepCase) -> tuple[Any, Run]:
    """Returns a model and what runs a step of it and returns the loss, without a wait."""
    nn.manual_seed(0)
    x, target = xp.asarray(case.x), xp.asarray(case.target)
    model = case.build(nn).to(arrays.device_of(x))
    parameters = model.parameters()
    optimizer = getattr(optim, case.optimizer)(parameters, **OPTIMIZERS[case.optimizer])
    short = case.dtype != "float32"
    scale = optim.LossScale() if short else None
    return model, _step(
        nn.functional,
        model,
        optimizer,
        scale,
        lambda: nn.autocast(case.dtype) if short else nullcontext(),
        x,
        target,
    )


def their_step(torch: Any, xp: Any, case: StepCase, first: dict[str, Any]) -> Run:
    """Returns what runs a step of torch's model, which starts from the state `first` of ours."""
    x, target = (torch.from_dlpack(xp.asarray(each)) for each in (case.x, case.target))
    theirs = case.build(torch.nn).to(x.device)
    theirs.load_state_dict({k: torch.from_numpy(arrays.to_host(v)) for k, v in first.items()})
    kind = getattr(torch.optim, case.optimizer)
    optimizer = kind(theirs.parameters(), fused=True, **OPTIMIZERS[case.optimizer])
    short = case.dtype != "float32"
    place, dtype = x.device.type, getattr(torch, case.dtype)
    scale = torch.amp.GradScaler(place) if short else None
    return _step(
        torch.nn.functional,
        theirs,
        optimizer,
        scale,
        lambda: torch.autocast(place, dtype) if short else nullcontext(),
        x,
        target,
    )


def _step(
    functional: Any,
    model: Any,
    optimizer: Any,
    scale: Any,
    cast: Callable[[], Any],
    x: Any,
    target: Any,
) -> Run:
    """A step in the names that telegrad and torch have in common."""

    def run() -> Any:
        optimizer.zero_grad()
        with cast():
            made = model(x)
            made = made[0] if isinstance(made, tuple) else made  # of a recurrent layer
            lose = functional.cross_entropy if target.ndim == 1 else functional.mse_loss
            loss = lose(made, target)
        if scale is None:
            loss.backward()
            optimizer.step()
        else:
            scale.scale(loss).backward()
            scale.step(optimizer)
            scale.update()
        return loss

    return run


def time_step(xp: Any, run: Run) -> dict[str, float]:
    """Returns median milliseconds of a step that starts on an idle GPU.

    Returns:
        `gpu`: by events before and after it; `wall`: by the clock, until all is done; `host`: until
        the host has launched it all.
    """
    start, end = xp.cuda.Event(), xp.cuda.Event()
    found: list[tuple[float, float, float]] = []
    for _ in range(WARM_UP):
        run()
    finish = time.perf_counter() + SECONDS
    while len(found) < FEWEST or (len(found) < MOST and time.perf_counter() < finish):
        start.record()
        start.synchronize()
        began = time.perf_counter()
        start.record()
        run()
        end.record()
        launched = time.perf_counter()
        end.synchronize()
        ended = time.perf_counter()
        elapsed = xp.cuda.get_elapsed_time(start, end)
        found.append((elapsed, 1e3 * (ended - began), 1e3 * (launched - began)))
    return dict(zip(("gpu", "wall", "host"), map(median, zip(*found, strict=True)), strict=True))


def measure_steps(xp: Any, torch: Any = None, sizes: StepSizes = SIZES) -> list[dict[str, Any]]:
    """Times the steps; `xp` is CuPy, and `torch` None where it is not installed.

    Returns:
        A row for each step: `what`, `size`, `ours` and `torch` (the times of `time_step`, or None),
        and `why` in words where one of them has no times.
    """
    rows = []
    with without_tf32(torch):
        for case in step_cases(sizes):
            row: dict[str, Any] = {"what": case.what, "size": f"{case.size}, {case.dtype}"}
            row |= {"ours": None, "torch": None, "why": ""}
            rows.append(row)
            try:
                model, ours = our_step(xp, case)
                first = model.state_dict()
                loss = ours().item()
                row["ours"] = time_step(xp, ours)
                if torch is None:
                    continue
                theirs = their_step(torch, xp, case, first)
                other = theirs().item()
                if not math.isclose(loss, other, rel_tol=LOSSES_DIFFER):
                    row["why"] = f"losses differ: {loss:.4f}, and torch's {other:.4f}"
                    continue
                row["torch"] = time_step(xp, theirs)
            except Exception as error:  # the other rows are still of use
                row["why"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return rows
