// Sums of rows that go to the same row of a table. Twin: telegrad/kernels/rows.py.
//
// Block x has the rows of the table whose number is x modulo the number of blocks; y tells its columns.
// It looks through all numbers and keeps the places of its own in a list, in their order. So no two
// blocks write to one row, nothing has to be sorted, and sums are added up in the same order each time.
//
// ITEM: the type of values and table.
//
// compile: ITEM=float|double|Half|Bfloat

typedef Wide<ITEM> Real;
constexpr int N = 16 / sizeof(Real);
constexpr int THREADS = 256, LIST = 512;

// Adds values[i] to table[rows[i] modulo height] for i < n; rows[i] == ignored adds nothing. The table is
// zero at first and has `width` columns.
KERNEL void add_rows(
    const ITEM* values, const Index* rows, ITEM* table, Index n, Index height, Index width, Index ignored) {
    __shared__ Index places[LIST], numbers[LIST];
    __shared__ int counts[THREADS / 32], found;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool packed = aligned<N>(values) && aligned<N>(table) && width % N == 0;
    const Index step = packed ? N : 1, first = ((Index)blockIdx.y * THREADS + threadIdx.x) * step;
    bool again = false;  // rows may have been written before
    if (threadIdx.x == 0) found = 0;
    for (Index start = 0; start < n; start += THREADS) {
        // Put the places of this block's rows among the next THREADS ones into the list.
        const Index i = start + threadIdx.x;
        Index row = -1;
        bool own = i < n && rows[i] != ignored;
        if (own) {
            row = rows[i] % height;
            row += row < 0 ? height : 0;
            own = row % gridDim.x == blockIdx.x;
        }
        const unsigned votes = __ballot_sync(WARP, own);
        if (lane == 0) counts[warp] = __popc(votes);
        __syncthreads();
        int place = found + __popc(votes & ((1u << lane) - 1)), total = found;
        for (int w = 0; w < THREADS / 32; ++w) {
            place += w < warp ? counts[w] : 0;
            total += counts[w];
        }
        if (own) {
            places[place] = i;
            numbers[place] = row;
        }
        __syncthreads();
        if (threadIdx.x == 0) found = total;
        // Add up what is in the list, if it is almost full or this is the end.
        if (total + THREADS <= LIST && start + THREADS < n) continue;
        for (Index c = first; c < width; c += (Index)gridDim.y * THREADS * step)
            for (int a = 0; a < total; ++a) {
                const Index number = numbers[a];
                bool done = false;  // with an earlier place of this row
                for (int b = 0; b < a && !done; ++b) done = numbers[b] == number;
                if (done) continue;
                ITEM* to = table + number * width + c;
                auto add = [&](auto items) {
                    constexpr int M = items.size;
                    Numbers<Real, M> sum = {};
                    if (again) sum = load<Real, M>(to);
                    for (int b = a; b < total; ++b) {
                        if (numbers[b] != number) continue;
                        auto more = load<Real, M>(values + places[b] * width + c);
#pragma unroll
                        for (int j = 0; j < M; ++j) sum.at[j] += more.at[j];
                    }
                    store<M>(to, sum);
                };
                if (packed) add(Items<N>());
                else add(Items<1>());
            }
        again = true;
        __syncthreads();
        if (threadIdx.x == 0) found = 0;
    }
}
