// GELU, `x Phi(x)`, its tanh form, and their slopes. Twin: telegrad/kernels/gaussian.py.
//
// ITEM: the type of all arrays. TANH: 1 for the tanh form.
//
// compile: ITEM=float|double|Half|Bfloat TANH=0|1

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

__device__ inline Real value(Real x) { return x * (TANH ? Gate(x).value : Normal<ITEM>::below(x)); }

__device__ inline Real slope(Real x) {
    if (TANH) {
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

KERNEL void gelu_slope(const ITEM* x, ITEM* result, Index n) {
    map([](Real x) { return slope(x); }, n, result, x);
}
