// GELU, `x Phi(x)`, its tanh form, and their slopes. Twin: telegrad/kernels/gaussian.py.
//
// ITEM: the type of all arrays. TANH: 1 for the tanh form.
//
// compile: ITEM=float|double|Half|Bfloat TANH=0|1

typedef Wide<ITEM> Real;

__device__ inline Real tanh_inside(Real x) {
    return tanh(Real(0.7978845608028654) * x * (1 + Real(0.044715) * x * x));
}

__device__ inline Real value(Real x) {
    if (TANH) return Real(0.5) * x * (1 + tanh_inside(x));
    return Real(0.5) * x * erfc(x * Real(-0.7071067811865476));
}

__device__ inline Real slope(Real x) {
    if (TANH) {
        Real t = tanh_inside(x);
        Real inner = Real(0.7978845608028654) * (1 + Real(3 * 0.044715) * x * x);
        return Real(0.5) * (1 + t + x * (1 - t * t) * inner);
    }
    Real bell = exp(Real(-0.5) * x * x) * Real(0.3989422804014327);
    return Real(0.5) * erfc(x * Real(-0.7071067811865476)) + x * bell;
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
