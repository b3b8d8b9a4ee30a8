"""The signatures of CuPy's functions, which the stand-in refuses other arguments by.

`tests/gpu/stand_in/test_stand_in.py` compares them with CuPy's own under `make gpu`.
"""

from __future__ import annotations

import inspect
from typing import Final

__all__ = ["ABSENT", "SIGNATURES"]

# Of CuPy 14.2, of the functions that telegrad calls.
_LINES: Final = """
all(a, axis=None, out=None, keepdims=False)
allclose(a, b, rtol=1e-05, atol=1e-08, equal_nan=False)
amax(a, axis=None, out=None, keepdims=False)
amin(a, axis=None, out=None, keepdims=False)
angle(z, deg=False)
any(a, axis=None, out=None, keepdims=False)
arange(start, stop=None, step=1, dtype=None)
argmax(a, axis=None, dtype=None, out=None, keepdims=False)
argmin(a, axis=None, dtype=None, out=None, keepdims=False)
argpartition(a, kth, axis=-1)
argsort(a, axis=-1, kind=None)
array(obj, dtype=None, copy=True, order='K', subok=False, ndmin=0, *, blocking=False)
array_equal(a1, a2, equal_nan=False)
array_split(ary, indices_or_sections, axis=0)
asarray(a, dtype=None, order=None, *, copy=None, blocking=False)
bincount(x, weights=None, minlength=None)
broadcast_arrays(*args)
broadcast_to(array, shape)
clip(a, a_min, a_max, out=None)
concatenate(tup, axis=0, out=None, *, dtype=None, casting='same_kind')
convolve(a, v, mode='full')
copy(a, order='K')
count_nonzero(a, axis=None)
cross(a, b, axisa=-1, axisb=-1, axisc=-1, axis=None)
cumprod(a, axis=None, dtype=None, out=None)
cumsum(a, axis=None, dtype=None, out=None)
diagonal(a, offset=0, axis1=0, axis2=1)
diff(a, n=1, axis=-1, prepend=None, append=None)
dot(a, b, out=None)
einsum(*operands, **kwargs)
empty(shape, dtype=float, order='C')
empty_like(prototype, dtype=None, order='K', subok=None, shape=None)
expand_dims(a, axis)
eye(N, M=None, k=0, dtype=float, order='C')
flatnonzero(a)
full(shape, fill_value, dtype=None, order='C')
full_like(a, fill_value, dtype=None, order='K', subok=None, shape=None)
histogram(x, bins=10, range=None, density=False, weights=None)
imag(val)
inner(a, b)
intersect1d(arr1, arr2, assume_unique=False, return_indices=False)
isclose(a, b, rtol=1e-05, atol=1e-08, equal_nan=False)
isin(element, test_elements, assume_unique=False, invert=False)
linspace(start, stop, num=50, endpoint=True, retstep=False, dtype=None, axis=0)
max(a, axis=None, out=None, keepdims=False)
may_share_memory(a, b, max_work=None)
mean(a, axis=None, dtype=None, out=None, keepdims=False)
median(a, axis=None, out=None, overwrite_input=False, keepdims=False)
min(a, axis=None, out=None, keepdims=False)
moveaxis(a, source, destination)
nan_to_num(x, copy=True, nan=0.0, posinf=None, neginf=None)
nanmax(a, axis=None, out=None, keepdims=False)
nanmin(a, axis=None, out=None, keepdims=False)
nanstd(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False)
nanvar(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False)
ndim(a)
nonzero(a)
ones(shape, dtype=float, order='C')
ones_like(a, dtype=None, order='K', subok=None, shape=None)
outer(a, b, out=None)
pad(array, pad_width, mode='constant', **kwargs)
prod(a, axis=None, dtype=None, out=None, keepdims=False)
ravel(a, order='C')
real(val)
real_if_close(a, tol=100)
result_type(*arrays_and_dtypes)
roll(a, shift, axis=None)
searchsorted(a, v, side='left', sorter=None)
shape(a)
split(ary, indices_or_sections, axis=0)
stack(tup, axis=0, out=None, *, dtype=None, casting='same_kind')
std(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False)
sum(a, axis=None, dtype=None, out=None, keepdims=False)
take_along_axis(a, indices, axis)
tensordot(a, b, axes=2)
tril(m, k=0)
triu(m, k=0)
unique(ar, return_index=False, return_inverse=False, return_counts=False, axis=None, *, equal_nan=True)
unwrap(p, discont=None, axis=-1, *, period=6.283185307179586)
var(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False)
where(condition, x=None, y=None)
zeros(shape, dtype=float, order='C')
zeros_like(a, dtype=None, order='K', subok=None, shape=None)
linalg.cholesky(a)
linalg.det(a)
linalg.eigh(a, UPLO='L')
linalg.inv(a)
linalg.lstsq(a, b, rcond=None)
linalg.matrix_power(M, n)
linalg.norm(x, ord=None, axis=None, keepdims=False)
linalg.pinv(a, rcond=1e-15)
linalg.qr(a, mode='reduced')
linalg.slogdet(a)
linalg.solve(a, b)
linalg.svd(a, full_matrices=True, compute_uv=True)
fft.fft(a, n=None, axis=-1, norm=None)
fft.fftshift(x, axes=None)
fft.ifft(a, n=None, axis=-1, norm=None)
fft.ifftshift(x, axes=None)
fft.irfft(a, n=None, axis=-1, norm=None)
fft.rfft(a, n=None, axis=-1, norm=None)
lib.stride_tricks.as_strided(x, shape=None, strides=None)
lib.stride_tricks.sliding_window_view(x, window_shape, axis=None, *, subok=False, writeable=False)
"""

SIGNATURES: Final = {
    name: inspect.signature(eval(f"lambda {parameters.rstrip(')')}: None"))
    for name, _, parameters in (line.partition("(") for line in _LINES.strip().splitlines())
}
"""By the name below `cupy`, such as `linalg.inv`."""

ABSENT: Final = frozenset({
    "block", "einsum_path", "geomspace", "histogram_bin_edges", "insert", "isnat",
    "matvec", "nanpercentile", "nanquantile", "polyder", "polydiv", "polyint", "spacing", "unstack",
    "vecdot", "vecmat", "linalg.diagonal", "linalg.matrix_norm", "linalg.multi_dot", "linalg.outer",
    "linalg.svdvals", "linalg.tensordot", "linalg.trace", "linalg.vecdot", "linalg.vector_norm",
})  # fmt: skip
"""Functions of NumPy that take arrays of numbers and that CuPy 14.2 does not have."""
