// Dropout by the random numbers of Philox (common.cuh). Twin: telegrad/kernels/philox.py.
//
// compile: ITEM=float|double|Half|Bfloat

typedef Wide<ITEM> Real;
constexpr int N = sizeof(ITEM) == 2 ? 8 : 4;  // items of a thread at once

// Item i is x[i] scale if word i % 4 of counter i / 4 is at least `threshold`, else 0.
KERNEL void dropout(const ITEM* x, ITEM* y, Index n, Index key, Index threshold, double scale) {
    const Mask mask = {key, threshold};
    const Real factor = static_cast<Real>(scale);
    const bool packed = aligned<N>(x) && aligned<N>(y);
    const Index step = (Index)gridDim.x * blockDim.x * N;
    for (Index i = ((Index)blockIdx.x * blockDim.x + threadIdx.x) * N; i < n; i += step) {
        Numbers<Real, N> items = {};
        const bool whole = packed && i + N <= n;
        if (whole)
            items = load<Real, N>(x + i);
        else
            for (int j = 0; j < N; ++j)
                if (i + j < n) items.at[j] = widen(x[i + j]);
        const unsigned kept = mask.of<N>(i);
#pragma unroll
        for (int j = 0; j < N; ++j) items.at[j] = kept >> j & 1 ? items.at[j] * factor : Real(0);
        if (whole)
            store<N>(y + i, items);
        else
            for (int j = 0; j < N; ++j)
                if (i + j < n) y[i + j] = Narrow<ITEM>::of(items.at[j]);
    }
}
