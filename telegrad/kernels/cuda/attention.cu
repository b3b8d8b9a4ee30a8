// Attention: its softmax between matrix products, and all of it in tiles. Twin: telegrad/kernels/attention.py.
//
// A score is the product of query and key plus a bias, and minus infinity where a query may not read a
// key. Scores have the axes (batch, head, query, key). With a threshold above 0 weights are dropped, as
// dropout.cu does, and the others are multiplied by `rescale`.
//
// compile: ITEM=float|double|Half|Bfloat

typedef Wide<ITEM> Real;
constexpr int N = 16 / sizeof(ITEM);

// What is added to the scores; strides of 0 where it is the same for all.
struct Bias {
    const ITEM* items;
    Index heads, queries, of_batch, of_head, of_query, of_key;
    bool causal;

    // Its matrix for one of the leading axes, batches and heads together.
    __device__ const ITEM* matrix(Index lead) const {
        return items ? items + lead / heads * of_batch + lead % heads * of_head : nullptr;
    }
    __device__ const ITEM* row(Index row) const {
        return items ? matrix(row / queries) + row % queries * of_query : nullptr;
    }
    // The number of keys that the query of a row may read at most.
    __device__ Index keys(Index row, Index all) const {
        return causal && row % queries + 1 < all ? row % queries + 1 : all;
    }
};

// -- between matrix products: a team of threads (common.cuh) has a row of keys ------------------------
//
// `warps`: 1 if each warp has a row. A launch has `rows` of all rows, from `first` on.

// Calls function(width, k, scores) for the keys of a row that this thread has; the scores of keys from
// `end` on are minus infinity.
template <class Function>
__device__ inline void each_score(
    const Team& team, bool packed, const ITEM* products, const ITEM* own, Index of_key, Index keys,
    Index end, Function function) {
    each_pack<N>(packed, keys, team.thread(), team.threads(), [&](auto width, Index k) {
        auto scores = load<Real, width.size>(products + k);
#pragma unroll
        for (int j = 0; j < width.size; ++j) {
            if (own) scores.at[j] += widen(own[(k + j) * of_key]);
            if (k + j >= end) scores.at[j] = Real(-infinity());
        }
        function(width, k, scores);
    });
}

// Drops some of the numbers of the items `first` and following.
template <int M> __device__ inline void drop(const Mask& mask, Index first, Real factor, Numbers<Real, M>& x) {
    if (mask.threshold == 0) return;
    const unsigned kept = mask.of<M>(first);
#pragma unroll
    for (int j = 0; j < M; ++j) x.at[j] = kept >> j & 1 ? x.at[j] * factor : Real(0);
}

// Replaces products of queries and keys by the weights; `logarithms` are those of the rows' sums.
KERNEL void attention_weights(
    ITEM* products, const ITEM* bias, Real* logarithms, Index first, Index rows, Index heads,
    Index queries, Index keys, Index of_batch, Index of_head, Index of_query, Index of_key,
    Index causal, Index key, Index threshold, double rescale, Index warps) {
    const Team team = {warps != 0};
    const Bias added = {bias, heads, queries, of_batch, of_head, of_query, of_key, causal != 0};
    const bool packed = aligned<N>(products);
    const Real more_of = static_cast<Real>(rescale);
    const Mask mask = {key, threshold};
    for (Index row = team.row(); row < rows; row += team.rows()) {
        ITEM* at = products + row * keys;
        const ITEM* own = added.row(first + row);
        const Index end = added.keys(first + row, keys);
        Real top = Real(-infinity()), sum = 0;
        each_score(team, packed, at, own, of_key, keys, end, [&](auto width, Index, auto scores) {
            Real higher = top;
#pragma unroll
            for (int j = 0; j < width.size; ++j) higher = fmax(higher, scores.at[j]);
            const Real shift = higher == Real(-infinity()) ? Real(0) : higher;
            sum *= exp(top - shift);
#pragma unroll
            for (int j = 0; j < width.size; ++j) sum += exp(scores.at[j] - shift);
            top = higher;
        });
        const Real all = team.max(top), shift = all == Real(-infinity()) ? Real(0) : all;
        sum = team.sum(sum * exp(top - shift));
        sum = sum == 0 ? Real(1) : sum;
        const Real share = 1 / sum;
        each_score(team, packed, at, own, of_key, keys, end, [&](auto width, Index k, auto scores) {
#pragma unroll
            for (int j = 0; j < width.size; ++j) scores.at[j] = exp(scores.at[j] - shift) * share;
            drop(mask, (first + row) * keys + k, more_of, scores);
            store<width.size>(at + k, scores);
        });
        if (team.thread() == 0) logarithms[row] = shift + log(sum);
    }
}

// Replaces products of queries and keys by the weights, and `slopes`, the gradients of the weights, by
// those of the products. `of_weights`, if there is one, is added to the gradients of the weights.
KERNEL void attention_slopes(
    ITEM* products, ITEM* slopes, const ITEM* bias, const Real* logarithms, const ITEM* of_weights,
    Index first, Index rows, Index heads, Index queries, Index keys, Index of_batch, Index of_head,
    Index of_query, Index of_key, Index causal, Index key, Index threshold, double rescale,
    Index warps) {
    const Team team = {warps != 0};
    const Bias added = {bias, heads, queries, of_batch, of_head, of_query, of_key, causal != 0};
    const bool packed = aligned<N>(products) && aligned<N>(slopes) && aligned<N>(of_weights);
    const Real more_of = static_cast<Real>(rescale);
    const Mask mask = {key, threshold};
    for (Index row = team.row(); row < rows; row += team.rows()) {
        ITEM *at = products + row * keys, *slope = slopes + row * keys;
        const ITEM *own = added.row(first + row), *more = of_weights ? of_weights + row * keys : nullptr;
        const Index end = added.keys(first + row, keys);
        const Real logarithm = logarithms[row];
        Real along = 0;
        each_score(team, packed, at, own, of_key, keys, end, [&](auto width, Index k, auto scores) {
            auto g = load<Real, width.size>(slope + k);
#pragma unroll
            for (int j = 0; j < width.size; ++j) {
                if (more) g.at[j] += widen(more[k + j]);
                scores.at[j] = exp(scores.at[j] - logarithm);
            }
            drop(mask, (first + row) * keys + k, more_of, g);
#pragma unroll
            for (int j = 0; j < width.size; ++j) along += scores.at[j] * g.at[j];
        });
        along = team.sum(along);
        each_score(team, packed, at, own, of_key, keys, end, [&](auto width, Index k, auto scores) {
            auto g = load<Real, width.size>(slope + k);
#pragma unroll
            for (int j = 0; j < width.size; ++j) {
                if (more) g.at[j] += widen(more[k + j]);
                scores.at[j] = exp(scores.at[j] - logarithm);
            }
            drop(mask, (first + row) * keys + k, more_of, g);
#pragma unroll
            for (int j = 0; j < width.size; ++j) g.at[j] = scores.at[j] * (g.at[j] - along);
            drop(mask, (first + row) * keys + k, more_of, scores);
            store<width.size>(at + k, scores);
            store<width.size>(slope + k, g);
        });
    }
}

// -- in tiles, without a matrix of all weights: T. Dao et al., "FlashAttention: fast and memory-efficient
// exact attention with IO-awareness" (2022) --
//
// A block of THREADS computes TILE rows of a result, in TILE of its columns (blockIdx.y). For one tile
// of scores after the other it adds their weights times rows of a matrix. A thread has M rows and M columns
// of each tile. Sums and largest scores of the rows change as tiles come, and what was added shrinks.

constexpr int THREADS = 256, M = 16 / sizeof(Real), TILE = 16 * M, PART = 32, LINE = TILE + M;

struct alignas(16) Memory {
    Real left[PART][LINE], right[PART][LINE], weights[TILE][LINE];
};

// The numbers of a thread in a tile: rows row() and following, columns column() and following.
struct Share {
    Real at[M][M];

    static __device__ int row() { return threadIdx.x / 16 * M; }
    static __device__ int column() { return threadIdx.x % 16 * M; }

    template <class Function> __device__ void each(Function function) {
#pragma unroll
        for (int i = 0; i < M; ++i)
#pragma unroll
            for (int j = 0; j < M; ++j) function(at[i][j], row() + i, column() + j);
    }
    // Adds products left[k][row] right[k][column] for k < PART.
    __device__ void add(const Real (*left)[LINE], const Real (*right)[LINE]) {
#pragma unroll 4
        for (int k = 0; k < PART; ++k) {
            const auto a = load<Real, M>(left[k] + row()), b = load<Real, M>(right[k] + column());
#pragma unroll
            for (int i = 0; i < M; ++i)
#pragma unroll
                for (int j = 0; j < M; ++j) at[i][j] += a.at[i] * b.at[j];
        }
    }
    // Writes to[column][row], or to[row][column].
    __device__ void write(Real (*to)[LINE], bool turned) const {
#pragma unroll
        for (int i = 0; i < M; ++i) {
            Numbers<Real, M> line;
#pragma unroll
            for (int j = 0; j < M; ++j) line.at[j] = turned ? at[j][i] : at[i][j];
            store<M>(turned ? to[column() + i] + row() : to[row() + i] + column(), line);
        }
    }
};

// A matrix of `rows` rows with `length` items each.
struct Matrix {
    const ITEM* items;
    Index rows, length;

    __device__ Matrix from(Index row) const { return {items + row * length, rows - row, length}; }
    __device__ Real at(Index row, Index k) const {
        return row < rows && k < length ? Real(widen(items[row * length + k])) : Real(0);
    }
};

// The products of rows of two matrices, TILE of each.
__device__ inline Share products_of(Memory& memory, const Matrix& a, const Matrix& b) {
    Share sums = {};
    for (Index first = 0; first < a.length; first += PART) {
        __syncthreads();
#pragma unroll 2  // with more loads at once, registers spill on sm_70 and sm_80
        for (int n = 0; n < TILE * PART; n += THREADS) {
            const int row = (n + threadIdx.x) / PART, k = threadIdx.x % PART;
            memory.left[k][row] = a.at(row, first + k);
            memory.right[k][row] = b.at(row, first + k);
        }
        __syncthreads();
        sums.add(memory.left, memory.right);
    }
    return sums;
}

// Adds the weights in memory times TILE rows of a matrix, in columns from `column` on.
__device__ inline void add_rows(Memory& memory, const Matrix& b, Index column, Share& sums) {
    for (int first = 0; first < TILE; first += PART) {
        __syncthreads();
#pragma unroll 4
        for (int n = 0; n < TILE * PART; n += THREADS) {
            const int row = (n + threadIdx.x) / TILE, k = threadIdx.x % TILE;
            memory.right[row][k] = b.at(first + row, column + k);
        }
        __syncthreads();
        sums.add(memory.weights + first, memory.right);
    }
}

// Arrays and sizes of all leading axes.
struct Problem {
    const ITEM *q, *k, *v;
    Bias bias;
    Mask mask;
    Index keys, length, values;
    Real scale, more_of;

    __device__ Matrix queries_of(Index lead) const {
        return {q + lead * bias.queries * length, bias.queries, length};
    }
    __device__ Matrix keys_of(Index lead) const { return {k + lead * keys * length, keys, length}; }
    __device__ Matrix values_of(Index lead) const { return {v + lead * keys * values, keys, values}; }

    // The scores of TILE queries and keys from these numbers on.
    __device__ Share scores(Memory& memory, Index lead, Index query, Index key) const {
        Share made = products_of(memory, queries_of(lead).from(query), keys_of(lead).from(key));
        const ITEM* own = bias.matrix(lead);
        made.each([&](Real& score, int row, int column) {
            const Index a = query + row, b = key + column;
            score *= scale;
            if (a >= bias.queries || b >= keys || (bias.causal && b > a))
                score = Real(-infinity());
            else if (own)
                score += widen(own[a * bias.of_query + b * bias.of_key]);
        });
        return made;
    }
    // Drops some of the numbers of a tile.
    __device__ void drop(Index lead, Index query, Index key, Share& tile) const {
        if (mask.threshold == 0) return;
#pragma unroll
        for (int i = 0; i < M; ++i) {
            const Index row = lead * bias.queries + query + Share::row() + i;
            const unsigned kept = mask.of<M>(row * keys + key + Share::column());
#pragma unroll
            for (int j = 0; j < M; ++j)
                tile.at[i][j] = kept >> j & 1 ? tile.at[i][j] * more_of : Real(0);
        }
    }
};

// Over the 16 threads that have a row.
__device__ inline Real row_sum(Real x) {
    for (int distance = 8; distance > 0; distance /= 2) x += __shfl_xor_sync(WARP, x, distance);
    return x;
}
__device__ inline Real row_max(Real x) {
    for (int distance = 8; distance > 0; distance /= 2) x = fmax(x, __shfl_xor_sync(WARP, x, distance));
    return x;
}

KERNEL void __launch_bounds__(256, 2) attention_tiles(
    const ITEM* q, const ITEM* k, const ITEM* v, const ITEM* bias, ITEM* result, Real* logarithms,
    Index leads, Index length, Index values, double scale, Index heads, Index queries, Index keys,
    Index of_batch, Index of_head, Index of_query, Index of_key, Index causal, Index key,
    Index threshold, double rescale) {
    __shared__ Memory memory;
    const Problem all = {
        q, k, v, {bias, heads, queries, of_batch, of_head, of_query, of_key, causal != 0},
        {key, threshold}, keys, length, values, static_cast<Real>(scale), static_cast<Real>(rescale)};
    const Index tiles = (queries + TILE - 1) / TILE, column = (Index)blockIdx.y * TILE;
    for (Index tile = blockIdx.x; tile < leads * tiles; tile += gridDim.x) {
        const Index lead = tile / tiles, first = (tiles - 1 - tile % tiles) * TILE;  // the longest first
        const Index end = causal ? min(keys, first + TILE) : keys;
        Share sums = {};
        Real top[M], total[M];
#pragma unroll
        for (int i = 0; i < M; ++i) {
            top[i] = Real(-infinity());
            total[i] = 0;
        }
        for (Index from = 0; from < end; from += TILE) {
            Share scores = all.scores(memory, lead, first, from);
#pragma unroll
            for (int i = 0; i < M; ++i) {
                Real highest = top[i];
#pragma unroll
                for (int j = 0; j < M; ++j) highest = fmax(highest, scores.at[i][j]);
                highest = row_max(highest);
                const Real shift = highest == Real(-infinity()) ? Real(0) : highest;
                const Real faded = exp(top[i] - shift);
                top[i] = highest;
                total[i] *= faded;
#pragma unroll
                for (int j = 0; j < M; ++j) {
                    scores.at[i][j] = exp(scores.at[i][j] - shift);
                    total[i] += scores.at[i][j];
                    sums.at[i][j] *= faded;
                }
            }
            all.drop(lead, first, from, scores);
            scores.write(memory.weights, true);
            add_rows(memory, all.values_of(lead).from(from), column, sums);
        }
#pragma unroll
        for (int i = 0; i < M; ++i) {
            total[i] = row_sum(total[i]);
            total[i] = total[i] == 0 ? Real(1) : total[i];
            const Index row = first + Share::row() + i;
            if (row < queries && column == 0 && Share::column() == 0)
                logarithms[lead * queries + row] = (top[i] == Real(-infinity()) ? Real(0) : top[i]) + log(total[i]);
#pragma unroll
            for (int j = 0; j < M; ++j) {
                const Index place = column + Share::column() + j;
                if (row < queries && place < values)
                    result[(lead * queries + row) * values + place] = Narrow<ITEM>::of(sums.at[i][j] / total[i]);
            }
        }
    }
}

// Products of rows of the result and of its gradient: what the slopes of a row's weights have in common.
KERNEL void attention_along(
    const ITEM* gradient, const ITEM* result, Real* along, Index rows, Index values) {
    const Team team = {true};
    for (Index row = team.row(); row < rows; row += team.rows()) {
        Real sum = 0;
        for (Index k = team.thread(); k < values; k += team.threads())
            sum += Real(widen(gradient[row * values + k])) * Real(widen(result[row * values + k]));
        sum = team.sum(sum);
        if (team.thread() == 0) along[row] = sum;
    }
}

// The gradient of q, k or v (blockIdx.z 0, 1 or 2). The rows of a block are queries or keys, and it goes
// through the tiles of the others: slopes of scores by rows of k or q, or weights by rows of `gradient`.
KERNEL void __launch_bounds__(256, 2) attention_tile_gradients(
    const ITEM* gradient, const ITEM* q, const ITEM* k, const ITEM* v, const ITEM* bias,
    const Real* logarithms, const Real* along, ITEM* of_q, ITEM* of_k, ITEM* of_v, Index leads,
    Index length, Index values, double scale, Index heads, Index queries, Index keys, Index of_batch,
    Index of_head, Index of_query, Index of_key, Index causal, Index key, Index threshold,
    double rescale) {
    __shared__ Memory memory;
    const Problem all = {
        q, k, v, {bias, heads, queries, of_batch, of_head, of_query, of_key, causal != 0},
        {key, threshold}, keys, length, values, static_cast<Real>(scale), static_cast<Real>(rescale)};
    const bool of_queries = blockIdx.z == 0, of_scores = blockIdx.z < 2;
    const Index rows = of_queries ? queries : keys, others = of_queries ? keys : queries;
    const Index width = of_scores ? length : values, column = (Index)blockIdx.y * TILE;
    ITEM* const to = of_queries ? of_q : of_scores ? of_k : of_v;
    const Index tiles = (rows + TILE - 1) / TILE;
    if (column >= width) return;
    for (Index tile = blockIdx.x; tile < leads * tiles; tile += gridDim.x) {
        const Index lead = tile / tiles, first = tile % tiles * TILE;
        const Index begin = causal && !of_queries ? first : 0;
        const Index end = causal && of_queries ? min(keys, first + TILE) : others;
        const Matrix upstream = {gradient + lead * queries * values, queries, values};
        const Matrix by = of_queries ? all.keys_of(lead) : of_scores ? all.queries_of(lead) : upstream;
        Share sums = {};
        for (Index from = begin; from < end; from += TILE) {
            const Index query = of_queries ? first : from, key = of_queries ? from : first;
            const Index own = query + Share::row();
            Share slopes = {};
            if (of_scores) {
                slopes = products_of(memory, upstream.from(query), all.values_of(lead).from(key));
                all.drop(lead, query, key, slopes);
            }
            Share weights = all.scores(memory, lead, query, key);
#pragma unroll
            for (int i = 0; i < M; ++i) {
                const bool there = own + i < queries;
                const Real logarithm = there ? logarithms[lead * queries + own + i] : Real(0);
                const Real common = there && of_scores ? along[lead * queries + own + i] : Real(0);
#pragma unroll
                for (int j = 0; j < M; ++j) {
                    weights.at[i][j] = exp(weights.at[i][j] - logarithm);
                    if (of_scores) weights.at[i][j] *= slopes.at[i][j] - common;
                }
            }
            if (!of_scores) all.drop(lead, query, key, weights);
            weights.write(memory.weights, of_queries);
            add_rows(memory, by.from(from), column, sums);
        }
        sums.each([&](Real sum, int i, int j) {
            if (first + i < rows && column + j < width)
                to[(lead * rows + first + i) * width + column + j] =
                    Narrow<ITEM>::of(of_scores ? sum * all.scale : sum);
        });
    }
}
