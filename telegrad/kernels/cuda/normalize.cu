// Normalisation to mean 0 and variance 1, forward and backward. Twin: telegrad/kernels/normalization.py.
//
// Arrays have the axes (a, b, c); each b has a mean and a variance, and a block. A block passes over its
// items two or three times: all but the first time they are in the cache.
//
// ITEM: the type of x, or of the gradient; WEIGHT: of weight and bias; OUT: of y; REAL: of all others.
// CHANNELS: 1 if weight and bias have one number for each b; 0 if they have c numbers, and a is 1.
//
// compile: ITEM=float WEIGHT=float OUT=float REAL=float CHANNELS=0|1
// compile: ITEM=Half|Bfloat WEIGHT=float OUT=float REAL=float CHANNELS=0|1
// compile: ITEM=Half WEIGHT=Half OUT=Half REAL=float CHANNELS=0|1
// compile: ITEM=double WEIGHT=double OUT=double REAL=double CHANNELS=0|1

constexpr int N = 16 / sizeof(ITEM);

struct Axes {
    Index a, b, c;

    __device__ Index count() const { return a * c; }
};

template <class R, int M, class T>
__device__ inline Numbers<R, M> load_or(const T* from, Index at, R otherwise) {
    if (from && !CHANNELS) return load<R, M>(from + at);
    Numbers<R, M> numbers;
    R one = from ? static_cast<R>(widen(from[at])) : otherwise;
#pragma unroll
    for (int j = 0; j < M; ++j) numbers.at[j] = one;
    return numbers;
}

template <int M> struct Width {
    static constexpr int size = M;
};

// Calls function(width, k, place) for the items of a row that this thread has, `width` of them at once:
// they are items k and following of axis c, and lie at `place` and following.
template <int M, class Function>
__device__ inline void each_item_at_step(const Axes& axes, Index row, Function function) {
    const Index step = (Index)blockDim.x * M;
    if (axes.count() == 0) return;
    if (CHANNELS) {
        Index k = (Index)threadIdx.x * M % axes.c, layer = (Index)threadIdx.x * M / axes.c;
        const Index of_k = step % axes.c, of_layer = step / axes.c;
        while (layer < axes.a) {
            function(Width<M>(), k, (layer * axes.b + row) * axes.c + k);
            k += of_k;
            layer += of_layer + (k >= axes.c);
            k -= k >= axes.c ? axes.c : 0;
        }
    } else {
        for (Index k = (Index)threadIdx.x * M; k < axes.c; k += step)
            function(Width<M>(), k, row * axes.c + k);
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
    const ITEM* x, const WEIGHT* weight, const WEIGHT* bias, OUT* y, REAL* standard, REAL* scale,
    REAL* mean, REAL* variance, Index a, Index b, Index c, Index centred,
    double eps) {
    typedef Wide<OUT> Real;
    const Axes axes = {a, b, c};
    const bool packed = aligned<N>(x) && aligned<N>(y) && aligned<N>(standard) && aligned<N>(weight) &&
                        aligned<N>(bias);
    for (Index row = blockIdx.x; row < b; row += gridDim.x) {
        REAL centre = 0;
        if (centred) {
            REAL sum = 0;
            each_item(axes, packed, row, [&](auto width, Index k, Index place) {
                auto items = load<REAL, width.size>(x + place);
#pragma unroll
                for (int j = 0; j < width.size; ++j) sum += items.at[j];
            });
            centre = block_sum(sum) / axes.count();
        }
        REAL squares = 0;
        each_item(axes, packed, row, [&](auto width, Index k, Index place) {
            auto items = load<REAL, width.size>(x + place);
#pragma unroll
            for (int j = 0; j < width.size; ++j) {
                REAL distance = items.at[j] - centre;
                squares += distance * distance;
            }
        });
        const REAL spread = block_sum(squares) / axes.count();
        const REAL factor = 1 / sqrt(spread + REAL(eps));
        each_item(axes, packed, row, [&](auto width, Index k, Index place) {
            constexpr int M = width.size;
            auto items = load<REAL, M>(x + place);
            auto weights = load_or<Real, M>(weight, CHANNELS ? row : k, Real(1));
            auto shifts = load_or<Real, M>(bias, CHANNELS ? row : k, Real(0));
            Numbers<Real, M> found;
#pragma unroll
            for (int j = 0; j < M; ++j) {
                items.at[j] = (items.at[j] - centre) * factor;
                found.at[j] = items.at[j] * weights.at[j] + shifts.at[j];
            }
            store<M>(standard + place, items);
            store<M>(y + place, found);
        });
        if (threadIdx.x == 0) {
            scale[row] = factor;
            mean[row] = centre;
            variance[row] = spread;
        }
    }
}

// The gradient of x: scale (u - mean(u) - standard mean(u standard)), where u is gradient * weight.
KERNEL void normalize_input(
    const ITEM* gradient, const REAL* standard, const REAL* scale, const WEIGHT* weight, REAL* result,
    Index a, Index b, Index c, Index centred) {
    const Axes axes = {a, b, c};
    const bool packed = aligned<N>(gradient) && aligned<N>(standard) && aligned<N>(weight) &&
                        aligned<N>(result);
    for (Index row = blockIdx.x; row < b; row += gridDim.x) {
        REAL total = 0, along = 0;
        each_item(axes, packed, row, [&](auto width, Index k, Index place) {
            constexpr int M = width.size;
            auto upstream = load<REAL, M>(gradient + place), items = load<REAL, M>(standard + place);
            auto weights = load_or<REAL, M>(weight, CHANNELS ? row : k, REAL(1));
#pragma unroll
            for (int j = 0; j < M; ++j) {
                upstream.at[j] *= weights.at[j];
                total += upstream.at[j];
                along += upstream.at[j] * items.at[j];
            }
        });
        along = block_sum(along) / axes.count();
        total = centred ? block_sum(total) / axes.count() : REAL(0);
        const REAL factor = scale[row];
        each_item(axes, packed, row, [&](auto width, Index k, Index place) {
            constexpr int M = width.size;
            auto upstream = load<REAL, M>(gradient + place), items = load<REAL, M>(standard + place);
            auto weights = load_or<REAL, M>(weight, CHANNELS ? row : k, REAL(1));
#pragma unroll
            for (int j = 0; j < M; ++j)
                upstream.at[j] =
                    (upstream.at[j] * weights.at[j] - total - items.at[j] * along) * factor;
            store<M>(result + place, upstream);
        });
    }
}

// The gradients of weight and bias for each b: sums over a and c.
KERNEL void normalize_channels(
    const ITEM* gradient, const REAL* standard, REAL* weight, REAL* bias, Index a, Index b, Index c) {
    const Axes axes = {a, b, c};
    const bool packed = aligned<N>(gradient) && aligned<N>(standard);
    for (Index row = blockIdx.x; row < b; row += gridDim.x) {
        REAL total = 0, along = 0;
        each_item(axes, packed, row, [&](auto width, Index k, Index place) {
            constexpr int M = width.size;
            auto upstream = load<REAL, M>(gradient + place), items = load<REAL, M>(standard + place);
#pragma unroll
            for (int j = 0; j < M; ++j) {
                total += upstream.at[j];
                along += upstream.at[j] * items.at[j];
            }
        });
        along = block_sum(along);
        total = block_sum(total);
        if (threadIdx.x == 0) {
            weight[row] = along;
            bias[row] = total;
        }
    }
}

// The gradients of weight and bias for each item of a row: sums over b rows of c items. A block has 16
// columns of 32 threads each, so that a warp reads two pieces of 16 items.
KERNEL void normalize_columns(
    const ITEM* gradient, const REAL* standard, REAL* weight, REAL* bias, Index b, Index c) {
    constexpr int COLUMNS = 16, ROWS = 32;
    __shared__ REAL totals[ROWS][COLUMNS + 1], alongs[ROWS][COLUMNS + 1];
    const int x = threadIdx.x % COLUMNS, y = threadIdx.x / COLUMNS;
    for (Index first = (Index)blockIdx.x * COLUMNS; first < c; first += (Index)gridDim.x * COLUMNS) {
        REAL total = 0, along = 0;
        if (first + x < c)
            for (Index row = y; row < b; row += ROWS) {
                const Index place = row * c + first + x;
                const REAL upstream = static_cast<REAL>(widen(gradient[place]));
                total += upstream;
                along += upstream * standard[place];
            }
        __syncthreads();  // the sums of the columns before are read
        totals[y][x] = total;
        alongs[y][x] = along;
        __syncthreads();
        // Warp y sums column y: lane r has row r.
        const int column = threadIdx.x / 32, lane = threadIdx.x % 32;
        total = warp_sum(totals[lane][column]);
        along = warp_sum(alongs[lane][column]);
        if (lane == 0 && first + column < c) {
            weight[first + column] = along;
            bias[first + column] = total;
        }
    }
}
