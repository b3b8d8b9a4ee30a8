// GELU, `x Phi(x)`, its tanh form, their slopes, and halves of an array that gate the other halves.
// Twin: telegrad/kernels/gaussian.py.
//
// ITEM: the type of all arrays. FORM: 0 GELU, 1 its tanh form, 2 `x sigmoid(x)`, 3 `sigmoid(x)`.
//
// compile: ITEM=float|double|Half|Bfloat FORM=0|1|2|3

typedef Wide<ITEM> Real;

// The distribution function of the standard normal distribution. The complement is exact far left of 0,
// where Half, whose smallest number is 6e-8, has no digits that would show it.
template <class T> struct Normal {
    static __device__ inline Real below(Real x) {
        return Real(0.5) * erfc(x * Real(-0.7071067811865476));
    }
};
template <> struct Normal<Half> {
    static __device__ inline Real below(Real x) {
        return Real(0.5) + Real(0.5) * erf(x * Real(0.7071067811865476));
    }
};

// (1 + tanh(u)) / 2 of the tanh form, and its slope by 2 u, without cancellation on either side.
struct Gate {
    Real value, slope;

    __device__ inline explicit Gate(Real x) {
        Real twice = Real(1.5957691216057308) * x * (1 + Real(0.044715) * x * x);
        Real small = exp(twice < 0 ? twice : -twice), share = 1 / (1 + small);
        value = twice < 0 ? small * share : share;
        slope = small * share * share;
    }
};

// exp only takes numbers that are not positive, and never overflows.
__device__ inline Real sigmoid(Real x) {
    const Real small = exp(x < 0 ? x : -x);
    return (x < 0 ? small : Real(1)) / (1 + small);
}

// Tails are 0 at 1000. Beyond, an infinity times a tail of 0 would be NaN.
__device__ inline Real above(Real x) { return x < -1000 ? Real(-1000) : x; }
__device__ inline Real near(Real x) { return x > 1000 ? Real(1000) : above(x); }

__device__ inline Real value(Real x) {
    if (FORM >= 2) return sigmoid(x) * (FORM == 2 ? above(x) : Real(1));
    return above(x) * (FORM == 1 ? Gate(near(x)).value : Normal<ITEM>::below(x));
}

__device__ inline Real slope(Real wide) {
    const Real x = near(wide);
    if (FORM >= 2) {
        const Real share = sigmoid(x), rise = share * sigmoid(-x);
        return FORM == 2 ? share + x * rise : rise;
    }
    if (FORM == 1) {
        Gate gate(x);
        Real rise = Real(1.5957691216057308) * (1 + Real(3 * 0.044715) * x * x);
        return gate.value + x * gate.slope * rise;
    }
    Real bell = exp(Real(-0.5) * x * x) * Real(0.3989422804014327);
    return Normal<ITEM>::below(x) + x * bell;
}

KERNEL void gelu_forward(const ITEM* x, ITEM* y, Index n) {
    map([](Real x) { return value(x); }, n, y, x);
}

// The slope at x, times the gradient of y.
KERNEL void gelu_backward(const ITEM* x, const ITEM* gradient, ITEM* result, Index n) {
    map([](Real x, Real g) { return g * slope(x); }, n, result, x, gradient);
}

// -- gates: x has the axes (outer, 2, inner), and the second half of each row gates the first ----------

// Calls function(width, i, place) for the items of the gated array, `width` of them at once: items i and
// following, whose halves lie at `place` and `place + inner`.
template <int M, class Function>
__device__ inline void each_of_halves(Index n, Index inner, Function function) {
    const Index step = (Index)gridDim.x * blockDim.x * M;
    Index i = ((Index)blockIdx.x * blockDim.x + threadIdx.x) * M;
    Index row = i / inner, k = i % inner;
    const Index of_row = step / inner, of_k = step % inner;
    for (; i < n; i += step) {
        function(Items<M>(), i, row * 2 * inner + k);
        k += of_k;
        row += of_row + (k >= inner);
        k -= k >= inner ? inner : 0;
    }
}
template <class Function>
__device__ inline void each_of_halves(bool packed, Index n, Index inner, Function function) {
    constexpr int N = 16 / sizeof(ITEM);
    if (packed && inner % N == 0)
        each_of_halves<N>(n, inner, function);
    else
        each_of_halves<1>(n, inner, function);
}

KERNEL void gated_forward(const ITEM* x, ITEM* y, Index n, Index inner) {
    constexpr int N = 16 / sizeof(ITEM);
    each_of_halves(aligned<N>(x) && aligned<N>(y), n, inner, [&](auto width, Index i, Index place) {
        constexpr int M = width.size;
        auto items = load<Real, M>(x + place), gates = load<Real, M>(x + place + inner);
#pragma unroll
        for (int j = 0; j < M; ++j) items.at[j] *= value(gates.at[j]);
        store<M>(y + i, items);
    });
}

KERNEL void gated_backward(const ITEM* gradient, const ITEM* x, ITEM* result, Index n, Index inner) {
    constexpr int N = 16 / sizeof(ITEM);
    const bool packed = aligned<N>(gradient) && aligned<N>(x) && aligned<N>(result);
    each_of_halves(packed, n, inner, [&](auto width, Index i, Index place) {
        constexpr int M = width.size;
        auto items = load<Real, M>(x + place), gates = load<Real, M>(x + place + inner);
        const auto g = load<Real, M>(gradient + i);
#pragma unroll
        for (int j = 0; j < M; ++j) {
            const Real item = items.at[j], gate = gates.at[j];
            items.at[j] = g.at[j] * value(gate);
            gates.at[j] = g.at[j] * item * slope(gate);
        }
        store<M>(result + place, items);
        store<M>(result + place + inner, gates);
    });
}
