// The part that all kernels share: number types, packs of items, and sums over a warp and a block.
//
// The loader puts this file and a line `#define NAME value` for each definition before each source. It
// includes no header: NVRTC has none of its own, and users of CuPy's wheels may have no toolkit.

#ifndef TELEGRAD_EMULATED
#define KERNEL extern "C" __global__
// Bytes of shared memory, as many as the launch asks for.
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#endif

typedef long long Index;
constexpr unsigned WARP = 0xffffffffu;

// -- number types: 16-bit floats are stored as bits and computed in float --------------------------

struct Half {
    unsigned short bits;
};
struct Bfloat {
    unsigned short bits;
};

template <class T> struct Computing {
    typedef T type;
};
template <> struct Computing<Half> {
    typedef float type;
};
template <> struct Computing<Bfloat> {
    typedef float type;
};
// The type in which numbers of type T are computed.
template <class T> using Wide = typename Computing<T>::type;

template <class T> __device__ inline T widen(T x) { return x; }

__device__ inline float widen(Half x) {
#ifdef __CUDA_ARCH__
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
#else
    unsigned sign = (x.bits & 0x8000u) << 16, rest = x.bits & 0x7fffu;
    if (rest >= 0x7c00u) return __uint_as_float(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    if (rest < 0x400u) return __uint_as_float(sign | __float_as_uint(rest * 0x1p-24f));
    return __uint_as_float(sign | ((rest << 13) + 0x38000000u));
#endif
}

__device__ inline float widen(Bfloat x) { return __uint_as_float((unsigned)x.bits << 16); }

template <class T> struct Narrow {
    template <class R> static __device__ inline T of(R x) { return static_cast<T>(x); }
};

template <> struct Narrow<Half> {
    static __device__ inline Half of(float x) {
        Half y;
#ifdef __CUDA_ARCH__
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
        unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
        if (rest > 0x7f800000u) rest = 0x7e00u;
        else if (rest >= 0x477ff000u) rest = 0x7c00u;
        else if (rest < 0x38800000u)  // one ulp of 0.5 is the smallest number of Half
            rest = __float_as_uint(__uint_as_float(rest) + 0.5f) - 0x3f000000u;
        else rest = (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13;
        y.bits = (unsigned short)(sign | rest);
#endif
        return y;
    }
};

template <> struct Narrow<Bfloat> {
    static __device__ inline Bfloat of(float x) {
        unsigned bits = __float_as_uint(x);
        bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
        bits = nan ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1u);
        return Bfloat{(unsigned short)(bits >> 16)};
    }
};

// -- N items at once: with 16 bytes a thread, memory is read at its full speed ----------------------

template <class T, int N> struct alignas(sizeof(T) * N) Pack {
    T at[N];
};

template <class R, int N> struct Numbers {
    R at[N];
};

// Whether packs of N items can be read at `p`.
template <int N, class T> __device__ inline bool aligned(const T* p) {
    return reinterpret_cast<unsigned long long>(p) % sizeof(Pack<T, N>) == 0;
}

// Reads N items as numbers of type R; `from` is aligned.
template <class R, int N, class T> __device__ inline Numbers<R, N> load(const T* from) {
    Pack<T, N> pack = *reinterpret_cast<const Pack<T, N>*>(from);
    Numbers<R, N> numbers;
#pragma unroll
    for (int j = 0; j < N; ++j) numbers.at[j] = static_cast<R>(widen(pack.at[j]));
    return numbers;
}

// Writes N numbers; `to` is aligned.
template <int N, class T, class R> __device__ inline void store(T* to, const Numbers<R, N>& numbers) {
    Pack<T, N> pack;
#pragma unroll
    for (int j = 0; j < N; ++j) pack.at[j] = Narrow<T>::of(numbers.at[j]);
    *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

template <class Function, class Out, class... R, int N>
__device__ inline void map_pack(Function function, Out* y, const Numbers<R, N>&... x) {
    Numbers<Wide<Out>, N> found;
#pragma unroll
    for (int j = 0; j < N; ++j) found.at[j] = function(x.at[j]...);
    store<N>(y, found);
}

// Writes function(x[i]...) to y[i] for i < n, with the whole grid; items are widened before.
template <class Function, class Out, class... In>
__device__ inline void map(Function function, Index n, Out* y, const In*... x) {
    constexpr int N = 16 / sizeof(Out);
    const Index first = (Index)blockIdx.x * blockDim.x + threadIdx.x;
    const Index step = (Index)gridDim.x * blockDim.x;
    Index done = 0;
    if (aligned<N>(y) && (aligned<N>(x) && ...)) {
        done = n / N * N;
        for (Index i = first * N; i < done; i += step * N)
            map_pack(function, y + i, load<Wide<In>, N>(x + i)...);
    }
    for (Index i = done + first; i < n; i += step) y[i] = Narrow<Out>::of(function(widen(x[i])...));
}

// -- many arrays in one launch ----------------------------------------------------------------------

constexpr Index CHUNK = 1 << 14;

// Lists of arrays, as table.py describes them.
struct Table {
    Index arrays, chunks, lists, words[1];

    __device__ const Index* of_chunks() const { return words + lists; }
    __device__ const Index* sizes() const { return of_chunks() + 2 * chunks; }

    // Returns item `first` of array i of a list, or nullptr if there is no such list.
    template <class T> __device__ T* item(Index list, Index i, Index first) const {
        if (list >= lists) return nullptr;
        return reinterpret_cast<T*>(sizes()[(list + 1) * arrays + i]) + first;
    }

    // Calls function(i, first, count) for each chunk of this block: so many items of array i, from first.
    template <class Function> __device__ void each_chunk(Function function) const {
        for (Index chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
            const Index i = of_chunks()[2 * chunk], first = of_chunks()[2 * chunk + 1];
            function(i, first, (int)min(CHUNK, sizes()[i] - first));
        }
    }
};

// Calls function(items, k) for `count` items with the whole block: for items.size of them at once, from k
// on. That is M, if `packed`, but for the last ones, and 1 else.
template <int M> struct Items {
    static constexpr int size = M;
};
template <int M, class Function>
__device__ inline void each_pack(bool packed, int count, Function function) {
    int done = 0;
    if (packed) {
        done = count / M * M;
        for (int k = threadIdx.x * M; k < done; k += blockDim.x * M) function(Items<M>(), k);
    }
    for (int k = done + threadIdx.x; k < count; k += blockDim.x) function(Items<1>(), k);
}

__device__ inline float infinity() { return __int_as_float(0x7f800000); }

// Calls function(width, k) for items k and following of a row, `width` of them at once: those that one
// of `step` threads has. `packed`: all rows of the arrays are aligned to packs of N items.
template <int N, class Function>
__device__ inline void each_pack(bool packed, Index items, Index thread, Index step, Function function) {
    if (packed && items % N == 0)
        for (Index k = thread * N; k < items; k += step * N) function(Items<N>(), k);
    else
#pragma unroll 1
        for (Index k = thread; k < items; k += step) function(Items<1>(), k);
}

// -- sums; blocks have a multiple of 32 threads along x ---------------------------------------------

template <class T> __device__ inline T warp_sum(T x) {
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(WARP, x, distance);
    return x;
}

template <class T> __device__ inline T warp_max(T x) {
    for (int distance = 16; distance > 0; distance /= 2) x = fmax(x, __shfl_xor_sync(WARP, x, distance));
    return x;
}

// Returns the sum over the block to every thread. All threads of the block call it.
template <class T> __device__ inline T block_sum(T x) {
    __shared__ T parts[32];
    x = warp_sum(x);
    __syncthreads();  // an earlier call may still read parts
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_sum(threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : T(0));
}

// Returns the maximum over the block to every thread, of numbers that are not NaN.
template <class T> __device__ inline T block_max(T x) {
    __shared__ T parts[32];
    x = warp_max(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_max(threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : parts[0]);
}

// -- teams: each warp of a block has a row, or the whole block has one --------------------------------

struct Team {
    bool warps;

    __device__ Index thread() const { return warps ? threadIdx.x % 32 : threadIdx.x; }
    __device__ Index threads() const { return warps ? 32 : blockDim.x; }
    __device__ Index row() const {
        return warps ? (Index)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32 : blockIdx.x;
    }
    __device__ Index rows() const { return warps ? (Index)gridDim.x * (blockDim.x / 32) : gridDim.x; }
    template <class T> __device__ T sum(T x) const { return warps ? warp_sum(x) : block_sum(x); }
    template <class T> __device__ T max(T x) const { return warps ? warp_max(x) : block_max(x); }
};

// -- random numbers: Philox 4x32-10 of J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
// (2011) --

struct Words {
    unsigned at[4];
};

__device__ inline Words philox(unsigned long long counter, unsigned low, unsigned high) {
    unsigned a = (unsigned)counter, b = (unsigned)(counter >> 32), c = 0, d = 0;
#pragma unroll 2
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

// Item i is kept if word i % 4 of counter i / 4 is at least the threshold.
struct Mask {
    Index key, threshold;

    __device__ Words words(Index counter) const {
        return philox((unsigned long long)counter, (unsigned)key,
                      (unsigned)((unsigned long long)key >> 32));
    }
    // Tells which of the items `first` and following are kept: bit j tells of item first + j.
    template <int M> __device__ unsigned of(Index first) const {
        unsigned kept = 0;
        if (M % 4 == 0 && first % 4 == 0) {
#pragma unroll 1
            for (int q = 0; q < M / 4; ++q) {
                const Words found = words(first / 4 + q);
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    kept |= (unsigned)((Index)found.at[j] >= threshold) << (4 * q + j);
            }
        } else {
#pragma unroll 1
            for (int j = 0; j < M; ++j) {
                const Words found = words((first + j) / 4);
                const int k = (int)((first + j) % 4);
                const unsigned low = k & 1 ? found.at[1] : found.at[0];
                const unsigned high = k & 1 ? found.at[3] : found.at[2];
                kept |= (unsigned)((Index)(k & 2 ? high : low) >= threshold) << j;
            }
        }
        return kept;
    }
};
