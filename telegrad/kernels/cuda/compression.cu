// Codecs of gradients that leave out a part of them. Twin: telegrad/kernels/compression.py.
//
// Each adds the numbers to what was left out before, packs what travels, and keeps the rest.
// Products and sums of what has travelled are never joined to one rounding, so GPUs get the bits of
// NumPy.
//
// ITEM: the type of the numbers.
//
// compile: ITEM=float|double|Half|Bfloat

typedef Wide<ITEM> Real;
constexpr int THREADS = 256;
constexpr int BLOCK = 256;  // items of a scale; a warp has a block
constexpr unsigned INFINITE = 0x7f800000u;

// -- 8 bits, and a scale for each block -----------------------------------------------------------

// Writes `padded` codes, zeros after the n-th.
KERNEL void quantize(
    const ITEM* x, Real* rest, float* scales, signed char* codes, Index n, Index padded) {
    const int lane = threadIdx.x % 32;
    const Index warps = (Index)gridDim.x * (THREADS / 32);
    Index b = (Index)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    for (; b * BLOCK < n; b += warps) {
        Real total[BLOCK / 32];
        float most = 0;
        bool finite = true;
#pragma unroll
        for (int j = 0; j < BLOCK / 32; ++j) {
            const Index i = b * BLOCK + j * 32 + lane;
            total[j] = i < n ? rest[i] + widen(x[i]) : 0;
            const float size = fabs((float)total[j]);
            finite = finite && __float_as_uint(size) < INFINITE;
            most = size > most ? size : most;
        }
        finite = __ballot_sync(WARP, finite) == WARP;
        float scale = warp_max(most) / 127;
        if (scale < 0x1p-80f) scale = 0;  // so no sum below has a number that GPUs take for zero
        if (!finite) scale = __uint_as_float(INFINITE | 0x400000u);
        if (lane == 0) scales[b] = scale;
#pragma unroll
        for (int j = 0; j < BLOCK / 32; ++j) {
            const Index i = b * BLOCK + j * 32 + lane;
            const float code = scale > 0 ? rint((float)total[j] / scale) : 0;
            if (i < n) rest[i] = finite ? total[j] - __fmul_rn(code, scale) : 0;
            if (i < padded) codes[i] = (signed char)code;
        }
    }
}

// Writes factor times the sum of all rows to y; a row of `bytes` has `blocks` scales and its codes.
KERNEL void mean_quantized(
    const unsigned char* rows, ITEM* y, Index n, Index count, Index bytes, Index blocks,
    double factor) {
    const Index step = (Index)gridDim.x * THREADS;
    for (Index i = (Index)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) {
        float sum = 0;
        for (Index r = 0; r < count; ++r) {
            const float* scales = reinterpret_cast<const float*>(rows + r * bytes);
            const signed char* codes = reinterpret_cast<const signed char*>(scales + blocks);
            sum = __fadd_rn(sum, __fmul_rn(codes[i], scales[i / BLOCK]));
        }
        y[i] = Narrow<ITEM>::of(sum * (float)factor);
    }
}

// -- the k largest: a radix selection on the bits of their magnitudes, from the highest digit on --
//
// words: how many items have each value of digit 0, 1, 2 and 3, 256 numbers for each; then for 0 to
// 4 known digits what is known of the smallest item that travels.

struct Least {
    unsigned bits, left;  // its first digits; how many items with these digits travel
};

constexpr int KNOWN = 4 * 256;

__device__ inline unsigned magnitude(Real x) { return __float_as_uint(fabs((float)x)); }

// Returns what is known with so many digits. All threads of a block call it.
__device__ inline Least least(const unsigned* words, int digits, Index k) {
    __shared__ unsigned parts[THREADS / 32];
    __shared__ Least found;
    if (digits == 0) return {0, (unsigned)k};
    const Least before = {words[KNOWN + 2 * digits - 2], words[KNOWN + 2 * digits - 1]};
    const unsigned digit = 255 - threadIdx.x, own = words[256 * (digits - 1) + digit];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned sum = own;  // items whose digit is this one or a larger one
    for (int distance = 1; distance < 32; distance *= 2) {
        const unsigned other = __shfl_up_sync(WARP, sum, distance);
        sum += lane >= distance ? other : 0;
    }
    if (lane == 31) parts[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; ++w) sum += parts[w];
    if (sum >= before.left && sum - own < before.left)
        found = {before.bits << 8 | digit, before.left - (sum - own)};
    __syncthreads();
    return found;
}

__device__ inline void note(unsigned* words, int digits, Least known) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        words[KNOWN + 2 * digits] = known.bits;
        words[KNOWN + 2 * digits + 1] = known.left;
    }
}

// Counts by the next digit the items that begin with the known ones. With none known, adds x to the
// rest before that.
KERNEL void count_digits(
    const ITEM* x, Real* rest, unsigned* words, Index n, Index k, Index known) {
    __shared__ unsigned counts[256];
    const int digits = (int)known;
    const Least now = least(words, digits, k);
    counts[threadIdx.x] = 0;
    __syncthreads();
    const Index step = (Index)gridDim.x * THREADS;
    for (Index i = (Index)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) {
        if (digits == 0) rest[i] += widen(x[i]);
        const unsigned bits = magnitude(rest[i]);
        if (digits == 0 || bits >> (32 - 8 * digits) == now.bits)
            atomicAdd(counts + (bits >> (24 - 8 * digits) & 255u), 1u);
    }
    __syncthreads();
    atomicAdd(words + 256 * digits + threadIdx.x, counts[threadIdx.x]);
    note(words, digits, now);
}

// Counts the items of each block's part that are larger than the smallest that travels, and those
// that are as large.
KERNEL void count_largest(
    const Real* rest, unsigned* words, unsigned* counts, Index n, Index k, Index part) {
    const Least now = least(words, 4, k);
    const Index first = blockIdx.x * part, end = min(n, first + part);
    Index more = 0, same = 0;
    for (Index i = first + threadIdx.x; i < end; i += THREADS) {
        const unsigned bits = magnitude(rest[i]);
        more += bits > now.bits;
        same += bits == now.bits;
    }
    more = block_sum(more);
    same = block_sum(same);
    if (threadIdx.x == 0) {
        counts[2 * blockIdx.x] = (unsigned)more;
        counts[2 * blockIdx.x + 1] = (unsigned)same;
    }
    note(words, 4, now);
}

// Packs the values and places of the largest in the order of their places.
KERNEL void pack_largest(
    Real* rest, const unsigned* words, const unsigned* counts, float* values, unsigned* places,
    Index n, Index part) {
    __shared__ unsigned votes[2][THREADS / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned below = (1u << lane) - 1, bits_of_least = words[KNOWN + 8];
    const Index left = words[KNOWN + 9];
    Index more = 0, same = 0;  // before this block, then before these threads
    for (Index b = threadIdx.x; b < blockIdx.x; b += THREADS) {
        more += counts[2 * b];
        same += counts[2 * b + 1];
    }
    more = block_sum(more);
    same = block_sum(same);
    const Index first = blockIdx.x * part, end = min(n, first + part);
    for (Index start = first; start < end; start += THREADS) {
        const Index i = start + threadIdx.x;
        const Real value = i < end ? rest[i] : 0;
        const unsigned bits = magnitude(value);
        const bool larger = i < end && bits > bits_of_least;
        const bool equal = i < end && bits == bits_of_least;
        const unsigned of_larger = __ballot_sync(WARP, larger);
        const unsigned of_equal = __ballot_sync(WARP, equal);
        if (lane == 0) {
            votes[0][warp] = __popc(of_larger);
            votes[1][warp] = __popc(of_equal);
        }
        __syncthreads();
        Index place = more + __popc(of_larger & below), among = same + __popc(of_equal & below);
        for (int w = 0; w < THREADS / 32; ++w) {
            place += w < warp ? votes[0][w] : 0;
            among += w < warp ? votes[1][w] : 0;
            more += votes[0][w];
            same += votes[1][w];
        }
        __syncthreads();
        if (larger || (equal && among < left)) {
            place += min(among, left);
            values[place] = (float)value;
            places[place] = (unsigned)i;
            rest[i] = bits < INFINITE ? value - (float)value : 0;
        } else if (i < end && bits >= INFINITE) {
            rest[i] = 0;
        }
    }
}

// Adds the values of one rank, whose places differ.
KERNEL void add_largest(
    const float* values, const unsigned* places, float* sums, Index n, Index k) {
    const Index step = (Index)gridDim.x * THREADS;
    for (Index i = (Index)blockIdx.x * THREADS + threadIdx.x; i < k; i += step)
        if (places[i] < n) sums[places[i]] += values[i];
}
