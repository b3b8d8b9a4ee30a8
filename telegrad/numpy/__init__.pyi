"""The types of `telegrad.numpy`: a function of a Tensor gives a Tensor, one of arrays gives Any.

A name that is not listed (a constant, a dtype, a function without a rule) is Any;
tests/house/test_types.py checks that the functions with rules are all here.
"""

from typing import Any, overload

from telegrad.autograd import Tensor
from telegrad.autograd.function_types import Function
from telegrad.numpy import fft as fft
from telegrad.numpy import linalg as linalg

__all__: list[str]

def __getattr__(name: str) -> Any: ...

_any: Any
_bool: Function[bool]
_int: Function[int]
_list: Function[list[Tensor]]
_pair: Function[tuple[Tensor, Tensor]]
_shape: Function[tuple[int, ...]]
_str: Function[str]
_tensor: Function[Tensor]
_tuple: Function[tuple[Tensor, ...]]

@overload
def average(
    a: Tensor, axis: Any = None, weights: Any = None, *, keepdims: bool = ...
) -> Tensor: ...
@overload
def average(*args: Any, **options: Any) -> Any: ...
@overload
def where(condition: Any, x: Tensor, y: Any, /) -> Tensor: ...
@overload
def where(condition: Any, x: Any, y: Tensor, /) -> Tensor: ...
@overload
def where(condition: Tensor, x: Any, y: Any, /) -> Tensor: ...
@overload
def where(condition: Any, /) -> Any: ...

abs = absolute = acos = acosh = add = all = amax = amin = angle = any = append = arccos = _tensor
arccosh = arcsin = arcsinh = arctan = arctan2 = arctanh = argmax = argmin = argpartition = _tensor
argsort = argwhere = around = asin = asinh = astype = atan = atan2 = atanh = bincount = _tensor
bitwise_and = bitwise_count = bitwise_invert = bitwise_left_shift = bitwise_not = _tensor
bitwise_or = bitwise_right_shift = bitwise_xor = block = broadcast_to = cbrt = ceil = _tensor
choose = clip = column_stack = compress = concat = concatenate = conj = conjugate = _tensor
convolve = copy = copysign = corrcoef = correlate = cos = cosh = count_nonzero = cov = _tensor
cross = cumprod = cumsum = cumulative_prod = cumulative_sum = deg2rad = degrees = delete = _tensor
diag = diagflat = diagonal = diff = digitize = divide = dot = dstack = ediff1d = einsum = _tensor
empty_like = equal = exp = exp2 = expand_dims = expm1 = extract = fabs = fix = flatnonzero = _tensor
flip = fliplr = flipud = float_power = floor = floor_divide = fmax = fmin = fmod = _tensor
full_like = gcd = greater = greater_equal = heaviside = hstack = hypot = i0 = imag = inner = _tensor
insert = interp = invert = isclose = iscomplex = isfinite = isin = isinf = isnan = isnat = _tensor
isneginf = isposinf = isreal = kron = lcm = ldexp = left_shift = less = less_equal = _tensor
lexsort = log = log10 = log1p = log2 = logaddexp = logaddexp2 = logical_and = logical_not = _tensor
logical_or = logical_xor = matmul = matrix_transpose = matvec = max = maximum = mean = _tensor
median = min = minimum = mod = moveaxis = multiply = nan_to_num = nanargmax = nanargmin = _tensor
nancumprod = nancumsum = nanmax = nanmean = nanmedian = nanmin = nanpercentile = nanprod = _tensor
nanquantile = nanstd = nansum = nanvar = negative = not_equal = ones_like = outer = pad = _tensor
partition = percentile = permute_dims = polyadd = polyder = polyint = polymul = polysub = _tensor
polyval = positive = pow = power = prod = ptp = quantile = rad2deg = radians = ravel = _tensor
real = real_if_close = reciprocal = remainder = repeat = reshape = resize = right_shift = _tensor
rint = roll = rollaxis = rot90 = round = searchsorted = select = setdiff1d = setxor1d = _tensor
sign = signbit = sin = sinc = sinh = sort = sort_complex = spacing = sqrt = square = _tensor
squeeze = stack = std = subtract = sum = swapaxes = take = take_along_axis = tan = tanh = _tensor
tensordot = tile = trace = transpose = trapezoid = tril = trim_zeros = triu = true_divide = _tensor
trunc = union1d = unique_values = unwrap = vander = var = vdot = vecdot = vecmat = vstack = _tensor
zeros_like = _tensor

divmod = frexp = histogram = modf = polydiv = _pair
array_split = dsplit = hsplit = split = vsplit = _list
broadcast_arrays = ix_ = meshgrid = nonzero = unstack = _tuple
allclose = array_equal = array_equiv = can_cast = iscomplexobj = isrealobj = _bool
may_share_memory = shares_memory = _bool
array2string = array_repr = array_str = _str
ndim = size = _int
shape = _shape
apply_along_axis = apply_over_axes = atleast_1d = atleast_2d = atleast_3d = _any
common_type = gradient = intersect1d = min_scalar_type = piecewise = polyfit = result_type = _any
unique = unique_all = unique_counts = unique_inverse = _any
