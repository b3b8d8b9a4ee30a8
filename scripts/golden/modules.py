"""Modules of torch: state_dict in, inputs, outputs, gradients of inputs and parameters, buffers after."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from golden.builder import dyadic, in_torch, replace

from tests.golden.store import Value, direction

__all__ = ["modules"]

X, Y, Z, U = Value(0), Value(1), Value(2), Value(3)
Spec = dict[str, Any]


def spec(name: str, *args: Any, shapes: Any = ((2, 3),), call: Any = None, **options: Any) -> Spec:
    """A module, and how it is called; `shapes` are those of the inputs, or arrays."""
    numbered = [Value(k) for k in range(len(shapes))]
    return {"class": name, "args": args, "options": options, "shapes": shapes,
            "call": numbered if call is None else call, "named": {}, "calls": ["train"]}  # fmt: skip


def calls(given: Spec, *modes: str) -> Spec:
    """The same, called in each mode in turn: "train" or "eval"."""
    return given | {"calls": list(modes)}


def named(given: Spec, **options: Any) -> Spec:
    """The same, called with these keywords."""
    return given | {"named": options}


def whole(*shape: int, below: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, below, shape)


def within(*shape: int, low: float = 0.125, high: float = 0.875, seed: int = 3) -> Any:
    return dyadic(np.random.default_rng(seed), shape, low, high)


def layers() -> Iterator[Spec]:
    yield spec("Linear", 3, 4)
    yield spec("Linear", 3, 2, bias=False, shapes=((2, 2, 3),))
    yield spec("Linear", 3, 2, shapes=((3,),))
    yield spec("LayerNorm", 4, shapes=((3, 4),))
    yield spec("LayerNorm", (2, 3), shapes=((2, 2, 3),), eps=0.01)
    yield spec("LayerNorm", 4, shapes=((3, 4),), elementwise_affine=False)
    yield spec("LayerNorm", 4, shapes=((3, 4),), bias=False)
    yield spec("RMSNorm", 4, shapes=((3, 4),), eps=0.01)
    for name, shape in [
        ("BatchNorm1d", (5, 3)),
        ("BatchNorm1d", (4, 3, 2)),
        ("BatchNorm2d", (2, 3, 2, 2)),
    ]:
        yield calls(spec(name, 3, shapes=(shape,)), "train", "eval")
        yield calls(
            spec(name, 3, shapes=(shape,), momentum=0.25, eps=0.01), "train", "train", "eval"
        )
        yield calls(spec(name, 3, shapes=(shape,), affine=False), "train", "eval")
        yield calls(spec(name, 3, shapes=(shape,), track_running_stats=False), "train", "eval")
    yield calls(spec("BatchNorm1d", 3, shapes=((5, 3),), momentum=None), "train", "train", "eval")
    yield spec("Embedding", 5, 3, shapes=(whole(2, 4, below=5),))
    yield spec("Embedding", 5, 3, shapes=(whole(6, below=5),), padding_idx=2)
    yield spec("Embedding", 5, 3, shapes=(whole(6, below=5),), sparse=True)
    yield spec("Flatten", shapes=((2, 3, 2),))
    yield spec("Flatten", shapes=((2, 3, 2),), start_dim=0, end_dim=1)


def convolutions() -> Iterator[Spec]:
    image = ((1, 2, 5, 4),)
    yield spec("Conv2d", 2, 3, 3, shapes=image)
    yield spec("Conv2d", 2, 3, 3, shapes=image, stride=2, padding=1)
    yield spec("Conv2d", 2, 2, (3, 2), shapes=image, stride=(1, 2), padding=(2, 1), bias=False)
    yield spec("Conv2d", 2, 2, 2, shapes=image, dilation=2)
    yield spec("Conv2d", 2, 2, (2, 3), shapes=image, dilation=(3, 2), padding=(1, 2), stride=(2, 1))
    yield spec("Conv2d", 4, 4, 3, shapes=((2, 4, 3, 3),), groups=2, padding=1)
    yield spec("Conv2d", 3, 6, 2, shapes=((1, 3, 4, 5),), groups=3, stride=2)
    yield spec("Conv2d", 2, 3, 1, shapes=image)
    yield spec("Conv2d", 2, 3, 3, shapes=((2, 5, 4),), padding=1)
    yield spec("Conv1d", 2, 3, 3, shapes=((2, 2, 7),), stride=2, padding=1)
    yield spec("Conv1d", 4, 2, 2, shapes=((2, 4, 6),), dilation=3, groups=2)
    yield spec("MaxPool2d", 2, shapes=image)
    yield spec("MaxPool2d", 3, shapes=image, stride=2, padding=1)
    yield spec("MaxPool2d", (2, 3), shapes=image, stride=1)
    yield spec("MaxPool2d", 2, shapes=image, stride=1, dilation=2)
    yield spec("Conv2d", 2, 2, (3, 2), shapes=image, padding="same")
    yield spec("AvgPool2d", 2, shapes=image)
    yield spec("AvgPool2d", 3, shapes=image, stride=2, padding=1)
    yield spec(
        "AvgPool2d", (3, 2), shapes=image, stride=(1, 2), padding=(1, 0), count_include_pad=False
    )
    yield spec("AdaptiveAvgPool2d", 1, shapes=image)
    yield spec("AdaptiveAvgPool2d", (2, 3), shapes=image)
    yield spec("AdaptiveAvgPool2d", (3, 4), shapes=image)


def activations() -> Iterator[Spec]:
    plain = """ReLU ReLU6 GELU SiLU ELU SELU LeakyReLU Mish Sigmoid LogSigmoid Tanh Hardtanh
        Softplus Softsign"""
    for name in plain.split():
        yield spec(name, shapes=((3, 4),))
    yield spec("GELU", shapes=((3, 4),), approximate="tanh")
    yield spec("ELU", shapes=((3, 4),), alpha=0.5)
    yield spec("LeakyReLU", shapes=((3, 4),), negative_slope=0.25)
    yield spec("Softplus", shapes=((3, 4),), beta=2.0, threshold=3.0)
    for name in ("Softmax", "LogSoftmax"):
        yield spec(name, shapes=((3, 4),), dim=-1)
        yield spec(name, shapes=((2, 3, 2),), dim=1)


def losses() -> Iterator[Spec]:
    labels, weight = whole(4, below=3), within(3)
    ignored = np.array([0, -100, 2, 1])
    for reduction in ("mean", "sum", "none"):
        kept = {"reduction": reduction}
        for name in ("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss"):
            yield spec(name, shapes=((3, 4), within(3, 4, low=-1.0)), **kept)
        yield spec("SmoothL1Loss", shapes=((3, 4), within(3, 4)), beta=0.5, **kept)
        yield spec("HuberLoss", shapes=((3, 4), within(3, 4)), delta=0.5, **kept)
        yield spec("CrossEntropyLoss", shapes=((4, 3), labels), **kept)
        yield spec("CrossEntropyLoss", shapes=((4, 3), ignored), weight=weight, **kept)
        yield spec("CrossEntropyLoss", shapes=((4, 3), labels), label_smoothing=0.25, **kept)
        yield spec("CrossEntropyLoss", shapes=((2, 3, 4), whole(2, 4, below=3)), **kept)
        yield spec("NLLLoss", shapes=((4, 3), labels), **kept)
        yield spec("NLLLoss", shapes=((4, 3), ignored), weight=weight, **kept)
        yield spec("BCEWithLogitsLoss", shapes=((4, 3), within(4, 3)), **kept)
        yield spec("BCEWithLogitsLoss", shapes=((4, 3), within(4, 3)), pos_weight=weight, **kept)
        yield spec("BCELoss", shapes=(within(4, 3), within(4, 3, seed=4)), **kept)
        yield spec("KLDivLoss", shapes=((4, 3), within(4, 3)), **kept)
    yield spec("KLDivLoss", shapes=((4, 3), within(4, 3)), reduction="batchmean")
    yield spec("CrossEntropyLoss", shapes=((4, 3), within(4, 3)))


def recurrent() -> Iterator[Spec]:
    for name in ("RNN", "GRU", "LSTM"):
        for layers, both in [(1, False), (2, False), (1, True), (2, True)]:
            count = layers * (1 + both)
            state = (count, 2, 2)
            options = {"num_layers": layers, "bidirectional": both}
            if name == "LSTM":
                yield spec(
                    name, 3, 2, shapes=((4, 2, 3), state, state), call=[X, (Y, Z)], **options
                )
            else:
                yield spec(name, 3, 2, shapes=((4, 2, 3), state), **options)
        yield spec(name, 3, 2, shapes=((2, 4, 3),), batch_first=True)
        yield spec(name, 3, 2, shapes=((4, 3),), bias=False)
        cell = f"{name}Cell"
        yield spec(cell, 3, 2, shapes=((2, 3),))
        if name == "LSTM":
            yield spec(cell, 3, 2, shapes=((2, 3), (2, 2), (2, 2)), call=[X, (Y, Z)])
        else:
            yield spec(cell, 3, 2, shapes=((2, 3), (2, 2)), bias=False)
    yield spec("RNN", 3, 2, shapes=((4, 2, 3),), nonlinearity="relu")


def attention() -> Iterator[Spec]:
    q, k = (3, 2, 4), (5, 2, 4)
    causal = np.triu(np.ones((3, 5), bool), 2)
    padding = np.zeros((2, 5), bool)
    padding[1, 3:] = True
    plain = spec("MultiheadAttention", 4, 2, shapes=(q, k, k))
    yield plain
    yield named(plain, need_weights=False)
    yield named(plain, average_attn_weights=False)
    yield named(plain, attn_mask=causal)
    yield named(plain, attn_mask=within(3, 5, low=-1.0))
    yield named(plain, key_padding_mask=padding)
    yield named(plain, attn_mask=causal, key_padding_mask=padding, need_weights=False)
    yield named(plain, attn_mask=np.stack([causal, causal[:, ::-1][:, [1, 0, 2, 3, 4]]] * 2))
    yield spec("MultiheadAttention", 4, 2, shapes=((2, 3, 4),), call=[X, X, X], batch_first=True)
    yield spec("MultiheadAttention", 4, 1, shapes=(q, k, k), bias=False)
    yield spec("MultiheadAttention", 4, 2, shapes=(q, (5, 2, 3), (5, 2, 2)), kdim=3, vdim=2)
    yield spec("MultiheadAttention", 4, 4, shapes=((3, 4), (5, 4), (5, 4)))


def modules() -> list[dict[str, Any]]:
    """Returns all of them with torch's numbers."""
    families = (layers, convolutions, activations, losses, recurrent, attention)
    given = [each for family in families for each in family()]
    return [proved(each, np.random.default_rng(seed)) for seed, each in enumerate(given)]


def proved(given: Spec, rng: np.random.Generator) -> dict[str, Any]:
    """Returns a module, each of its calls, and what torch finds for it."""
    name, args, options = given["class"], given["args"], given["options"]
    module = getattr(torch.nn, name)(*args, **in_torch(options))
    start = {key: started(key, x, rng) for key, x in module.state_dict().items()}
    module.load_state_dict({key: torch.from_numpy(a.copy()) for key, a in start.items()})
    made = {key: given[key] for key in ("class", "args", "options", "named")}
    return made | {
        "state": start,
        "calls": [called(module, given, mode, rng) for mode in given["calls"]],
    }


def started(key: str, x: torch.Tensor, rng: np.random.Generator) -> Any:
    """Returns a parameter or buffer of few digits."""
    if not x.is_floating_point():
        return x.numpy().copy()
    low = 0.25 if "running_var" in key else -1.0
    return dyadic(rng, tuple(x.shape), low, 1.25 if "running_var" in key else 1.0)


def called(module: Any, given: Spec, mode: str, rng: np.random.Generator) -> dict[str, Any]:
    """Returns one call: inputs, outputs, gradients, and the buffers that it left."""
    module.train(mode == "train")
    module.zero_grad()
    inputs = [dyadic(rng, x, -2.0, 2.0) if isinstance(x, tuple) else x for x in given["shapes"]]
    tensors = [torch.from_numpy(np.array(a)) for a in inputs]
    # The second argument of a loss is what one knows.
    free = 1 if given["class"].endswith("Loss") else len(inputs)
    leaves = [x.requires_grad_() for x in tensors[:free] if x.is_floating_point()]
    with warnings.catch_warnings(action="ignore"):
        found = module(*replace(given["call"], tensors), **in_torch(given["named"]))
    outputs = [*flattened(found)]
    weights = [dyadic(rng, tuple(y.shape), -1.0, 1.0) for y in outputs]
    pairs = zip(outputs, weights, strict=True)
    total = sum((y * torch.from_numpy(w)).sum() for y, w in pairs)
    again = second(total, leaves, [*leaves, *module.parameters()]) if leaves else []
    total.backward()
    return {
        "mode": mode,
        "inputs": inputs,
        "free": free,
        "call": given["call"],
        "outputs": [y.detach().numpy() for y in outputs],
        "weights": weights,
        "gradients": [x.grad.numpy() for x in leaves],
        "parameters": {key: p.grad.to_dense().numpy() for key, p in module.named_parameters()},
        "second": [x.numpy(force=True) for x in again],
        "buffers": {key: b.numpy().copy() for key, b in module.named_buffers()},
    }


def second(total: Any, leaves: list[Any], places: list[Any]) -> list[Any]:
    """Returns the gradients, at the inputs, of a sum of all gradients; [] where torch has none."""
    try:
        found = torch.autograd.grad(total, places, create_graph=True, allow_unused=True)
        along = sum(
            (g * torch.from_numpy(direction(g.shape))).sum() for g in found if g is not None
        )
        if not along.requires_grad:
            return [torch.zeros_like(x) for x in leaves]
        return [
            *torch.autograd.grad(
                along, leaves, retain_graph=True, allow_unused=True, materialize_grads=True
            )
        ]
    except RuntimeError:  # its kernel has no second derivative
        return []


def flattened(tree: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors of nested tuples."""
    if isinstance(tree, tuple):
        for part in tree:
            yield from flattened(part)
    elif tree is not None:
        yield tree
