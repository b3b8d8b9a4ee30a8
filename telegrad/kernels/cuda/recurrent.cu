// One step of LSTM and GRU after the matrix products. Twin: telegrad/kernels/recurrent.py.
//
// Arrays have `b` rows of `hidden` numbers, or of one part of `hidden` numbers for each gate. A thread
// has one place of a row.
//
// compile: ITEM=float|double|Half|Bfloat

typedef Wide<ITEM> Real;

__device__ inline Real logistic(Real x) { return 1 / (1 + exp(-x)); }

// Calls function(row, j) for each number of the rows, with the whole grid.
template <class Function> __device__ inline void each_number(Index b, Index hidden, Function function) {
    for (Index row = blockIdx.y; row < b; row += gridDim.y)
        for (Index j = (Index)blockIdx.x * blockDim.x + threadIdx.x; j < hidden;
             j += (Index)gridDim.x * blockDim.x)
            function(row, j);
}

__device__ inline Real number(const ITEM* p, Index place) { return p ? widen(p[place]) : Real(0); }

// `gates` holds the products of the input, and then the gates i, f, g, o; `products` are those of h.
// If there are such arrays, the first h is copied to `h_first`, and the new states to `h_last`, `c_last`.
KERNEL void lstm_forward(
    ITEM* gates, const ITEM* products, const ITEM* b_ih, const ITEM* b_hh, const ITEM* h_before,
    const ITEM* c_before, ITEM* h, ITEM* c, ITEM* h_first, ITEM* h_last, ITEM* c_last, Index b,
    Index hidden) {
    each_number(b, hidden, [&](Index row, Index j) {
        const Index place = row * hidden + j;
        Real at[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const Index column = k * hidden + j, own = row * 4 * hidden + column;
            const Real bias = number(b_ih, column) + number(b_hh, column);
            const Real x = widen(gates[own]) + widen(products[own]) + bias;
            at[k] = k == 2 ? tanh(x) : logistic(x);
            gates[own] = Narrow<ITEM>::of(at[k]);
        }
        if (h_first) h_first[place] = h_before[place];
        const ITEM cell = Narrow<ITEM>::of(at[1] * widen(c_before[place]) + at[0] * at[2]);
        const ITEM out = Narrow<ITEM>::of(at[3] * tanh(widen(cell)));
        c[place] = cell;
        h[place] = out;
        if (h_last) h_last[place] = out;
        if (c_last) c_last[place] = cell;
    });
}

// The gradients of the gates before their functions, and of the c before. The gradient of h is the sum of
// `g_y` and `g_h`. Each of these and `g_c` may be missing; `g_c` and `g_before` may be one array.
KERNEL void lstm_backward(
    const ITEM* gates, const ITEM* c_before, const ITEM* c, const ITEM* g_y, const ITEM* g_h,
    const ITEM* g_c, ITEM* g_gates, ITEM* g_before, Index b, Index hidden) {
    each_number(b, hidden, [&](Index row, Index j) {
        const Index place = row * hidden + j, first = row * 4 * hidden + j;
        const Real i = widen(gates[first]), f = widen(gates[first + hidden]);
        const Real g = widen(gates[first + 2 * hidden]), o = widen(gates[first + 3 * hidden]);
        const Real bent = tanh(widen(c[place]));
        const Real of_h = number(g_y, place) + number(g_h, place);
        const Real of_c = number(g_c, place) + of_h * o * (1 - bent * bent);
        g_gates[first] = Narrow<ITEM>::of(of_c * g * i * (1 - i));
        g_gates[first + hidden] = Narrow<ITEM>::of(of_c * widen(c_before[place]) * f * (1 - f));
        g_gates[first + 2 * hidden] = Narrow<ITEM>::of(of_c * i * (1 - g * g));
        g_gates[first + 3 * hidden] = Narrow<ITEM>::of(of_h * bent * o * (1 - o));
        g_before[place] = Narrow<ITEM>::of(of_c * f);
    });
}

// As lstm_forward, with the gates r, z, n; `inner` gets the product of h for n, with its bias.
KERNEL void gru_forward(
    ITEM* gates, const ITEM* products, const ITEM* b_ih, const ITEM* b_hh, const ITEM* h_before,
    ITEM* h, ITEM* inner, ITEM* h_first, ITEM* h_last, Index b, Index hidden) {
    each_number(b, hidden, [&](Index row, Index j) {
        const Index place = row * hidden + j;
        Real x[3], product[3];
#pragma unroll
        for (int k = 0; k < 3; ++k) {
            const Index column = k * hidden + j, own = row * 3 * hidden + column;
            x[k] = widen(gates[own]) + number(b_ih, column);
            product[k] = widen(products[own]) + number(b_hh, column);
        }
        const Real r = logistic(x[0] + product[0]), z = logistic(x[1] + product[1]);
        const Real n = tanh(x[2] + r * product[2]), before = widen(h_before[place]);
        const ITEM out = Narrow<ITEM>::of(n + z * (before - n));
        const Index first = row * 3 * hidden + j;
        gates[first] = Narrow<ITEM>::of(r);
        gates[first + hidden] = Narrow<ITEM>::of(z);
        gates[first + 2 * hidden] = Narrow<ITEM>::of(n);
        inner[place] = Narrow<ITEM>::of(product[2]);
        if (h_first) h_first[place] = h_before[place];
        h[place] = out;
        if (h_last) h_last[place] = out;
    });
}

// The gradients of the products of the input and of h, and the part of the gradient of the h before that
// comes by z. The gradient of h is the sum of `g_y`, `g_h` and `g_z`, each of which may be missing.
KERNEL void gru_backward(
    const ITEM* gates, const ITEM* inner, const ITEM* h_before, const ITEM* g_y, const ITEM* g_h,
    const ITEM* g_z, ITEM* g_input, ITEM* g_state, ITEM* g_before, Index b, Index hidden) {
    each_number(b, hidden, [&](Index row, Index j) {
        const Index place = row * hidden + j, first = row * 3 * hidden + j;
        const Real r = widen(gates[first]), z = widen(gates[first + hidden]);
        const Real n = widen(gates[first + 2 * hidden]);
        const Real of_h = number(g_y, place) + number(g_h, place) + number(g_z, place);
        const Real of_n = of_h * (1 - z) * (1 - n * n);
        const ITEM of_r = Narrow<ITEM>::of(of_n * widen(inner[place]) * r * (1 - r));
        const ITEM of_z = Narrow<ITEM>::of(of_h * (widen(h_before[place]) - n) * z * (1 - z));
        g_input[first] = g_state[first] = of_r;
        g_input[first + hidden] = g_state[first + hidden] = of_z;
        g_input[first + 2 * hidden] = Narrow<ITEM>::of(of_n);
        g_state[first + 2 * hidden] = Narrow<ITEM>::of(of_n * r);
        g_before[place] = Narrow<ITEM>::of(of_h * z);
    });
}
