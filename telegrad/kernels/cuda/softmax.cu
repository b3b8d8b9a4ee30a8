// Softmax, its logarithm and cross entropy over rows. Twin: telegrad/kernels/cross_entropy.py.
//
// A row has a team of threads (common.cuh). It reads the row twice, the second time from the cache.
//
// ITEM: the type of all numbers but labels. warps: 1 if each warp has a row.
//
// compile: ITEM=float|double|Half|Bfloat

typedef Wide<ITEM> Real;
constexpr int N = 16 / sizeof(ITEM);

// The largest item of a row, and the sum of exp(item - top); of NaN, the sum is NaN.
struct Sums {
    Real top, sum;

    // What is subtracted from the items: infinity less infinity would be NaN.
    static __device__ Real shift(Real top) { return top == Real(-infinity()) ? Real(0) : top; }
};

__device__ inline Sums sums_of(const Team& team, const ITEM* x, Index c, bool packed) {
    Sums own = {Real(-infinity()), Real(0)};
    each_pack<N>(packed, c, team.thread(), team.threads(), [&](auto width, Index k) {
        auto items = load<Real, width.size>(x + k);
        Real top = own.top;
#pragma unroll
        for (int j = 0; j < width.size; ++j) top = fmax(top, items.at[j]);
        const Real shift = Sums::shift(top);
        own.sum *= exp(own.top - shift);
#pragma unroll
        for (int j = 0; j < width.size; ++j) own.sum += exp(items.at[j] - shift);
        own.top = top;
    });
    const Real top = team.max(own.top), shift = Sums::shift(top);
    return {shift, team.sum(own.sum * exp(own.top - shift))};
}

KERNEL void softmax_forward(
    const ITEM* x, ITEM* y, Index b, Index c, Index warps, Index logarithmic) {
    const Team team = {warps != 0};
    const bool packed = aligned<N>(x) && aligned<N>(y);
    for (Index row = team.row(); row < b; row += team.rows()) {
        const ITEM* from = x + row * c;
        const Sums sums = sums_of(team, from, c, packed);
        const Real factor = 1 / sums.sum, logarithm = log(sums.sum);
        each_pack<N>(packed, c, team.thread(), team.threads(), [&](auto width, Index k) {
            auto items = load<Real, width.size>(from + k);
#pragma unroll
            for (int j = 0; j < width.size; ++j) {
                items.at[j] -= sums.top;
                items.at[j] = logarithmic ? items.at[j] - logarithm : exp(items.at[j]) * factor;
            }
            store<width.size>(y + row * c + k, items);
        });
    }
}

// The gradient of x: y (g - sum(g y)), or g - exp(y) sum(g) for the logarithm.
KERNEL void softmax_backward(
    const ITEM* gradient, const ITEM* y, ITEM* result, Index b, Index c, Index warps,
    Index logarithmic) {
    const Team team = {warps != 0};
    const bool packed = aligned<N>(gradient) && aligned<N>(y) && aligned<N>(result);
    for (Index row = team.row(); row < b; row += team.rows()) {
        Real sum = 0;
        each_pack<N>(packed, c, team.thread(), team.threads(), [&](auto width, Index k) {
            auto g = load<Real, width.size>(gradient + row * c + k);
            auto items = load<Real, width.size>(y + row * c + k);
#pragma unroll
            for (int j = 0; j < width.size; ++j) sum += logarithmic ? g.at[j] : g.at[j] * items.at[j];
        });
        sum = team.sum(sum);
        each_pack<N>(packed, c, team.thread(), team.threads(), [&](auto width, Index k) {
            auto g = load<Real, width.size>(gradient + row * c + k);
            auto items = load<Real, width.size>(y + row * c + k);
#pragma unroll
            for (int j = 0; j < width.size; ++j)
                g.at[j] = logarithmic ? g.at[j] - exp(items.at[j]) * sum : items.at[j] * (g.at[j] - sum);
            store<width.size>(result + row * c + k, g);
        });
    }
}

// -- cross entropy: a label that is `ignored`, or no class, has a loss and a gradient of zero ---------

// Whether a label counts; one that is no class is written to `found`, the lowest or highest of all.
__device__ inline bool counts(Index label, Index c, Index ignored, Index* found) {
    if (label == ignored) return false;
    if (label >= 0 && label < c) return true;
    if (found) found[label >= c] = label;
    return false;
}

KERNEL void cross_entropy_forward(
    const ITEM* x, const Index* labels, ITEM* losses, Index* found, Index b, Index c, Index warps,
    Index ignored) {
    const Team team = {warps != 0};
    const bool packed = aligned<N>(x);
    for (Index row = team.row(); row < b; row += team.rows()) {
        const Index label = labels[row];
        const bool first = team.thread() == 0;
        if (!counts(label, c, ignored, first ? found : nullptr)) {
            if (first) losses[row] = Narrow<ITEM>::of(Real(0));
            continue;
        }
        const Sums sums = sums_of(team, x + row * c, c, packed);
        if (first) {
            const Real chosen = widen(x[row * c + label]) - sums.top;
            losses[row] = Narrow<ITEM>::of(log(sums.sum) - chosen);
        }
    }
}

// The gradient of x: (softmax(x) - one at the label) times the gradient of the loss, of which there is
// one for each row, or one for all if `one`, and times `factor` if there is one.
KERNEL void cross_entropy_backward(
    const ITEM* gradient, const Real* factor, const ITEM* x, const Index* labels, ITEM* result,
    Index b, Index c, Index warps, Index ignored, Index one) {
    const Team team = {warps != 0};
    const bool packed = aligned<N>(x) && aligned<N>(result);
    for (Index row = team.row(); row < b; row += team.rows()) {
        const Index label = labels[row];
        const bool counted = counts(label, c, ignored, nullptr);
        const ITEM* from = x + row * c;
        Sums sums = {0, 1};
        if (counted) sums = sums_of(team, from, c, packed);
        const Real g = widen(gradient[one ? 0 : row]) * (factor ? factor[0] : Real(1));
        const Real share = g / sums.sum;
        each_pack<N>(packed, c, team.thread(), team.threads(), [&](auto width, Index k) {
            Numbers<Real, width.size> items = {};
            if (counted) {
                items = load<Real, width.size>(from + k);
#pragma unroll
                for (int j = 0; j < width.size; ++j)
                    items.at[j] = exp(items.at[j] - sums.top) * share - (k + j == label ? g : Real(0));
            }
            store<width.size>(result + row * c + k, items);
        });
    }
}

// The mean of the losses that count, and 1 divided by their number; one block.
KERNEL void cross_entropy_mean(
    const ITEM* losses, const Index* labels, ITEM* mean, Real* factor, Index b, Index c,
    Index ignored) {
    Real sum = 0, count = 0;
    for (Index row = threadIdx.x; row < b; row += blockDim.x) {
        sum += widen(losses[row]);
        count += counts(labels[row], c, ignored, nullptr);
    }
    sum = block_sum(sum);
    count = block_sum(count);
    if (threadIdx.x == 0) {
        mean[0] = Narrow<ITEM>::of(sum / count);
        factor[0] = 1 / count;
    }
}
