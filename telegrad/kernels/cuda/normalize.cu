// Normalisation to mean 0 and variance 1, forward and backward. Twin: telegrad/kernels/normalization.py.
//
// Arrays have three axes; each b has a mean and a variance, and a block. A block passes over its items two
// or three times: all but the first time they are in the cache.
//
// FORM: 0 rows: axes (b, c), a is 1; weight and bias have c numbers
//       1 channels: axes (a, b, c); weight and bias have b numbers
//       2 groups of channels: axes (b, a, c), where b counts examples and in each of them `groups`; weight
//         and bias have a numbers for each group
//
// A few b of many items have several blocks each (blockIdx.y), which share out the axis a. They take two
// launches: stage 1 writes two numbers for each block to `parts`, of shape (blocks, b, 2), and stage 2
// reads them. Stage 0 is both at once, with one block for each b.
//
// ITEM: the type of x and of its gradient; WEIGHT: of weight and bias; OUT: of y and of its gradient;
// REAL: of all others.
//
// compile: ITEM=float WEIGHT=float OUT=float REAL=float FORM=0|1|2
// compile: ITEM=Half|Bfloat WEIGHT=float OUT=float REAL=float FORM=0|1|2
// compile: ITEM=Half WEIGHT=Half OUT=Half REAL=float FORM=0|1|2
// compile: ITEM=double WEIGHT=double OUT=double REAL=double FORM=0|1|2

constexpr int N = 16 / sizeof(ITEM);
constexpr bool ROWS = FORM == 0, CHANNELS = FORM == 1, GROUPS = FORM == 2;

struct Axes {
    Index a, b, c, groups;
    Index begin, end;  // the part of axis a that the block has

    __device__ Axes(Index a, Index b, Index c, Index groups, Index part, Index parts)
        : a(a), b(b), c(c), groups(groups), begin(a * part / parts), end(a * (part + 1) / parts) {}
    // The first of the weights of a row, of those that differ along axis a.
    __device__ Index weights(Index row) const { return GROUPS ? row % groups * a : row; }
    // Where the items begin that a row has in one layer of axis a.
    __device__ Index place(Index row, Index layer) const {
        return (GROUPS ? row * a + layer : layer * b + row) * c;
    }
    __device__ Index count() const { return a * c; }
    // The number of items of one b in a part.
    __device__ Index own(Index part) const {
        return (a * (part + 1) / gridDim.y - a * part / gridDim.y) * c;
    }
};

template <class R, int M, class T>
__device__ inline Numbers<R, M> load_or(const T* from, Index at, R otherwise) {
    if (from && ROWS) return load<R, M>(from + at);
    Numbers<R, M> numbers;
    R one = from ? static_cast<R>(widen(from[at])) : otherwise;
#pragma unroll
    for (int j = 0; j < M; ++j) numbers.at[j] = one;
    return numbers;
}

// Calls function(width, w, place) for the items of a row that this thread has, `width` of them at once:
// they lie at `place` and following, and their weight, or the first of their weights, is number w.
template <int M, class Function>
__device__ inline void each_item_at_step(const Axes& axes, Index row, Function function) {
    const Index step = (Index)blockDim.x * M;
    if (axes.count() == 0) return;
    if (ROWS) {
        for (Index k = (Index)threadIdx.x * M; k < axes.c; k += step)
            function(Items<M>(), k, row * axes.c + k);
    } else {
        Index k = (Index)threadIdx.x * M % axes.c;
        Index layer = axes.begin + (Index)threadIdx.x * M / axes.c;
        const Index of_k = step % axes.c, of_layer = step / axes.c, weights = axes.weights(row);
        while (layer < axes.end) {
            function(Items<M>(), GROUPS ? weights + layer : weights, axes.place(row, layer) + k);
            k += of_k;
            layer += of_layer + (k >= axes.c);
            k -= k >= axes.c ? axes.c : 0;
        }
    }
}

template <class Function>
__device__ inline void each_item(const Axes& axes, bool packed, Index row, Function function) {
    if (packed && axes.c % N == 0)
        each_item_at_step<N>(axes, row, function);
    else
        each_item_at_step<1>(axes, row, function);
}

KERNEL void normalize_forward(
    const ITEM* x, const WEIGHT* weight, const WEIGHT* bias, OUT* y, REAL* scale, REAL* mean,
    REAL* variance, REAL* parts, Index a, Index b, Index c, Index groups, Index centred, Index stage,
    double eps) {
    typedef Wide<OUT> Real;
    const Axes axes(a, b, c, groups, blockIdx.y, gridDim.y);
    const bool packed = aligned<N>(x) && aligned<N>(y) && aligned<N>(weight) && aligned<N>(bias);
    for (Index row = blockIdx.x; row < b; row += gridDim.x) {
        REAL centre = 0, squares = 0;
        if (stage == 2) {
            // T. F. Chan, G. H. Golub and R. J. LeVeque (1979): means and squares of parts are joined.
            REAL count = 0;
            for (Index part = 0; part < gridDim.y; ++part) {
                const REAL more = axes.own(part), all = count + more;
                const REAL* of_part = parts + (part * b + row) * 2;
                if (more == 0) continue;
                const REAL distance = of_part[0] - centre;
                centre += distance * (more / all);
                squares += of_part[1] + distance * distance * (count * more / all);
                count = all;
            }
        } else {
            if (centred) {
                REAL sum = 0;
                each_item(axes, packed, row, [&](auto width, Index, Index place) {
                    auto items = load<REAL, width.size>(x + place);
#pragma unroll
                    for (int j = 0; j < width.size; ++j) sum += items.at[j];
                });
                const Index count = axes.own(blockIdx.y);
                centre = block_sum(sum) / (count ? count : 1);
            }
            each_item(axes, packed, row, [&](auto width, Index, Index place) {
                auto items = load<REAL, width.size>(x + place);
#pragma unroll
                for (int j = 0; j < width.size; ++j) {
                    REAL distance = items.at[j] - centre;
                    squares += distance * distance;
                }
            });
            squares = block_sum(squares);
        }
        if (stage == 1) {
            if (threadIdx.x == 0) {
                parts[(blockIdx.y * b + row) * 2] = centre;
                parts[(blockIdx.y * b + row) * 2 + 1] = squares;
            }
            continue;
        }
        const REAL spread = squares / axes.count();
        const REAL factor = 1 / sqrt(spread + REAL(eps));
        each_item(axes, packed, row, [&](auto width, Index w, Index place) {
            constexpr int M = width.size;
            auto items = load<REAL, M>(x + place);
            auto weights = load_or<Real, M>(weight, w, Real(1));
            auto shifts = load_or<Real, M>(bias, w, Real(0));
            Numbers<Real, M> found;
#pragma unroll
            for (int j = 0; j < M; ++j)
                found.at[j] = (items.at[j] - centre) * factor * weights.at[j] + shifts.at[j];
            store<M>(y + place, found);
        });
        if (threadIdx.x == 0 && blockIdx.y == 0) {
            scale[row] = factor;
            mean[row] = centre;
            variance[row] = spread;
        }
    }
}

template <int M, class R> __device__ inline void add(R* to, const Numbers<R, M>& numbers) {
    auto sums = load<R, M>(to);
#pragma unroll
    for (int j = 0; j < M; ++j) sums.at[j] += numbers.at[j];
    store<M>(to, sums);
}

// Sums along axis c of gradient * standard and of the gradient, for one layer of a row of a group.
struct Sums {
    REAL along, total;
};

__device__ inline Sums sums_of_layer(
    const Team& team, const OUT* gradient, const ITEM* x, Index c, bool packed, REAL centre, REAL factor) {
    Sums sums = {0, 0};
    each_pack<N>(packed, c, team.thread(), team.threads(), [&](auto width, Index k) {
        auto upstream = load<REAL, width.size>(gradient + k), items = load<REAL, width.size>(x + k);
#pragma unroll
        for (int j = 0; j < width.size; ++j) {
            sums.along += upstream.at[j] * (items.at[j] - centre) * factor;
            sums.total += upstream.at[j];
        }
    });
    return {team.sum(sums.along), team.sum(sums.total)};
}

// The gradient of x: scale (u - mean(u) - standard mean(u standard)), where u is gradient * weight and
// standard is (x - mean) scale. And those of weight and bias: sums of gradient * standard and gradient.
//
// With channels a block finds the sums of its channel. With rows, a thread has the same columns in each of
// its block's rows. It adds them up in shared memory, or in its part of `sums` if that is `wide`, and
// `normalize_columns` adds the parts, of 2 c numbers for each block. With groups a part has the sums of
// all channels of one example. Without `sums` there are none.
KERNEL void normalize_backward(
    const OUT* gradient, const ITEM* x, const REAL* mean, const REAL* scale, const WEIGHT* weight,
    ITEM* result, REAL* sums, REAL* parts, Index a, Index b, Index c, Index groups, Index centred,
    Index wide, Index stage) {
    DYNAMIC_SHARED(memory);
    const Axes axes(a, b, c, groups, blockIdx.y, gridDim.y);
    const bool packed = aligned<N>(gradient) && aligned<N>(x) && aligned<N>(weight) && aligned<N>(result) &&
                        aligned<N>(sums);
    REAL* part = ROWS && sums ? sums + (Index)blockIdx.x * 2 * c : nullptr;
    REAL* own = part && !wide ? reinterpret_cast<REAL*>(memory) : part;
    auto each_column = [&](auto function) { each_item(axes, packed, 0, function); };
    if (part)
        each_column([&](auto width, Index k, Index) {
            for (int j = 0; j < width.size; ++j) own[k + j] = own[c + k + j] = 0;
        });
    for (Index row = blockIdx.x; row < b; row += gridDim.x) {
        const REAL centre = mean[row], factor = scale[row];
        REAL total = 0, along = 0;
        if (stage == 2)
            for (Index part = 0; part < gridDim.y; ++part) {
                along += parts[(part * b + row) * 2];
                total += parts[(part * b + row) * 2 + 1];
            }
        else if (GROUPS) {
            // Each warp has a layer, or the whole block if there are fewer layers than warps.
            const Team team = {axes.end - axes.begin >= blockDim.x / 32};
            const Index first = team.warps ? threadIdx.x / 32 : 0, step = team.warps ? blockDim.x / 32 : 1;
            for (Index layer = axes.begin + first; layer < axes.end; layer += step) {
                const Index place = axes.place(row, layer), w = axes.weights(row) + layer;
                const Sums found =
                    sums_of_layer(team, gradient + place, x + place, c, packed, centre, factor);
                if (team.thread() != 0) continue;
                const REAL one = weight ? static_cast<REAL>(widen(weight[w])) : REAL(1);
                along += found.along * one;
                total += found.total * one;
                if (sums) {
                    REAL* to = sums + row / groups * 2 * groups * a + w;
                    to[0] = found.along;
                    to[groups * a] = found.total;
                }
            }
        } else
            each_item(axes, packed, row, [&](auto width, Index k, Index place) {
                constexpr int M = width.size;
                auto upstream = load<REAL, M>(gradient + place), items = load<REAL, M>(x + place);
                auto weights = load_or<REAL, M>(CHANNELS ? nullptr : weight, k, REAL(1));
#pragma unroll
                for (int j = 0; j < M; ++j) {
                    const REAL standard = (items.at[j] - centre) * factor;
                    items.at[j] = upstream.at[j] * standard;
                    total += upstream.at[j] * weights.at[j];
                    along += items.at[j] * weights.at[j];
                }
                if (part) {
                    add<M>(own + k, items);
                    add<M>(own + c + k, upstream);
                }
            });
        if (stage != 2) {
            along = block_sum(along);
            total = block_sum(total);
        }
        if (stage == 1) {
            if (threadIdx.x == 0) {
                parts[(blockIdx.y * b + row) * 2] = along;
                parts[(blockIdx.y * b + row) * 2 + 1] = total;
            }
            continue;
        }
        if (CHANNELS && threadIdx.x == 0 && blockIdx.y == 0 && sums) {
            sums[row] = along;
            sums[b + row] = total;
        }
        const REAL one = CHANNELS && weight ? static_cast<REAL>(widen(weight[row])) : REAL(1);
        along *= one / axes.count();
        total = centred ? total * one / axes.count() : REAL(0);
        each_item(axes, packed, row, [&](auto width, Index w, Index place) {
            constexpr int M = width.size;
            auto upstream = load<REAL, M>(gradient + place), items = load<REAL, M>(x + place);
            auto weights = load_or<REAL, M>(CHANNELS ? nullptr : weight, w, one);
#pragma unroll
            for (int j = 0; j < M; ++j) {
                const REAL standard = (items.at[j] - centre) * factor;
                items.at[j] = (upstream.at[j] * weights.at[j] - total - standard * along) * factor;
            }
            store<M>(result + place, items);
        });
    }
    if (part && own != part)
        each_column([&](auto width, Index k, Index) {
            for (int j = 0; j < width.size; ++j) {
                part[k + j] = own[k + j];
                part[c + k + j] = own[c + k + j];
            }
        });
}

// Adds up `parts` rows of c items. A block has 32 columns, and 32 threads for each of them.
KERNEL void normalize_columns(const REAL* rows, REAL* result, Index parts, Index c) {
    __shared__ REAL totals[32][33];
    const int x = threadIdx.x % 32, y = threadIdx.x / 32;
    for (Index first = (Index)blockIdx.x * 32; first < c; first += (Index)gridDim.x * 32) {
        REAL total = 0;
        if (first + x < c)
            for (Index row = y; row < parts; row += 32) total += rows[row * c + first + x];
        __syncthreads();  // the sums of the columns before are read
        totals[y][x] = total;
        __syncthreads();
        total = warp_sum(totals[x][y]);  // warp y adds up column y
        if (x == 0 && first + y < c) result[first + y] = total;
    }
}
