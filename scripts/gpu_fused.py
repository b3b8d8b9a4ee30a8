"""Times each fused kernel beside CuPy's functions call by call, and beside torch's kernels.

A kernel has a row for each direction and dtype. The sizes are those of a small transformer.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from telegrad import kernels, optim, tensor
from telegrad.arrays import special_twin

__all__ = ["FusedCase", "fused_cases", "torch_or_none", "without_tf32"]

SHAPE = (4096, 1024)  # tokens of a batch, width of the model
DTYPES = ("float32", "float16")
SHORT = tuple(map(np.dtype, ("float16", ml_dtypes.bfloat16)))  # of buckets that travel
Run = Callable[[], object]


@dataclass(frozen=True)
class FusedCase:
    """One row of the table.

    Attributes:
        what: The kernel and its direction.
        size: Shape and dtype.
        bytes: What must be moved at the least.
        fused: Runs telegrad's kernel.
        composed: Runs the same by CuPy's functions; None where this machine lacks one.
        torch: Runs the same by torch's eager kernel; None without torch.
    """

    what: str
    size: str
    bytes: int
    fused: Run
    composed: Run | None = None
    torch: Run | None = None


def torch_or_none() -> Any:
    """Returns torch if it is installed and finds the GPU."""
    if importlib.util.find_spec("torch") is None:
        return None
    torch = importlib.import_module("torch")
    return torch if torch.cuda.is_available() else None


@contextmanager
def without_tf32(torch: Any) -> Iterator[None]:
    """Has cuDNN compute in float32 inside the block, as telegrad does; `torch` may be None."""
    if torch is None:
        yield
        return
    usual = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = usual


def fused_cases(xp: Any, torch: Any = None, shape: tuple[int, int] = SHAPE) -> Iterator[FusedCase]:
    """Returns the rows on arrays of `xp`, CuPy.

    They come one by one, so that the arrays of one row are freed before those of the next are made.
    """
    with without_tf32(torch):
        for dtype in DTYPES:
            for make in CASES:
                yield from make(xp, torch, shape, dtype)
        yield from cast_cases(xp, torch, shape[1])
        yield from step_cases(xp, torch, shape[1])


def _arrays(xp: Any, torch: Any, dtype: str, *shapes: tuple[int, ...]) -> tuple[Any, Any]:
    """Returns arrays of random numbers, and torch's tensors of the same memory."""
    rng = np.random.default_rng(0)
    made = [xp.asarray(rng.normal(size=shape).astype(dtype)) for shape in shapes]
    return made, [torch.from_dlpack(x) if torch else None for x in made]


def _size(shape: tuple[int, ...], dtype: str) -> str:
    return f"{' x '.join(map(str, shape))} {dtype}"


def gelu_cases(xp: Any, torch: Any, shape: tuple[int, int], dtype: str) -> Iterator[FusedCase]:
    """GELU forward and backward, of both forms."""
    (x, g), (tx, tg) = _arrays(xp, torch, dtype, shape, shape)
    size, moved = _size(shape, dtype), x.nbytes
    has_erf = importlib.util.find_spec("cupyx") is not None
    erf = special_twin("erf")

    def phi() -> Any:
        return 0.5 * (1 + erf(x * np.sqrt(0.5).astype(dtype)))

    def inside() -> Any:
        return xp.tanh(0.7978845608 * (x + 0.044715 * x * x * x))

    def tanh_slope() -> Any:
        t = inside()
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608 * (1 + 0.134145 * x * x)

    composed: dict[str, tuple[Run | None, Run | None]] = {
        "none": (
            lambda: x * phi(),
            lambda: g * (phi() + x * xp.exp(-0.5 * x * x) * 0.3989422804),
        ),
        "tanh": (lambda: 0.5 * x * (1 + inside()), lambda: g * tanh_slope()),
    }
    if not has_erf:
        composed["none"] = (None, None)
    for form, (forward, backward) in composed.items():
        name = "gelu" if form == "none" else "gelu tanh"

        def ours(form: str = form) -> object:
            return kernels.gelu(x, approximate=form)

        def our_slope(form: str = form) -> object:
            return kernels.gelu_slope(x, g, approximate=form)

        def theirs(form: str = form) -> object:
            return torch.nn.functional.gelu(tx, approximate=form)

        def their_slope(form: str = form) -> object:
            return torch.ops.aten.gelu_backward(tg, tx, approximate=form)

        yield FusedCase(name, size, 2 * moved, ours, forward, theirs if torch else None)
        yield FusedCase(
            f"{name}, back", size, 3 * moved, our_slope, backward, their_slope if torch else None
        )


def gated_cases(xp: Any, torch: Any, shape: tuple[int, int], dtype: str) -> Iterator[FusedCase]:
    """A unit gated by a sigmoid, forward and backward."""
    whole = shape[0], 2 * shape[1]
    (x, g), (tx, tg) = _arrays(xp, torch, dtype, whole, shape)
    size, moved = _size(whole, dtype), g.nbytes
    first, second = x[:, : shape[1]], x[:, shape[1] :]

    def composed_back() -> object:
        share = 1 / (1 + xp.exp(-second))
        return xp.concatenate((g * share, g * first * share * (1 - share)), -1)

    yield FusedCase(
        "glu",
        size,
        3 * moved,
        lambda: kernels.gated(x),
        lambda: first / (1 + xp.exp(-second)),
        (lambda: torch.nn.functional.glu(tx)) if torch else None,
    )
    yield FusedCase(
        "glu, back",
        size,
        5 * moved,
        lambda: kernels.gated_gradient(g, x),
        composed_back,
        (lambda: torch.ops.aten.glu_backward(tg, tx, -1)) if torch else None,
    )


def layer_norm_cases(
    xp: Any, torch: Any, shape: tuple[int, int], dtype: str
) -> Iterator[FusedCase]:
    """Layer norm with weight and bias, forward and backward."""
    width = shape[1]
    arrays, (tx, tg, tw, tb) = _arrays(xp, torch, dtype, shape, shape, (width,), (width,))
    x, g, weight, bias = arrays
    size, moved = _size(shape, dtype), x.nbytes
    kept = kernels.normalize(x, weight, bias)

    def standard() -> Any:
        return (x - kept.mean) * kept.scale

    def composed() -> object:
        wide = x.astype(np.float32, copy=False)
        centre = wide - wide.mean(-1, keepdims=True)
        scale = 1 / xp.sqrt((centre * centre).mean(-1, keepdims=True) + 1e-5)
        return (centre * scale * weight + bias).astype(x.dtype, copy=False)

    def composed_back() -> object:
        up, items = g * weight, standard()
        along = (up * items).mean(-1, keepdims=True)
        of_x = (up - up.mean(-1, keepdims=True) - items * along) * kept.scale
        return of_x, (g * items).sum(0), g.sum(0)

    def ours_back() -> object:
        return kernels.normalize_gradients(g, x, kept.mean, kept.scale, weight)

    if torch:
        aten, form = torch.ops.aten, [width]
        _, mean, scale = aten.native_layer_norm(tx, form, tw, tb, 1e-5)

    def theirs_back() -> object:
        every = [True, True, True]
        return aten.native_layer_norm_backward(tg, tx, form, mean, scale, tw, tb, every)

    yield FusedCase(
        "layer norm",
        size,
        2 * moved,
        lambda: kernels.normalize(x, weight, bias),
        composed,
        (lambda: torch.nn.functional.layer_norm(tx, [width], tw, tb)) if torch else None,
    )
    yield FusedCase(
        "layer norm, back",
        size,
        3 * moved,
        ours_back,
        composed_back,
        theirs_back if torch else None,
    )


def embedding_cases(xp: Any, torch: Any, shape: tuple[int, int], dtype: str) -> Iterator[FusedCase]:
    """The gradient of a table of eight times as many rows as there are tokens."""
    tokens, width = shape
    height = 8 * tokens
    (g,), (tg,) = _arrays(xp, torch, dtype, shape)
    rows = xp.asarray(np.random.default_rng(0).integers(0, height, tokens))
    numbers = torch.from_dlpack(rows) if torch else None

    def composed() -> object:
        table = xp.zeros((height, width), dtype)
        xp.add.at(table, rows, g)
        return table

    def theirs() -> object:
        return torch.ops.aten.embedding_dense_backward(tg, numbers, height, -1, False)

    yield FusedCase(
        "embedding, back",
        f"{tokens} of {height} x {width} {dtype}",
        2 * g.nbytes + height * width * g.itemsize,
        lambda: kernels.add_rows(g, rows, (height, width)),
        composed,
        theirs if torch else None,
    )


LAYERS = 4  # of a transformer
# By name: class, options, and arrays that are read or written by a step.
STEPS: dict[str, tuple[type[optim.Optimizer], dict[str, Any], int]] = {
    "SGD": (optim.SGD, {"lr": 1e-3, "momentum": 0.9}, 5),
    "Adam": (optim.Adam, {"lr": 1e-3}, 7),
    "AdamW": (optim.AdamW, {"lr": 1e-3}, 7),
    "Adagrad": (optim.Adagrad, {"lr": 1e-3}, 5),
    "RMSprop": (optim.RMSprop, {"lr": 1e-3}, 5),
}


def parameter_shapes(width: int) -> list[tuple[int, ...]]:
    """The shapes of the parameters of a small transformer."""
    tables = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    vectors = [(3 * width,), (4 * width,), *[(width,)] * 6]
    return [*tables, *vectors] * LAYERS


def cast_cases(xp: Any, torch: Any, width: int) -> Iterator[FusedCase]:
    """Casts of a bucket of float32 to a short dtype and back, and its codecs, as hooks do them.

    CuPy before version 14 has no arrays of bfloat16, and so no rows of it.
    """
    size = sum(math.prod(each) for each in parameter_shapes(width))
    (bucket,), (t_bucket,) = _arrays(xp, torch, "float32", (size,))
    for short in SHORT:
        try:
            small = kernels.flatten([bucket], scale=0.5, dtype=short)
        except (TypeError, ValueError):
            continue
        t_small = t_bucket.to(getattr(torch, short.name)) if torch else None

        def ours(short: Any = short) -> object:
            return kernels.flatten([bucket], scale=0.5, dtype=short)

        def composed(short: Any = short) -> object:
            return (bucket * np.float32(0.5)).astype(short)

        def theirs(t_small: Any = t_small) -> object:
            return t_bucket.to(t_small.dtype).div_(2)

        def ours_back(small: Any = small) -> object:
            return kernels.flatten([small], dtype="float32", out=bucket)

        def theirs_back(t_small: Any = t_small) -> object:
            return t_bucket.copy_(t_small)

        moved, words = bucket.nbytes + small.nbytes, f"{size} float32"
        yield FusedCase(
            f"cast to {short.name}", words, moved, ours, composed, theirs if torch else None
        )
        yield FusedCase(
            f"cast to {short.name}, back",
            words,
            moved,
            ours_back,
            lambda small=small: small.astype("float32"),  # type: ignore[misc]
            theirs_back if torch else None,
        )
    rest = xp.zeros(size, dtype=np.float32)
    packed = kernels.quantize(bucket, rest)
    largest = size // 100
    moved, words = 3 * bucket.nbytes + packed.nbytes, f"{size} float32"
    yield FusedCase("8 bits", words, moved, lambda: kernels.quantize(bucket, rest))
    rows = packed.reshape(1, -1)
    moved = bucket.nbytes + packed.nbytes
    yield FusedCase("8 bits, back", words, moved, lambda: kernels.mean_quantized(rows, bucket))
    moved = 8 * bucket.nbytes  # six reads of the rest, one of the bucket, and a write
    yield FusedCase(
        "the largest 1 %", words, moved, lambda: kernels.pack_largest(bucket, rest, largest)
    )


def step_cases(xp: Any, torch: Any, width: int) -> Iterator[FusedCase]:
    """Runs on all parameters. Torch's steps are fused, or by lists where it has no fused one."""
    shapes = parameter_shapes(width)
    arrays, tensors = _arrays(xp, torch, "float32", *shapes)
    size, moved = f"{len(shapes)} parameters float32", sum(x.nbytes for x in arrays)
    yield FusedCase(
        "flatten",
        size,
        2 * moved,
        lambda: kernels.flatten(arrays),
        lambda: xp.concatenate([x.ravel() for x in arrays]),
        (lambda: torch.cat([x.ravel() for x in tensors])) if torch else None,
    )
    yield FusedCase(
        "joint norm",
        size,
        moved,
        lambda: kernels.joint_norm(arrays),
        lambda: xp.sqrt(xp.stack([x.ravel() @ x.ravel() for x in arrays]).sum()),
        (lambda: torch.stack(torch._foreach_norm(tensors)).norm()) if torch else None,
    )
    for name, (kind, options, passes) in STEPS.items():
        composed = type("Composed", (kind,), {"update": kind.update})  # has no kernel

        def ours(kind: Any = kind, options: dict[str, Any] = options) -> Run:
            parameters = [tensor(x, requires_grad=True) for x in arrays]
            for p, x in zip(parameters, arrays, strict=True):
                p.grad = tensor(x)
            return kind(parameters, **options).step  # type: ignore[no-any-return]

        def theirs(name: str = name, options: dict[str, Any] = options) -> Run:
            parameters = [x.clone().requires_grad_() for x in tensors]
            for p, x in zip(parameters, tensors, strict=True):
                p.grad = x.clone()
            form = "foreach" if name in ("Adagrad", "RMSprop") else "fused"
            kind = getattr(torch.optim, name)
            return kind(parameters, **options, **{form: True}).step  # type: ignore[no-any-return]

        yield FusedCase(
            f"{name} step",
            size,
            passes * moved,
            ours(),
            ours(composed),
            theirs() if torch else None,
        )


def batch_norm_cases(
    xp: Any, torch: Any, shape: tuple[int, int], dtype: str
) -> Iterator[FusedCase]:
    """Batch norm in training, forward and backward, of as many items in images of 32 x 32."""
    channels = 64
    images = max(1, shape[0] * shape[1] // (channels * 1024)), channels, 32, 32
    arrays, (tx, tg, tw, tb) = _arrays(xp, torch, dtype, images, images, (channels,), (channels,))
    x, g, weight, bias = arrays
    kept = kernels.normalize(x, weight, bias, over=None)

    def back() -> object:
        return kernels.normalize_gradients(g, x, kept.mean, kept.scale, weight, over=None)

    theirs: Run | None = None
    theirs_back: Run | None = None
    if torch:
        aten = torch.ops.aten
        _, mean, scale = aten.native_batch_norm(tx, tw, tb, None, None, True, 0.1, 1e-5)

        def theirs() -> object:
            return aten.native_batch_norm(tx, tw, tb, None, None, True, 0.1, 1e-5)

        def theirs_back() -> object:
            every = [True, True, True]
            return aten.native_batch_norm_backward(
                tg, tx, tw, None, None, mean, scale, True, 1e-5, every
            )

    size, moved = _size(images, dtype), x.nbytes
    yield FusedCase(
        "batch norm",
        size,
        2 * moved,
        lambda: kernels.normalize(x, weight, bias, over=None),
        None,
        theirs,
    )
    yield FusedCase("batch norm, back", size, 3 * moved, back, None, theirs_back)


def group_norm_cases(
    xp: Any, torch: Any, shape: tuple[int, int], dtype: str
) -> Iterator[FusedCase]:
    """Group norm of 32 groups of 4 channels, forward and backward, in images of 16 x 16."""
    groups, own = 32, 4
    n = max(1, shape[0] * shape[1] // (groups * own * 256))
    split, channels = (n, groups, own, 16, 16), groups * own
    arrays, (tx, tg, tw, tb) = _arrays(xp, torch, dtype, split, split, *[(groups, own)] * 2)
    x, g, weight, bias = arrays
    kept = kernels.normalize(x, weight, bias, over="groups")

    def back() -> object:
        given = g, x, kept.mean, kept.scale, weight
        return kernels.normalize_gradients(*given, over="groups")

    theirs: Run | None = None
    theirs_back: Run | None = None
    if torch:
        aten, whole = torch.ops.aten, (n, channels, 16, 16)
        tx, tg, tw, tb = tx.reshape(whole), tg.reshape(whole), tw.reshape(-1), tb.reshape(-1)
        sizes = n, channels, 256, groups
        _, mean, scale = aten.native_group_norm(tx, tw, tb, *sizes, 1e-5)

        def theirs() -> object:
            return aten.native_group_norm(tx, tw, tb, *sizes, 1e-5)

        def theirs_back() -> object:
            every = [True, True, True]
            return aten.native_group_norm_backward(tg, tx, mean, scale, tw, *sizes, every)

    size, moved = _size((n, channels, 16, 16), dtype), x.nbytes
    yield FusedCase(
        "group norm",
        size,
        2 * moved,
        lambda: kernels.normalize(x, weight, bias, over="groups"),
        None,
        theirs,
    )
    yield FusedCase("group norm, back", size, 3 * moved, back, None, theirs_back)


def window_cases(xp: Any, torch: Any, shape: tuple[int, int], dtype: str) -> Iterator[FusedCase]:
    """Convolution by windows of 3 x 3 and pooling by windows of 2 x 2, forward and backward.

    They take as many items as batch norm. The time of a convolution contains that of its product.
    """
    channels = 64
    n = max(1, shape[0] * shape[1] // (channels * 1024))
    images, halves = (n, channels, 32, 32), (n, channels, 16, 16)
    filters = channels, channels, 3, 3
    arrays, (tx, tg, tw, th) = _arrays(xp, torch, dtype, images, images, filters, halves)
    x, g, weight, half = arrays
    sides = kernels.Windows((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1))
    apart = kernels.Windows((2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1))
    _, places = kernels.max_pool2d(x, windows=apart)

    def back() -> object:
        of_x = kernels.conv2d_input(g, weight, windows=sides, into=images)
        return of_x, kernels.conv2d_weight(g, x, windows=sides, into=filters)

    def pooled() -> object:
        rows = xp.maximum(x[..., ::2, :], x[..., 1::2, :])
        return xp.maximum(rows[..., ::2], rows[..., 1::2])

    theirs: dict[str, Run | None] = dict.fromkeys(("forward", "back", "pool", "pool back"))
    if torch:
        aten, pair, two = torch.ops.aten, [1, 1], [2, 2]
        _, t_places = aten.max_pool2d_with_indices(tx, two, two)

        def their_forward() -> object:
            return torch.conv2d(tx, tw, None, 1, 1)

        def their_back() -> object:
            form = None, pair, pair, pair, False, [0, 0], 1, [True, True, False]
            return aten.convolution_backward(tg, tx, tw, *form)

        def their_pool_back() -> object:
            form = two, two, [0, 0], pair, False
            return aten.max_pool2d_with_indices_backward(th, tx, *form, t_places)

        theirs = {
            "forward": their_forward,
            "back": their_back,
            "pool": lambda: aten.max_pool2d_with_indices(tx, two, two),
            "pool back": their_pool_back,
        }
    size, moved = _size(images, dtype), x.nbytes
    yield FusedCase(
        "convolution",
        size,
        2 * moved,
        lambda: kernels.conv2d(x, weight, windows=sides),
        None,
        theirs["forward"],
    )
    yield FusedCase("convolution, back", size, 3 * moved, back, None, theirs["back"])
    yield FusedCase(
        "max pool",
        size,
        moved + half.nbytes + places.nbytes,
        lambda: kernels.max_pool2d(x, windows=apart),
        pooled,
        theirs["pool"],
    )
    yield FusedCase(
        "max pool, back",
        size,
        moved + half.nbytes + places.nbytes,
        lambda: kernels.spread_places(half, places, windows=apart, into=images),
        None,
        theirs["pool back"],
    )


def softmax_cases(xp: Any, torch: Any, shape: tuple[int, int], dtype: str) -> Iterator[FusedCase]:
    """Softmax, and cross entropy with its mean, forward and backward."""
    (x, g), (tx, tg) = _arrays(xp, torch, dtype, shape, shape)
    size, moved = _size(shape, dtype), x.nbytes
    y = kernels.softmax(x)
    labels = xp.arange(shape[0]) % shape[1]
    one = xp.ones((), dtype)
    _, factor = kernels.mean_cross_entropy(x, labels, found=xp.zeros(2, np.int64))

    def composed() -> Any:
        weights = xp.exp(x - x.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True)

    def composed_losses() -> object:
        shifted = x - x.max(-1, keepdims=True)
        chosen = xp.take_along_axis(shifted, labels[:, None], -1)[:, 0]
        return (xp.log(xp.exp(shifted).sum(-1)) - chosen).mean()

    def composed_slope() -> object:
        made = composed()
        made[xp.arange(shape[0]), labels] -= 1
        return made * (one / shape[0])

    theirs: dict[str, Run | None] = dict.fromkeys(("forward", "back", "loss", "loss back"))
    if torch:
        aten, name = torch.ops.aten, getattr(torch, dtype)
        ty, tl = torch.from_dlpack(y), torch.from_dlpack(labels)
        logs = aten._log_softmax(tx, 1, False)
        _, weight = aten.nll_loss_forward(logs, tl, None, 1, -100)
        t_one = torch.ones((), dtype=name, device=tx.device)

        def their_loss() -> object:
            return aten.nll_loss_forward(aten._log_softmax(tx, 1, False), tl, None, 1, -100)

        def their_slope() -> object:
            up = aten.nll_loss_backward(t_one, logs, tl, None, 1, -100, weight)
            return aten._log_softmax_backward_data(up, logs, 1, name)

        theirs = {
            "forward": lambda: aten._softmax(tx, 1, False),
            "back": lambda: aten._softmax_backward_data(tg, ty, 1, name),
            "loss": their_loss,
            "loss back": their_slope,
        }
    yield FusedCase(
        "softmax", size, 2 * moved, lambda: kernels.softmax(x), composed, theirs["forward"]
    )
    yield FusedCase(
        "softmax, back",
        size,
        3 * moved,
        lambda: kernels.softmax_gradient(g, y),
        lambda: y * (g - (g * y).sum(-1, keepdims=True)),
        theirs["back"],
    )
    place = xp.zeros(2, np.int64)
    yield FusedCase(
        "cross entropy",
        size,
        moved,
        lambda: kernels.mean_cross_entropy(x, labels, ignored=-100, found=place),
        composed_losses,
        theirs["loss"],
    )
    yield FusedCase(
        "cross entropy, back",
        size,
        2 * moved,
        lambda: kernels.cross_entropy_gradient(one, x, labels, factor=factor, ignored=-100),
        composed_slope,
        theirs["loss back"],
    )


def dropout_cases(xp: Any, torch: Any, shape: tuple[int, int], dtype: str) -> Iterator[FusedCase]:
    """Dropout, forward and backward."""
    (x, g), (tx, tg) = _arrays(xp, torch, dtype, shape, shape)
    size, moved = _size(shape, dtype), x.nbytes
    random = xp.random.default_rng(0)

    def composed() -> object:
        return x * (random.random(x.shape, dtype=np.float32) >= 0.1) * (1 / 0.9)

    if torch:
        _, mask = torch.ops.aten.native_dropout(tx, 0.1, True)
    yield FusedCase(
        "dropout",
        size,
        2 * moved,
        lambda: kernels.dropout(x, key=1, p=0.1),
        composed,
        (lambda: torch.ops.aten.native_dropout(tx, 0.1, True)) if torch else None,
    )
    yield FusedCase(
        "dropout, back",
        size,
        2 * moved,
        lambda: kernels.dropout(g, key=1, p=0.1),
        None,
        (lambda: torch.ops.aten.native_dropout_backward(tg, mask, 1 / 0.9)) if torch else None,
    )


def attention_cases(xp: Any, torch: Any, shape: tuple[int, int], dtype: str) -> Iterator[FusedCase]:
    """Causal attention of heads of 64 numbers, forward and backward.

    Sequences have 512 tokens, or 4096; these are computed in tiles in float32, and beside that with
    a matrix of all weights.
    """
    yield from _attention_of(xp, torch, shape, dtype, 512, "attention, causal")
    if dtype == "float32":
        yield from _attention_of(xp, torch, shape, dtype, 4096, "attention in tiles, causal")


def _attention_of(
    xp: Any, torch: Any, shape: tuple[int, int], dtype: str, most: int, name: str
) -> Iterator[FusedCase]:
    tokens, width = min(most, shape[0]), 64
    heads = max(1, shape[1] // width)
    sizes = max(1, shape[0] // tokens), heads, tokens, width
    arrays, (tq, tk, tv, tg) = _arrays(xp, torch, dtype, *[sizes] * 4)
    q, k, v, g = arrays
    size, moved = _size(sizes, dtype), q.nbytes
    result, sums = kernels.attention_forward(q, k, v, None, 0.125, causal=True)
    composed: Run | None = None
    composed_back: Run | None = None

    def back(of_weights: Any = None) -> None:
        given = g, result, sums, (q, k, v), None, 0.125, of_weights
        kernels.attention_backward(*given, causal=True)

    if "tiles" in name:
        weights = xp.zeros((*sizes[:-1], tokens), dtype)

        def composed() -> object:
            return kernels.attention_forward(q, k, v, None, 0.125, weights, causal=True)

        def composed_back() -> object:
            back(weights)
            return None

    theirs: Run | None = None
    theirs_back: Run | None = None
    if torch:
        for each in (tq, tk, tv):
            each.requires_grad_()
        attend = torch.nn.functional.scaled_dot_product_attention
        made = attend(tq, tk, tv, is_causal=True)

        def theirs() -> object:
            return attend(tq, tk, tv, is_causal=True)

        def theirs_back() -> object:
            return torch.autograd.grad(made, (tq, tk, tv), tg, retain_graph=True)

    yield FusedCase(
        name,
        size,
        4 * moved,
        lambda: kernels.attention_forward(q, k, v, None, 0.125, causal=True),
        composed,
        theirs,
    )
    yield FusedCase(f"{name}, back", size, 8 * moved, back, composed_back, theirs_back)


def recurrent_cases(xp: Any, torch: Any, shape: tuple[int, int], dtype: str) -> Iterator[FusedCase]:
    """An LSTM over 50 steps of 64 sequences, forward and backward; torch's is cuDNN's."""
    hidden = min(512, shape[1])
    sizes = (50, 64, hidden), (4 * hidden, hidden), (64, hidden), (4 * hidden,)
    arrays, (tx, tw, th, tb) = _arrays(xp, torch, dtype, *sizes)
    x, weight, h, bias = arrays
    weight *= 1 / hidden
    given = ("lstm", x, (h, h), weight, weight, bias, bias)
    y, last, kept = kernels.recurrence_forward(*given)

    def back() -> object:
        upstream = (y, *last)
        pair = (weight, weight)
        return kernels.recurrence_backward("lstm", kept, y, x, (h, h), pair, upstream, needs_x=True)

    theirs: Run | None = None
    theirs_back: Run | None = None
    if torch:
        tx.requires_grad_()
        weights = [each.clone().requires_grad_() for each in (tw, tw, tb, tb)]
        states = [th[None].contiguous() for _ in range(2)]

        def theirs() -> Any:
            return torch.lstm(tx, states, weights, True, 1, 0.0, True, False, False)

        made = theirs()[0]

        def theirs_back() -> object:
            return torch.autograd.grad(made, (tx, *weights), made.detach(), retain_graph=True)

    size = f"50 x 64 x {hidden} {dtype}"
    yield FusedCase(
        "lstm", size, 12 * x.nbytes, lambda: kernels.recurrence_forward(*given), None, theirs
    )
    yield FusedCase("lstm, back", size, 24 * x.nbytes, back, None, theirs_back)


CASES = (
    gelu_cases,
    gated_cases,
    layer_norm_cases,
    batch_norm_cases,
    group_norm_cases,
    window_cases,
    softmax_cases,
    dropout_cases,
    attention_cases,
    recurrent_cases,
    embedding_cases,
)
