// The norm of all items of any number of arrays, in two launches. Twin: telegrad/kernels/norm.py.
//
// Squares are added up in double, so none overflows, and in the same order each time.
//
// ITEM: the type of the arrays. NORM: the type of the norm and of the factor.
//
// compile: ITEM=float|Half|Bfloat NORM=float
// compile: ITEM=double NORM=double

constexpr int N = 16 / sizeof(ITEM);

// The sum of squares of the chunks of each block.
KERNEL void norm_parts(const Table* table, double* parts) {
    double sum = 0;
    table->each_chunk([&](Index i, Index first, int count) {
        const ITEM* x = table->item<const ITEM>(0, i, first);
        each_pack<N>(aligned<N>(x), count, [&](auto items, int k) {
            auto numbers = load<double, items.size>(x + k);
#pragma unroll
            for (int j = 0; j < items.size; ++j) sum += numbers.at[j] * numbers.at[j];
        });
    });
    sum = block_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// One block: the root of the sum of n parts, and the factor that makes it `most` if it is more.
KERNEL void norm_finish(const double* parts, Index n, double most, NORM* norm, NORM* factor) {
    double sum = 0;
    for (Index i = threadIdx.x; i < n; i += blockDim.x) sum += parts[i];
    sum = sqrt(block_sum(sum));
    if (threadIdx.x == 0) {
        const double ratio = most / (sum + 1e-6);
        *norm = sum;
        *factor = ratio >= 1 ? 1 : ratio;  // NaN stays NaN
    }
}
