// Runs CUDA kernels on the CPU, for tests: the words of CUDA C++ that telegrad/kernels/cuda uses.
//
// The threads of a block are fibers of one thread; blocks run one after the other. A thread runs until
// it waits (__syncthreads, __syncwarp, shuffles, votes) or ends, so atomics are plain operations. The
// order of threads is turned around after each wait: what needs a barrier and has none goes wrong.
//
// Errors, where a GPU would hang or compute something: a barrier that some threads do not reach, two
// barriers at once, a shuffle whose mask names lanes that are elsewhere or gone, a shuffle from such a
// lane, and each access outside of the arrays, which lie between pages that nobody may touch.

#pragma once
#define TELEGRAD_EMULATED 1

#include <climits>
#include <cmath>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <type_traits>
#include <utility>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define KERNEL static
#define DYNAMIC_SHARED(name) unsigned char* const name = emulation::shared
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __constant__ static const
#define __align__(n) alignas(n)

struct uint3 { unsigned x, y, z; };
typedef uint3 dim3;
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct uint2 { unsigned x, y; };
struct Table;  // of common.cuh
static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace emulation {

constexpr int MOST_THREADS = 1024;
constexpr size_t STACK = 128 << 10, PAGE = 4096, GUARD = 1 << 20, MOST_SHARED = 227 << 10;
constexpr unsigned char CANARY = 0xA5;

enum State { READY, AT_BLOCK, AT_WARP, DONE };

struct Site {
    const char* file;
    int line, part;
    bool operator==(const Site& o) const { return file == o.file && line == o.line && part == o.part; }
};

struct Thread {
#if defined(__x86_64__)
    void* place;
#else
    ucontext_t place;
#endif
    uint3 index;
    State state;
    Site site;
    unsigned mask;
    alignas(16) unsigned char slot[16];
};

static Thread threads[MOST_THREADS], *current;
static int count;
static char message[512];
static bool failed;
static void (*body)();
alignas(16) static unsigned char shared[MOST_SHARED];

#if defined(__x86_64__)
static void* scheduler;
extern "C" void emulation_switch(void** from, void* to);
asm(R"(
.text
.type emulation_switch, @function
emulation_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulation_switch, .-emulation_switch
)");
static void to_scheduler() { emulation_switch(&current->place, scheduler); }
static void to_thread(Thread& t) { emulation_switch(&scheduler, t.place); }
#else
static ucontext_t scheduler;
static void to_scheduler() { swapcontext(&current->place, &scheduler); }
static void to_thread(Thread& t) { swapcontext(&scheduler, &t.place); }
#endif

static void main_of_thread() {
    for (;;) {
        body();
        current->state = DONE;
        to_scheduler();
    }
}

static void make_thread(Thread& t, char* stack) {
#if defined(__x86_64__)
    void** top = reinterpret_cast<void**>(stack + STACK) - 2;
    *top = reinterpret_cast<void*>(main_of_thread);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    t.place = top;
#else
    getcontext(&t.place);
    t.place.uc_stack = {stack, 0, STACK};
    t.place.uc_link = nullptr;
    makecontext(&t.place, main_of_thread, 0);
#endif
}

template <class... A> static void fail(const char* words, A... values) {
    if (failed) return;
    failed = true;
    int n = snprintf(message, sizeof message, "block (%u, %u, %u): ", blockIdx.x, blockIdx.y, blockIdx.z);
    snprintf(message + n, sizeof message - n, words, values...);
}

// What a thread does to wait; it returns when all are there.
static void wait(State state, Site site, unsigned mask = 0) {
    current->state = state;
    current->site = site;
    current->mask = mask;
    to_scheduler();
}

static int lane() { return int(current - threads) % 32; }
static Thread* warp() { return threads + (current - threads) / 32 * 32; }

static bool release_warps() {
    bool any = false;
    for (int i = 0; i < count; ++i) {
        if (threads[i].state != AT_WARP) continue;
        int first = i / 32 * 32;
        bool all = threads[i].mask >> (i - first) & 1;
        for (int j = 0; j < 32; ++j) {
            Thread& other = threads[first + j];
            if (!(threads[i].mask >> j & 1)) continue;
            all = all && first + j < count && other.state == AT_WARP &&
                  other.mask == threads[i].mask && other.site == threads[i].site;
        }
        if (!all) continue;
        unsigned mask = threads[i].mask;
        for (int j = 0; j < 32; ++j)
            if (mask >> j & 1) threads[first + j].state = READY;
        any = true;
    }
    return any;
}

static bool release_block() {
    const Thread* first = nullptr;
    int waiting = 0;
    for (int i = 0; i < count; ++i) {
        const Thread& t = threads[i];
        if (t.state == DONE) continue;
        if (t.state == AT_WARP) {
            fail("thread %u waits at %s:%d for lanes (mask %08x) that are elsewhere or have ended",
                 t.index.x, t.site.file, t.site.line, t.mask);
            return false;
        }
        if (first && !(first->site == t.site)) {
            fail("threads %u and %u wait at different barriers, %s:%d and %s:%d", first->index.x,
                 t.index.x, first->site.file, first->site.line, t.site.file, t.site.line);
            return false;
        }
        if (!first) first = &t;
        ++waiting;
    }
    if (!first) return false;
    if (waiting < count) {
        fail("%d of %d threads have ended, the others wait at the barrier %s:%d", count - waiting, count,
             first->site.file, first->site.line);
        return false;
    }
    for (int i = 0; i < count; ++i) threads[i].state = READY;
    return true;
}

static void run_block() {
    for (int i = 0; i < count; ++i) threads[i].state = READY;
    for (bool forward = true;; forward = !forward) {
        for (int i = 0; i < count; ++i) {
            current = &threads[forward ? i : count - 1 - i];
            if (current->state != READY) continue;
            threadIdx = current->index;
            to_thread(*current);
            if (failed) return;
        }
        if (!release_warps() && !release_block()) return;
    }
}

// -- exchange in a warp ----------------------------------------------------------------------------

template <class T> T exchange(unsigned mask, T value, int from, Site site) {
    static_assert(sizeof(T) <= 16);
    memcpy(current->slot, &value, sizeof value);
    site.part = 1;
    wait(AT_WARP, site, mask);
    if (!(mask >> from & 1)) {
        fail("thread %u reads lane %d at %s:%d, which is not in its mask %08x", threadIdx.x, from,
             site.file, site.line, mask);
        to_scheduler();
    }
    memcpy(&value, warp()[from].slot, sizeof value);
    site.part = 2;
    wait(AT_WARP, site, mask);
    return value;
}

inline unsigned ballot(unsigned mask, bool predicate, Site site) {
    memcpy(current->slot, &predicate, 1);
    site.part = 3;
    wait(AT_WARP, site, mask);
    unsigned found = 0;
    for (int j = 0; j < 32; ++j)
        if (mask >> j & 1) found |= unsigned(warp()[j].slot[0]) << j;
    site.part = 4;
    wait(AT_WARP, site, mask);
    return found;
}

inline int vote(bool predicate, Site site) {
    memcpy(current->slot, &predicate, 1);
    site.part = 5;
    wait(AT_BLOCK, site);
    int found = 0;
    for (int i = 0; i < count; ++i) found += threads[i].slot[0];
    site.part = 6;
    wait(AT_BLOCK, site);
    return found;
}

}  // namespace emulation

#define EMULATION_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()
inline void __syncthreads(EMULATION_SITE) { emulation::wait(emulation::AT_BLOCK, {file, line, 0}); }
inline int __syncthreads_count(int p, EMULATION_SITE) { return emulation::vote(p, {file, line, 0}); }
inline int __syncthreads_or(int p, EMULATION_SITE) { return emulation::vote(p, {file, line, 0}) > 0; }
inline int __syncthreads_and(int p, EMULATION_SITE) {
    return emulation::vote(p, {file, line, 0}) == emulation::count;
}
inline void __syncwarp(unsigned mask = 0xffffffffu, EMULATION_SITE) {
    emulation::wait(emulation::AT_WARP, {file, line, 0}, mask);
}
template <class T> T __shfl_sync(unsigned mask, T x, int from, int width = 32, EMULATION_SITE) {
    int lane = emulation::lane();
    return emulation::exchange(mask, x, lane / width * width + (from & (width - 1)), {file, line, 0});
}
template <class T> T __shfl_xor_sync(unsigned mask, T x, int bits, int width = 32, EMULATION_SITE) {
    int lane = emulation::lane(), from = lane ^ bits;
    return emulation::exchange(mask, x, from < (lane / width + 1) * width ? from : lane, {file, line, 0});
}
template <class T> T __shfl_down_sync(unsigned mask, T x, int n, int width = 32, EMULATION_SITE) {
    int lane = emulation::lane();
    return emulation::exchange(mask, x, lane % width + n < width ? lane + n : lane, {file, line, 0});
}
template <class T> T __shfl_up_sync(unsigned mask, T x, int n, int width = 32, EMULATION_SITE) {
    int lane = emulation::lane();
    return emulation::exchange(mask, x, lane % width >= n ? lane - n : lane, {file, line, 0});
}
inline unsigned __ballot_sync(unsigned mask, int p, EMULATION_SITE) {
    return emulation::ballot(mask, p, {file, line, 0});
}
inline int __any_sync(unsigned mask, int p, EMULATION_SITE) {
    return emulation::ballot(mask, p, {file, line, 0}) != 0;
}
inline int __all_sync(unsigned mask, int p, EMULATION_SITE) {
    return emulation::ballot(mask, p, {file, line, 0}) == mask;
}
inline void __threadfence() {}
inline void __threadfence_block() {}

// -- atomics -----------------------------------------------------------------------------------------

template <class T> using Same = typename std::common_type<T>::type;
template <class T> T atomicExch(T* p, Same<T> x) { return std::exchange(*p, x); }
template <class T> T atomicAdd(T* p, Same<T> x) { return std::exchange(*p, T(*p + x)); }
template <class T> T atomicSub(T* p, Same<T> x) { return std::exchange(*p, T(*p - x)); }
template <class T> T atomicMax(T* p, Same<T> x) { return std::exchange(*p, *p < x ? x : *p); }
template <class T> T atomicMin(T* p, Same<T> x) { return std::exchange(*p, x < *p ? x : *p); }
template <class T> T atomicOr(T* p, Same<T> x) { return std::exchange(*p, T(*p | x)); }
template <class T> T atomicAnd(T* p, Same<T> x) { return std::exchange(*p, T(*p & x)); }
template <class T> T atomicCAS(T* p, Same<T> expected, Same<T> x) {
    T old = *p;
    if (old == expected) *p = x;
    return old;
}

// -- functions ---------------------------------------------------------------------------------------

template <class To, class From> To emulated_cast(From x) {
    static_assert(sizeof(To) == sizeof(From));
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}
inline unsigned __float_as_uint(float x) { return emulated_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return emulated_cast<float>(x); }
inline int __float_as_int(float x) { return emulated_cast<int>(x); }
inline float __int_as_float(int x) { return emulated_cast<float>(x); }
inline long long __double_as_longlong(double x) { return emulated_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return emulated_cast<double>(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
template <class T> T __ldg(const T* p) { return *p; }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fdividef(float x, float y) { return x / y; }
template <class T> T rsqrt(T x) { return 1 / std::sqrt(x); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
template <class A, class B> typename std::common_type<A, B>::type min(A a, B b) { return b < a ? b : a; }
template <class A, class B> typename std::common_type<A, B>::type max(A a, B b) { return a < b ? b : a; }
using std::abs, std::cbrt, std::ceil, std::copysign, std::cos, std::erf, std::erfc, std::exp, std::exp2;
using std::expm1, std::fabs, std::floor, std::fma, std::fmax, std::fmin, std::fmod, std::isfinite;
using std::isinf, std::isnan, std::log, std::log1p, std::log2, std::pow, std::rint, std::round, std::sin;
using std::sqrt, std::tanh, std::trunc;

// -- launches ----------------------------------------------------------------------------------------

namespace emulation {

template <class T> constexpr char code_of() {
    if (std::is_same_v<T, const Table*>) return 'T';
    if (std::is_pointer_v<T>) return 'P';
    if (std::is_same_v<T, bool>) return '?';
    if (std::is_floating_point_v<T>) return sizeof(T) == 8 ? 'd' : 'f';
    if (sizeof(T) == 8) return std::is_signed_v<T> ? 'q' : 'Q';
    if (sizeof(T) == 4) return std::is_signed_v<T> ? 'i' : 'I';
    if (sizeof(T) == 2) return std::is_signed_v<T> ? 'h' : 'H';
    return std::is_signed_v<T> ? 'b' : 'B';
}

// An array of the caller, and its copy that ends or begins at a page that nobody may touch.
struct Span {
    unsigned char* place;
    size_t bytes, item;
    unsigned char *copy, *before, *pages;
    size_t length;
};

static size_t pages_for(size_t bytes) { return (bytes + 64 + PAGE - 1) / PAGE * PAGE; }

// With whole packs, or an odd count, the copy ends where the pages end; else it is aligned as the array
// is, and what follows is checked for writes.
static bool copy_in(Span& s) {
    size_t inside = pages_for(s.bytes);
    s.length = inside + 2 * GUARD;
    void* all = mmap(nullptr, s.length, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return false;
    s.pages = static_cast<unsigned char*>(all);
    memset(s.pages + GUARD, CANARY, inside);
    unsigned char* end = s.pages + GUARD + inside;
    s.copy = end - s.bytes;
    if (s.bytes % 16 != 0 && s.bytes / s.item % 2 == 0)
        s.copy -= (reinterpret_cast<uintptr_t>(s.copy) - reinterpret_cast<uintptr_t>(s.place)) % 64;
    memcpy(s.copy, s.place, s.bytes);
    s.before = new unsigned char[s.bytes + 1];
    memcpy(s.before, s.place, s.bytes);
    mprotect(s.pages, GUARD, PROT_NONE);
    mprotect(end, GUARD, PROT_NONE);
    return true;
}

// Copies back what has changed, so that arrays that overlap keep what was written by way of another.
static void copy_out(const Span& s) {
    unsigned char *begin = s.pages + GUARD, *end = s.pages + s.length - GUARD;
    for (unsigned char* p = begin; p < end; ++p)
        if ((p < s.copy || p >= s.copy + s.bytes) && *p != CANARY) {
            fail("a write %td bytes from the begin of an array of %zu bytes", p - s.copy, s.bytes);
            break;
        }
    for (size_t i = 0; i < s.bytes; ++i)
        if (s.copy[i] != s.before[i]) s.place[i] = s.copy[i];
}

// Puts addresses of copies where a table has the numbers of spans; table.py says where that is.
static void fill_table(const Span& table, const Span* spans) {
    long long* words = reinterpret_cast<long long*>(table.copy);
    long long count = words[0] * words[2];
    for (long long* word = words + table.bytes / 8 - count; count > 0; --count, ++word)
        *word = *word ? reinterpret_cast<long long>(spans[*word - 1].copy) : 0;
}

static sigjmp_buf escape;

static void on_signal(int number, siginfo_t* info, void*) {
    fail("thread (%u, %u, %u): signal %d at address %p, which is in no array", threadIdx.x, threadIdx.y,
         threadIdx.z, number, info->si_addr);
    siglongjmp(escape, 1);
}

static void run_grid(const unsigned* shape) {
    gridDim = {shape[0], shape[1], shape[2]};
    blockDim = {shape[3], shape[4], shape[5]};
    count = int(shape[3] * shape[4] * shape[5]);
    void* stacks = mmap(nullptr, STACK * count, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) return fail("no memory for %d stacks", count);
    for (int i = 0; i < count; ++i) {
        unsigned n = unsigned(i);
        threads[i].index = {n % blockDim.x, n / blockDim.x % blockDim.y, n / blockDim.x / blockDim.y};
        make_thread(threads[i], static_cast<char*>(stacks) + STACK * i);
    }
    static unsigned char alternate[64 << 10];
    stack_t own = {alternate, 0, sizeof alternate}, before;
    sigaltstack(&own, &before);
    struct sigaction action = {}, old[3];
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    const int signals[] = {SIGSEGV, SIGBUS, SIGFPE};
    for (int i = 0; i < 3; ++i) sigaction(signals[i], &action, &old[i]);
    if (!sigsetjmp(escape, 1))
        for (unsigned z = 0; z < gridDim.z && !failed; ++z)
            for (unsigned y = 0; y < gridDim.y && !failed; ++y)
                for (unsigned x = 0; x < gridDim.x && !failed; ++x) {
                    blockIdx = {x, y, z};
                    memset(shared, CANARY, shape[6]);
                    run_block();
                }
    for (int i = 0; i < 3; ++i) sigaction(signals[i], &old[i], nullptr);
    sigaltstack(&before, nullptr);
    munmap(stacks, STACK * count);
}

template <class... A, size_t... I>
static void call(void (*kernel)(A...), void** args, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_const_t<A>*>(args[I])...);
}

// Launches a kernel with copies of its arrays; returns what went wrong, or nullptr.
template <auto kernel, class... A>
static const char* launch(void (*)(A...), const unsigned* shape, void** args, Span* spans, int arrays) {
    static void** given;
    given = args;
    failed = false;
    blockIdx = threadIdx = {0, 0, 0};
    body = [] { call(kernel, given, std::index_sequence_for<A...>()); };
    bool there = true;
    for (int i = 0; i < arrays; ++i) there = there && copy_in(spans[i]);
    if (!there) return "no memory for copies of the arrays";
    const char codes[] = {code_of<A>()..., 0};
    void* pointers[sizeof...(A) + 1];
    for (size_t i = 0; i < sizeof...(A); ++i) {
        if (codes[i] != 'P' && codes[i] != 'T') continue;
        long number = *static_cast<long*>(args[i]);  // of a span, from 1 on; 0 for a null pointer
        pointers[i] = number ? spans[number - 1].copy : nullptr;
        if (codes[i] == 'T') fill_table(spans[number - 1], spans);
        args[i] = &pointers[i];
    }
    run_grid(shape);
    for (int i = 0; i < arrays; ++i) {
        Span& s = spans[i];
        if (!failed) copy_out(s);
        delete[] s.before;
        munmap(s.pages, s.length);
    }
    return failed ? message : nullptr;
}

template <class... A> static const char* codes_of(void (*)(A...)) {
    static const char codes[] = {code_of<A>()..., 0};
    return codes;
}

}  // namespace emulation

#define EMULATION_ENTRY(name)                                                                         \
    extern "C" const char* launch_##name(const unsigned* shape, void** args, void* spans, int arrays) { \
        return emulation::launch<&name>(&name, shape, args, static_cast<emulation::Span*>(spans), arrays); \
    }                                                                                                 \
    extern "C" const char* codes_##name() { return emulation::codes_of(&name); }
