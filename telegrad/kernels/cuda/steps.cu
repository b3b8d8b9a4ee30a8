// Optimizer steps of any number of parameters. Twins: `update` of the optimizers in telegrad/optim.
//
// Lists of the table: parameters, gradients, new parameters, then the state, which is written into.
//
// ITEM: the type of all arrays but the state, which is never shorter than float. MORE: the type of *more.
//
// compile: ITEM=float|double|Half|Bfloat MORE=float

typedef Wide<ITEM> Real;
constexpr int N = sizeof(Real) == 4 ? 4 : 1;  // more of double take too many registers

// What all steps have: the factor of the gradients is factor * *more. With *skip nothing changes.
struct Common {
    const Table* table;
    const bool* skip;
    const MORE* more;
    double factor, decay;
};

// Steps all items by rule(parameter, gradient, state[0], state[1], state[2]), which changes the state and
// returns the new parameter. The rule adds the decay to the gradient itself.
template <class Rule> __device__ inline void step_all(const Common& c, Rule rule) {
    const bool skip = c.skip && *c.skip;
    const Real factor = c.factor * (c.more ? *c.more : MORE(1));
    c.table->each_chunk([&](Index i, Index first, int count) {
        const ITEM* x = c.table->item<const ITEM>(0, i, first);
        const ITEM* g = c.table->item<const ITEM>(1, i, first);
        ITEM* y = c.table->item<ITEM>(2, i, first);
        Real* state[3];
        bool packed = aligned<N>(x) && aligned<N>(g) && aligned<N>(y);
#pragma unroll
        for (int s = 0; s < 3; ++s) {
            state[s] = c.table->item<Real>(3 + s, i, first);
            packed = packed && aligned<N>(state[s]);
        }
        each_pack<N>(packed, count, [&](auto items, int k) {
            constexpr int M = items.size;
            auto parameter = load<Real, M>(x + k);
            if (!skip) {
                auto gradient = load<Real, M>(g + k);
                Numbers<Real, M> held[3];
#pragma unroll
                for (int s = 0; s < 3; ++s)
                    if (state[s]) held[s] = load<Real, M>(state[s] + k);
#pragma unroll
                for (int j = 0; j < M; ++j)
                    parameter.at[j] = rule(parameter.at[j], gradient.at[j] * factor, held[0].at[j],
                                           held[1].at[j], held[2].at[j]);
#pragma unroll
                for (int s = 0; s < 3; ++s)
                    if (state[s]) store<M>(state[s] + k, held[s]);
            }
            store<M>(y + k, parameter);
        });
    });
}

// The number of this step: `steps` or *counted, plus 1. *counts gets the number of steps after this one.
__device__ inline Index count_step(const bool* skip, Index steps, const Index* counted, Index* counts) {
    const Index before = counted ? *counted : steps;
    if (counts && blockIdx.x == 0 && threadIdx.x == 0) *counts = before + !(skip && *skip);
    return before + 1;
}

// State: the velocity, if there is momentum.
KERNEL void sgd_step(
    const Table* table, const bool* skip, const MORE* more, double factor, double decay, double lr,
    double momentum, double fresh, Index nesterov, Index first) {
    const Real keep = momentum, rate = lr, part = fresh, shrink = decay;
    step_all({table, skip, more, factor, decay}, [=](Real x, Real g, Real& v, Real&, Real&) {
        g += shrink * x;
        if (keep != 0) {
            v = first ? g : keep * v + part * g;
            g = nesterov ? g + keep * v : v;
        }
        return x - rate * g;
    });
}

// State: the means of gradients and of squares, and the largest such mean if wanted.
KERNEL void adam_step(
    const Table* table, const bool* skip, const MORE* more, double factor, double decay, double lr,
    double first, double second, double eps, Index decoupled, Index steps, const Index* counted,
    Index* counts) {
    __shared__ Real bias[2];
    const Index step = count_step(skip, steps, counted, counts);
    if (threadIdx.x == 0) {
        bias[0] = lr / (1 - pow(first, (double)step));
        bias[1] = 1 / sqrt(1 - pow(second, (double)step));
    }
    __syncthreads();
    const Real rate = bias[0], root = bias[1], least = eps;
    const Real keep = first, fresh = 1 - first, hold = second, add = 1 - second;
    const Real inside = decoupled ? 0 : decay, outside = decoupled ? 1 - lr * decay : 1;
    const bool largest = table->lists > 5;
    step_all({table, skip, more, factor, decay}, [=](Real x, Real g, Real& m, Real& v, Real& most) {
        g += inside * x;
        m = keep * m + fresh * g;
        v = hold * v + add * g * g;
        if (largest && !(v <= most)) most = v;
        return x * outside - rate * m / (sqrt(largest ? most : v) * root + least);
    });
}

__device__ inline Real adagrad(Real x, Real g, Real& sum, Real rate, Real least) {
    sum += g * g;
    return x - rate * g / (sqrt(sum) + least);
}

// State: the sum of squares.
KERNEL void adagrad_step(
    const Table* table, const bool* skip, const MORE* more, double factor, double decay, double lr,
    double lr_decay, double eps, Index steps, const Index* counted, Index* counts) {
    const Index step = count_step(skip, steps, counted, counts);
    const Real rate = lr / (1 + (step - 1) * lr_decay), least = eps, shrink = decay;
    step_all({table, skip, more, factor, decay}, [=](Real x, Real g, Real& sum, Real&, Real&) {
        return adagrad(x, g + shrink * x, sum, rate, least);
    });
}

// State: the mean of squares; the mean, if centred; the velocity, if there is momentum.
KERNEL void rmsprop_step(
    const Table* table, const bool* skip, const MORE* more, double factor, double decay, double lr,
    double alpha, double eps, double momentum, Index centred, Index steps, const Index* counted,
    Index* counts) {
    count_step(skip, steps, counted, counts);
    const Real rate = lr, keep = alpha, fresh = 1 - alpha, least = eps, hold = momentum, shrink = decay;
    step_all({table, skip, more, factor, decay}, [=](Real x, Real g, Real& square, Real& a, Real& b) {
        g += shrink * x;
        square = keep * square + fresh * g * g;
        Real spread = square;
        if (centred) {
            a = keep * a + fresh * g;
            spread -= a * a;
        }
        Real change = g / (sqrt(spread) + least);
        if (hold != 0) {
            Real& velocity = centred ? b : a;
            change = velocity = hold * velocity + change;
        }
        return x - rate * change;
    });
}

// State: the mean of gradients.
KERNEL void lion_step(
    const Table* table, const bool* skip, const MORE* more, double factor, double decay, double lr,
    double first, double second) {
    const Real rate = lr, keep = first, fresh = 1 - first, hold = second, add = 1 - second;
    const Real shrink = 1 - lr * decay;
    step_all({table, skip, more, factor, decay}, [=](Real x, Real g, Real& m, Real&, Real&) {
        const Real c = keep * m + fresh * g;
        m = hold * m + add * g;
        return x * shrink - rate * (c > 0 ? Real(1) : c < 0 ? Real(-1) : c);  // NaN stays NaN
    });
}

// -- steps of some rows of one table, in place ------------------------------------------------------

// Steps row rows[r] of x, and of the state if there is any, by row r of g, for r < n; each row is named
// once and has `width` items.
template <class Rule>
__device__ inline void step_rows(
    ITEM* x, const ITEM* g, Real* state, const Index* rows, Index n, Index width, Rule rule) {
    const bool packed = aligned<N>(x) && aligned<N>(g) && aligned<N>(state) && width % N == 0;
    for (Index r = blockIdx.x; r < n; r += gridDim.x)
        for (Index c = 0; c < width; c += CHUNK) {
            const Index to = rows[r] * width + c, from = r * width + c;
            each_pack<N>(packed, (int)min(CHUNK, width - c), [&](auto items, int k) {
                constexpr int M = items.size;
                auto parameter = load<Real, M>(x + to + k), gradient = load<Real, M>(g + from + k);
                Numbers<Real, M> held = {};
                if (state) held = load<Real, M>(state + to + k);
#pragma unroll
                for (int j = 0; j < M; ++j)
                    parameter.at[j] = rule(parameter.at[j], gradient.at[j], held.at[j]);
                store<M>(x + to + k, parameter);
                if (state) store<M>(state + to + k, held);
            });
        }
}

KERNEL void sgd_rows(
    ITEM* x, const ITEM* g, Real* state, const Index* rows, Index n, Index width, double lr,
    double momentum, double fresh, Index nesterov, Index first) {
    const Real rate = lr;
    step_rows(x, g, state, rows, n, width, [=](Real x, Real g, Real&) { return x - rate * g; });
}

KERNEL void adagrad_rows(
    ITEM* x, const ITEM* g, Real* state, const Index* rows, Index n, Index width, double lr,
    double lr_decay, double eps, Index steps, const Index* counted, Index* counts) {
    const Index step = count_step(nullptr, steps, counted, counts);
    const Real rate = lr / (1 + (step - 1) * lr_decay), least = eps;
    step_rows(x, g, state, rows, n, width, [=](Real x, Real g, Real& sum) {
        return adagrad(x, g, sum, rate, least);
    });
}
