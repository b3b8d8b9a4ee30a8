// Dropout by Philox 4x32-10. Twin: telegrad/kernels/philox.py.
//
// J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
//
// compile: ITEM=float|double|Half|Bfloat

typedef Wide<ITEM> Real;
constexpr int N = sizeof(ITEM) == 2 ? 8 : 4;  // items of a thread at once

struct Words {
    unsigned at[4];
};

__device__ inline Words philox(unsigned long long counter, unsigned low, unsigned high) {
    unsigned a = (unsigned)counter, b = (unsigned)(counter >> 32), c = 0, d = 0;
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const unsigned long long first = 0xd2511f53ull * a, second = 0xcd9e8d57ull * c;
        a = (unsigned)(second >> 32) ^ b ^ low;
        c = (unsigned)(first >> 32) ^ d ^ high;
        b = (unsigned)second;
        d = (unsigned)first;
        low += 0x9e3779b9u;
        high += 0xbb67ae85u;
    }
    return {{a, b, c, d}};
}

// Item i is x[i] scale if word i % 4 of counter i / 4 is at least `threshold`, else 0.
KERNEL void dropout(const ITEM* x, ITEM* y, Index n, Index key, Index threshold, double scale) {
    const unsigned low = (unsigned)key, high = (unsigned)((unsigned long long)key >> 32);
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
#pragma unroll
        for (int q = 0; q < N / 4; ++q) {
            const Words words = philox((unsigned long long)i / 4 + q, low, high);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const bool kept = (Index)words.at[j] >= threshold;
                items.at[4 * q + j] = kept ? items.at[4 * q + j] * factor : Real(0);
            }
        }
        if (whole)
            store<N>(y + i, items);
        else
            for (int j = 0; j < N; ++j)
                if (i + j < n) y[i + j] = Narrow<ITEM>::of(items.at[j]);
    }
}
