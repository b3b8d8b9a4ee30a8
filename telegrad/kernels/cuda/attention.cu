// The softmax of attention between its matrix products, and its slope. Twin: telegrad/kernels/attention.py.
//
// A score is the product of query and key plus a bias, and minus infinity where a query may not read a key. Scores have the
// axes (batch, head, query, key), and a team of threads (common.cuh) has a row of keys. `warps`: 1 if each
// warp has a row. With a threshold above 0 weights are dropped, as dropout.cu does, and the others are
// multiplied by `rescale`. A launch has `rows` of all rows, from `first` on.
//
// compile: ITEM=float|double|Half|Bfloat

typedef Wide<ITEM> Real;
constexpr int N = 16 / sizeof(ITEM);

// What is added to the scores; strides of 0 where it is the same for all.
struct Bias {
    const ITEM* items;
    Index heads, queries, of_batch, of_head, of_query, of_key;
    bool causal;

    __device__ const ITEM* row(Index row) const {
        const Index query = row % queries, head = row / queries % heads, batch = row / queries / heads;
        return items ? items + batch * of_batch + head * of_head + query * of_query : nullptr;
    }
    // The number of keys that the query of a row may read at most.
    __device__ Index keys(Index row, Index all) const {
        return causal && row % queries + 1 < all ? row % queries + 1 : all;
    }
};

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
