// Copies of any number of arrays, multiplied and cast on the way. Twin: telegrad/kernels/flatten.py.
//
// Lists of the table: the arrays, and where their items go.
//
// FROM, TO: the types of the items. REAL: the type in which they are multiplied.
// MORE: the type of *more.
// CAST: 0 if items are copied as they are; then FROM and TO are unsigned integers of their size, or
// Pair.
//
// compile: FROM=unsigned TO=unsigned REAL=float MORE=float CAST=0
// compile: FROM=Pair TO=Pair REAL=float MORE=float CAST=0
// compile: FROM=float TO=float|Half|Bfloat REAL=float MORE=float CAST=1
// compile: FROM=Half|Bfloat TO=float REAL=float MORE=float CAST=1
// compile: FROM=int|double TO=double|int REAL=double MORE=double CAST=1

// An item of 16 bytes: a complex number of doubles, which lies at any multiple of 8.
struct Pair {
    unsigned long long words[2];
};

constexpr int N = 16 / (sizeof(FROM) > sizeof(TO) ? sizeof(FROM) : sizeof(TO));

// The factor is scale * *more, or scale alone.
KERNEL void flatten(const Table* table, double scale, const MORE* more) {
    const REAL factor = scale * (more ? *more : MORE(1));
    table->each_chunk([&](Index i, Index first, int count) {
        const FROM* x = table->item<const FROM>(0, i, first);
        TO* y = table->item<TO>(1, i, first);
        each_pack<N>(aligned<N>(x) && aligned<N>(y), count, [&](auto items, int k) {
            constexpr int M = items.size;
#if CAST
            auto numbers = load<REAL, M>(x + k);
#pragma unroll
            for (int j = 0; j < M; ++j) numbers.at[j] *= factor;
            store<M>(y + k, numbers);
#else
            if (M == 1)  // a pack has the alignment of its size, which a Pair may not have
                y[k] = x[k];
            else
                *reinterpret_cast<Pack<TO, M>*>(y + k) = *reinterpret_cast<const Pack<FROM, M>*>(x + k);
#endif
        });
    });
}
