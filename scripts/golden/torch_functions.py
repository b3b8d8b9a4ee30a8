"""Functions of torch under NumPy's names and with NumPy's parameters, as far as golden programs go."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import torch

__all__ = ["FUNCTIONS"]

Function = Callable[..., Any]


def words(text: str) -> list[str]:
    return text.split()


def promoted(*given: Any) -> list[torch.Tensor]:
    """Returns tensors of one dtype."""
    tensors = [torch.as_tensor(each, dtype=None if torch.is_tensor(each) else torch.float64)
               for each in given]  # fmt: skip
    dtype = reduce(torch.promote_types, [each.dtype for each in tensors])
    return [each.to(dtype) for each in tensors]


def same(function: Function) -> Function:
    """A function of several arrays, which torch wants in one dtype."""
    return lambda *given, **options: function(*promoted(*given), **options)


def axes_of(a: torch.Tensor, axis: Any) -> tuple[int, ...]:
    axes = range(a.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    return tuple(sorted(k % a.ndim for k in axes)) if a.ndim else ()


def reduction(function: Function) -> Function:
    """One that takes several axes at once."""

    def reduced(a: torch.Tensor, axis: Any = None, keepdims: bool = False, **options: Any) -> Any:
        if a.ndim == 0:
            return function(a[None], dim=(0,), keepdim=False, **options)
        return function(a, dim=axes_of(a, axis), keepdim=keepdims, **options)

    return reduced


def prod(a: torch.Tensor, dim: tuple[int, ...], keepdim: bool) -> torch.Tensor:
    for k in reversed(dim):
        a = torch.prod(a, dim=k, keepdim=keepdim)
    return a


def var(a: torch.Tensor, dim: tuple[int, ...], keepdim: bool, ddof: int = 0) -> torch.Tensor:
    return torch.var(a, dim=dim, correction=ddof, keepdim=keepdim)


def std(a: torch.Tensor, dim: tuple[int, ...], keepdim: bool, ddof: int = 0) -> torch.Tensor:
    return torch.std(a, dim=dim, correction=ddof, keepdim=keepdim)


def quantile(function: Function, scale: float) -> Function:
    def at(a: torch.Tensor, q: Any, axis: Any = None, keepdims: bool = False) -> torch.Tensor:
        q = torch.as_tensor(q, dtype=torch.float64) / scale
        a, axis = (a.reshape(-1), 0) if axis is None else (a, axis)
        return function(a, q, dim=axis, keepdim=keepdims)

    return at


def median(function: Function) -> Function:
    at = quantile(function, 1.0)
    return lambda a, axis=None, keepdims=False: at(a, 0.5, axis, keepdims)


def along(function: Function) -> Function:
    """One that flattens when no axis is given."""

    def scanned(a: torch.Tensor, axis: int | None = None) -> torch.Tensor:
        a, axis = (a.reshape(-1), 0) if axis is None else (a, axis)
        return function(a, dim=axis)

    return scanned


def average(a: torch.Tensor, axis: Any = None, weights: Any = None) -> torch.Tensor:
    if weights.shape != a.shape:
        shape = [1] * a.ndim
        shape[axis] = -1
        weights = weights.reshape(shape)
    dim = axes_of(a, axis)
    return (a * weights).sum(dim) / (weights * torch.ones_like(a)).sum(dim)


def indexed(a: torch.Tensor, indices: torch.Tensor, axis: int | None) -> torch.Tensor:
    if axis is None:
        return a.reshape(-1)[indices]
    return a[(slice(None),) * (axis % a.ndim) + (indices,)]


def padded(a: torch.Tensor, width: Any, mode: str = "constant", **options: Any) -> torch.Tensor:
    places = torch.arange(1, a.numel() + 1).reshape(a.shape).numpy()
    if mode == "constant":
        places = torch.from_numpy(np.pad(places, width))
        flat = torch.cat([a.new_full((1,), options.get("constant_values", 0.0)), a.reshape(-1)])
        return flat[places]
    return a.reshape(-1)[torch.from_numpy(np.pad(places, width, mode)) - 1]


def repeat(a: torch.Tensor, repeats: Any, axis: int | None = None) -> torch.Tensor:
    a, axis = (a.reshape(-1), 0) if axis is None else (a, axis)
    return torch.repeat_interleave(a, repeats, dim=axis)


def interp(x: torch.Tensor, xp: torch.Tensor, fp: torch.Tensor) -> torch.Tensor:
    upper = torch.searchsorted(xp, x.detach().contiguous()).clamp(1, len(xp) - 1)
    part = (x - xp[upper - 1]) / (xp[upper] - xp[upper - 1])
    inside = fp[upper - 1] + part * (fp[upper] - fp[upper - 1])
    return torch.where(x < xp[0], fp[0], torch.where(x > xp[-1], fp[-1], inside))


def correlate(a: torch.Tensor, v: torch.Tensor, mode: str = "valid") -> torch.Tensor:
    width = {"valid": 0, "same": len(v) // 2, "full": len(v) - 1}[mode]
    return torch.nn.functional.conv1d(a[None, None], v[None, None], padding=width)[0, 0]


def polyval(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return reduce(lambda y, c: y * x + c, p.unbind(), torch.zeros_like(x))


def unwrap(p: torch.Tensor) -> torch.Tensor:
    return p + torch.from_numpy(np.unwrap(p.detach().numpy()) - p.detach().numpy())


def insert(a: torch.Tensor, place: int, values: Any, axis: int) -> torch.Tensor:
    shape = [*a.shape]
    shape[axis] = 1
    new = torch.as_tensor(values, dtype=a.dtype).expand(shape)
    before, after = a.narrow(axis, 0, place), a.narrow(axis, place, a.shape[axis] - place)
    return torch.cat([before, new, after], axis)


def delete(a: torch.Tensor, place: int, axis: int) -> torch.Tensor:
    return indexed(a, torch.tensor([k for k in range(a.shape[axis]) if k != place]), axis)


def select(conditions: Any, choices: Any, default: float = 0.0) -> torch.Tensor:
    result = torch.full_like(choices[0], default)
    for condition, choice in reversed([*zip(conditions, choices, strict=True)]):
        result = torch.where(condition, choice, result)
    return result


def nanvar(a: torch.Tensor, dim: tuple[int, ...], keepdim: bool, ddof: int = 0) -> torch.Tensor:
    off = torch.nan_to_num(a - torch.nanmean(a, dim=dim, keepdim=True))
    count = (~torch.isnan(a)).sum(dim=dim, keepdim=keepdim)
    return (off**2).sum(dim=dim, keepdim=keepdim) / (count - ddof)


def nanstd(a: torch.Tensor, **options: Any) -> torch.Tensor:
    return torch.sqrt(nanvar(a, **options))


def filled(function: Function, value: float) -> Function:
    """With a number in the place of what is NaN."""
    return lambda a, **options: function(torch.where(torch.isnan(a), value, a), **options)


def resize(a: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    places = np.resize(np.arange(a.numel()), shape)
    return a.reshape(-1)[torch.from_numpy(places)]


def aligned(p: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Polynomials of one length."""
    size = max(len(p), len(q))
    return tuple(torch.cat([a.new_zeros(size - len(a)), a]) for a in (p, q))


def polyint(p: torch.Tensor) -> torch.Tensor:
    return torch.cat([p / torch.arange(len(p), 0, -1), p.new_zeros(1)])


def bincount(x: torch.Tensor, weights: torch.Tensor, minlength: int = 0) -> torch.Tensor:
    size = max(int(x.max()) + 1, minlength)
    return weights.new_zeros(size).index_add(0, x, weights)


def norm(a: torch.Tensor, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    order = float(ord) if isinstance(ord, int) else ord
    return torch.linalg.norm(a, order, axis, keepdims)


def spectral(function: Function) -> Function:
    """A Fourier transform along one axis."""
    return lambda a, n=None, axis=-1, norm=None: function(a, n=n, dim=axis, norm=norm)


def spectral_n(function: Function) -> Function:
    return lambda a, s=None, axes=None, norm=None: function(a, s=s, dim=axes, norm=norm)


def spectral_2(function: Function) -> Function:
    return lambda a, s=None, axes=(-2, -1), norm=None: function(a, s=s, dim=axes, norm=norm)


# fmt: off
UNARY = {
    name: getattr(torch, name) for name in
    words("""sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arccosh arctanh exp expm1 exp2 log log1p log2 log10
    sqrt square reciprocal negative absolute sign sinc deg2rad rad2deg floor ceil trunc nan_to_num i0 positive
    real imag angle fliplr flipud ravel column_stack hstack vstack dstack atleast_1d atleast_2d atleast_3d
    hsplit vsplit dsplit""")
}
BINARY = {
    name: same(getattr(torch, name)) for name in
    words("""add subtract multiply divide maximum minimum fmax fmin arctan2 hypot logaddexp logaddexp2 copysign remainder
    fmod matmul vdot greater""")
}
REDUCTIONS: dict[str, Function] = {
    "sum": reduction(torch.sum), "mean": reduction(torch.mean), "prod": reduction(prod), "nansum": reduction(torch.nansum),
    "max": reduction(torch.amax), "min": reduction(torch.amin), "amax": reduction(torch.amax), "amin": reduction(torch.amin),
    "nanmean": reduction(torch.nanmean), "var": reduction(var), "std": reduction(std),
    "ptp": reduction(lambda a, **options: torch.amax(a, **options) - torch.amin(a, **options)),
    "median": median(torch.quantile), "nanmedian": median(torch.nanquantile),
    "quantile": quantile(torch.quantile, 1.0), "nanquantile": quantile(torch.nanquantile, 1.0),
    "percentile": quantile(torch.quantile, 100.0), "nanpercentile": quantile(torch.nanquantile, 100.0),
    "average": average, "nanmax": reduction(filled(torch.amax, -torch.inf)), "nanmin": reduction(filled(torch.amin, torch.inf)),
    "nanprod": reduction(filled(prod, 1.0)), "nanvar": reduction(nanvar), "nanstd": reduction(nanstd),
    "trapezoid": lambda y, x=None, dx=1.0, axis=-1: torch.trapezoid(y, dim=axis, dx=dx) if x is None else torch.trapezoid(y, x, dim=axis),
}
SCANS: dict[str, Function] = {
    "cumsum": along(torch.cumsum), "cumprod": along(torch.cumprod), "nancumsum": along(lambda a, dim: torch.cumsum(torch.nan_to_num(a), dim)),
    "nancumprod": along(filled(torch.cumprod, 1.0)), "unique": lambda a: torch.sort(a.reshape(-1)).values, "bincount": bincount,
    "union1d": lambda a, b: torch.sort(torch.cat([a.reshape(-1), b.reshape(-1)])).values,
    "polyadd": lambda p, q: sum(aligned(p, q)), "polysub": lambda p, q: torch.sub(*aligned(p, q)), "polymul": lambda p, q: correlate(p, q.flip(0), "full"),
    "polyder": lambda p: p[:-1] * torch.arange(len(p) - 1, 0, -1), "polyint": polyint,
    "cumulative_sum": along(torch.cumsum), "cumulative_prod": along(torch.cumprod),
    "diff": lambda a, n=1, axis=-1: torch.diff(a, n, axis), "ediff1d": lambda a: torch.diff(a.reshape(-1)),
    "gradient": lambda f, h=1.0, axis=0, edge_order=1: torch.gradient(f, spacing=(h,) if torch.is_tensor(h) else h, dim=axis, edge_order=edge_order)[0],
    "sort": lambda a, axis=-1: torch.sort(a.reshape(-1), 0).values if axis is None else torch.sort(a, axis).values,
    "argsort": lambda a, axis=-1: torch.argsort(a, axis),
    "unwrap": unwrap, "interp": interp, "polyval": polyval, "correlate": correlate,
    "convolve": lambda a, v, mode="full": correlate(a, v.flip(0), mode),
    "vander": lambda x, N=None, increasing=False: torch.stack([x**k for k in (range(N) if increasing else reversed(range(N)))], 1),
    "cov": lambda m, ddof=1: torch.cov(m, correction=ddof), "corrcoef": torch.corrcoef,
}
SHAPES: dict[str, Function] = {
    "reshape": torch.reshape, "expand_dims": torch.unsqueeze, "swapaxes": torch.swapaxes, "moveaxis": torch.moveaxis,
    "transpose": lambda a, axes=None: torch.permute(a, axes or tuple(reversed(range(a.ndim)))), "permute_dims": torch.permute,
    "squeeze": lambda a, axis=None: torch.squeeze(a) if axis is None else torch.squeeze(a, axis), "matrix_transpose": lambda a: a.mT,
    "broadcast_to": torch.broadcast_to, "rot90": lambda m, k=1, axes=(0, 1): torch.rot90(m, k, axes),
    "flip": lambda m, axis=None: torch.flip(m, axes_of(m, axis)), "roll": lambda a, shift, axis=None: torch.roll(a, shift, axis),
    "tile": torch.tile, "repeat": repeat, "tril": torch.tril, "triu": torch.triu, "diag": torch.diag, "diagflat": torch.diagflat,
    "diagonal": lambda a, offset=0, axis1=0, axis2=1: torch.diagonal(a, offset, axis1, axis2),
    "trace": lambda a, offset=0: torch.diagonal(a, offset).sum(-1), "pad": padded,
    "copy": torch.clone, "resize": resize, "rollaxis": lambda a, axis: torch.moveaxis(a, axis, 0), "insert": insert, "delete": delete,
    "append": lambda a, b, axis=None: torch.cat([a.reshape(-1), b.reshape(-1)] if axis is None else [a, b], axis or 0),
    "concatenate": lambda arrays, axis=0: torch.cat(promoted(*arrays), axis), "stack": lambda arrays, axis=0: torch.stack(promoted(*arrays), axis),
    "block": lambda rows: torch.cat([torch.cat(row, -1) for row in rows], -2),
    "split": lambda a, n, axis=0: torch.tensor_split(a, n, axis), "array_split": lambda a, n, axis=0: torch.tensor_split(a, n, axis),
    "unstack": lambda a, axis=0: torch.unbind(a, axis), "meshgrid": lambda a, b, indexing="xy": torch.meshgrid(a, b, indexing=indexing),
    "broadcast_arrays": lambda a, b: torch.broadcast_tensors(a, b),
    "take": lambda a, indices, axis=None: indexed(a, indices, axis), "getitem": lambda a, place: a[place],
    "take_along_axis": lambda a, indices, axis=-1: torch.take_along_dim(a, indices, axis),
    "compress": lambda condition, a, axis=None: indexed(a, torch.nonzero(condition)[:, 0], axis),
    "extract": lambda condition, a: torch.masked_select(a, condition), "select": select,
    "choose": lambda a, choices: torch.where(a == 0, choices[0], choices[1]),
    "where": lambda condition, a, b: torch.where(condition, *promoted(a, b)),
    "clip": lambda a, low=None, high=None: torch.clip(a, low, high),
}
PRODUCTS: dict[str, Function] = {
    "power": lambda a, b: torch.pow(*promoted(a, b)) if torch.is_tensor(b) else torch.pow(torch.as_tensor(a), b),
    "float_power": same(torch.float_power), "mod": same(torch.remainder), "true_divide": same(torch.divide),
    "divmod": lambda a, b: (torch.floor_divide(*promoted(a, b)), torch.remainder(*promoted(a, b))),
    "modf": lambda a: (a - torch.trunc(a), torch.trunc(a)), "ldexp": lambda a, n: a * 2.0**n,
    "rint": torch.round, "cbrt": lambda a: a ** (1 / 3), "fabs": torch.abs, "degrees": torch.rad2deg, "radians": torch.deg2rad, "heaviside": same(lambda a, b: torch.heaviside(a.detach(), b)),
    "outer": same(lambda a, b: torch.outer(a.reshape(-1), b.reshape(-1))), "inner": same(torch.inner), "kron": same(torch.kron), "conj": torch.conj_physical, "abs": torch.abs,
    "dot": same(lambda a, b: torch.tensordot(a, b, dims=([a.ndim - 1], [max(0, b.ndim - 2)])) if a.ndim and b.ndim else a * b),
    "tensordot": lambda a, b, axes=2: torch.tensordot(*promoted(a, b), dims=axes if isinstance(axes, int) else [list(k) for k in axes]),
    "einsum": lambda pattern, *given: torch.einsum(pattern, *promoted(*given)),
    "cross": same(lambda a, b: torch.linalg.cross(a, b)), "vecdot": same(lambda a, b: torch.linalg.vecdot(a, b)),
    "matvec": same(lambda a, b: (a @ b[..., None])[..., 0]), "vecmat": same(lambda a, b: (a.conj()[..., None, :] @ b)[..., 0, :]),
}
LINEAR_ALGEBRA: dict[str, Function] = {
    "linalg.inv": torch.linalg.inv, "linalg.det": torch.linalg.det, "linalg.slogdet": torch.linalg.slogdet, "linalg.cholesky": torch.linalg.cholesky,
    "linalg.solve": same(lambda a, b: torch.linalg.solve(a, b if b.ndim == 1 else b.expand(*a.shape[:-2], *b.shape[-2:]))), "linalg.eigh": torch.linalg.eigh, "linalg.eigvalsh": torch.linalg.eigvalsh, "linalg.eig": torch.linalg.eig,
    "linalg.eigvals": torch.linalg.eigvals, "linalg.svd": lambda a, full_matrices=True: torch.linalg.svd(a, full_matrices),
    "linalg.svdvals": torch.linalg.svdvals, "linalg.qr": torch.linalg.qr, "linalg.pinv": torch.linalg.pinv,
    "linalg.lstsq": lambda a, b: (torch.linalg.lstsq(a, b).solution,), "linalg.norm": norm, "linalg.cond": torch.linalg.cond,
    "linalg.matrix_norm": lambda a, ord="fro": norm(a, ord, (-2, -1)), "linalg.multi_dot": torch.linalg.multi_dot,
    "linalg.vector_norm": lambda a, ord=2, axis=None: torch.linalg.vector_norm(a, ord, axis), "linalg.matrix_power": torch.linalg.matrix_power,
    "linalg.tensorsolve": torch.linalg.tensorsolve, "linalg.tensorinv": lambda a, ind=2: torch.linalg.tensorinv(a, ind),
    "linalg.trace": lambda a: torch.diagonal(a, 0, -2, -1).sum(-1), "linalg.diagonal": lambda a: torch.diagonal(a, 0, -2, -1),
}
FOURIER: dict[str, Function] = {
    **{f"fft.{name}": spectral(getattr(torch.fft, name)) for name in words("fft ifft rfft irfft hfft ihfft")},
    **{f"fft.{name}": spectral_n(getattr(torch.fft, name)) for name in words("fftn ifftn rfftn irfftn")},
    **{f"fft.{name}": spectral_2(getattr(torch.fft, name)) for name in words("fft2 ifft2 rfft2 irfft2")},
    "fft.fftshift": lambda a, axes=None: torch.fft.fftshift(a, axes), "fft.ifftshift": lambda a, axes=None: torch.fft.ifftshift(a, axes),
}
SPECIAL: dict[str, Function] = {
    **{f"special.{name}": getattr(torch.special, name) for name in
       words("erf erfc erfcx erfinv expit logit gammaln entr ndtr ndtri log_ndtr i0 i0e i1 i1e exp2 expm1 log1p sinc")},
    **{f"special.{name}": same(getattr(torch.special, name)) for name in ("xlogy", "xlog1py")},
    **{f"special.{name}": reduction(getattr(torch.special, name)) for name in ("logsumexp",)},
    "special.softmax": lambda a, axis: torch.softmax(a, axis), "special.log_softmax": lambda a, axis: torch.log_softmax(a, axis),
}
# fmt: on
FUNCTIONS: dict[str, Function] = {
    **UNARY,
    **BINARY,
    **REDUCTIONS,
    **SCANS,
    **SHAPES,
    **PRODUCTS,
    **LINEAR_ALGEBRA,
    **FOURIER,
    **SPECIAL,
}  # fmt: skip
FUNCTIONS |= {
    f"linalg.{name}": FUNCTIONS[name]
    for name in ("cross", "matmul", "matrix_transpose", "outer", "tensordot", "vecdot")
}
