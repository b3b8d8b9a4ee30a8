// Windows of the last two axes: as columns for products, and back; and the largest item of each. Twins:
// telegrad/kernels/convolution.py and pooling.py.
//
// An image has rows x cols items, and down x across windows of height x width places. The windows begin
// `top` rows above the image and `left` columns beside it; they are step_down and step_across apart, and
// their places gap_down and gap_across. One thread has one item of the result, and adds up what it is the
// sum of, in a fixed order. Padding is not in memory.
//
// ITEM: the type of items. PLACE: that of places.
//
// compile: ITEM=float|double|Half|Bfloat

#ifndef PLACE
#define PLACE unsigned char
#endif

typedef Wide<ITEM> Real;

// Calls function(i, image, y, x) for items of images of `tall` x `wide` items, with the whole grid.
// Divisions of 32 bits take a third of the time of those of 64.
template <class Function>
__device__ inline void each_item(Index total, Index tall, Index wide, Function function) {
    const Index first = (Index)blockIdx.x * blockDim.x + threadIdx.x;
    const Index step = (Index)gridDim.x * blockDim.x;
    for (Index i = first; i < total; i += step) {
        if (total < (Index)1 << 31) {
            const unsigned all = (unsigned)i, line = all / (unsigned)wide;
            function(i, line / (unsigned)tall, line % (unsigned)tall, all % (unsigned)wide);
        } else {
            const Index line = i / wide;
            function(i, line / tall, line % tall, i % wide);
        }
    }
}

// Calls function(place, window) for each window that has row y and column x of an image, and its place.
#define EACH_WINDOW(function)                                                                            \
    for (int h = 0; h < height; ++h) {                                                                   \
        const Index d = y + top - h * gap_down;                                                          \
        if (d < 0 || d % step_down || d / step_down >= down) continue;                                   \
        for (int w = 0; w < width; ++w) {                                                                \
            const Index a = x + left - w * gap_across;                                                   \
            if (a < 0 || a % step_across || a / step_across >= across) continue;                         \
            function((int)(h * width + w), d / step_down * across + a / step_across);                    \
        }                                                                                                \
    }

// columns[image][place][window] = items[image][row][column]; total: of the columns.
KERNEL void gather_windows(
    const ITEM* items, ITEM* columns, Index total,
    Index rows, Index cols, Index down, Index across, Index height,
    Index width, Index step_down, Index step_across, Index top, Index left, Index gap_down, Index gap_across) {
    each_item(total, down, across, [&](Index i, Index lead, Index d, Index a) {
        const int places = (int)(height * width), place = (int)(lead % places);
        const Index y = d * step_down + place / (int)width * gap_down - top;
        const Index x = a * step_across + place % (int)width * gap_across - left;
        const bool inside = y >= 0 && y < rows && x >= 0 && x < cols;
        columns[i] = inside ? items[(lead / places * rows + y) * cols + x] : Narrow<ITEM>::of(Real(0));
    });
}

// items[image][row][column] = the sum of its places in columns; total: of the items.
KERNEL void scatter_windows(
    const ITEM* columns, ITEM* items, Index total,
    Index rows, Index cols, Index down, Index across, Index height,
    Index width, Index step_down, Index step_across, Index top, Index left, Index gap_down, Index gap_across) {
    each_item(total, rows, cols, [&](Index i, Index image, Index y, Index x) {
        Real sum = 0;
        const ITEM* own = columns + image * height * width * down * across;
        auto add = [&](int place, Index window) { sum += widen(own[place * down * across + window]); };
        EACH_WINDOW(add)
        items[i] = Narrow<ITEM>::of(sum);
    });
}

// The largest item of each window, and its place; total: of the windows. NaN is the largest.
KERNEL void max_windows(
    const ITEM* items, ITEM* largest, PLACE* places, Index total,
    Index rows, Index cols, Index down, Index across, Index height,
    Index width, Index step_down, Index step_across, Index top, Index left, Index gap_down, Index gap_across) {
    each_item(total, down, across, [&](Index i, Index image, Index d, Index a) {
        Real best = -(Real)infinity();
        int found = 0;
        for (int h = 0; h < height; ++h)
            for (int w = 0; w < width; ++w) {
                const Index y = d * step_down + h * gap_down - top, x = a * step_across + w * gap_across - left;
                if (y < 0 || y >= rows || x < 0 || x >= cols) continue;
                const Real item = widen(items[(image * rows + y) * cols + x]);
                if (item > best) found = (int)(h * width + w);
                if (item > best || item != item) best = item;
            }
        largest[i] = Narrow<ITEM>::of(best);
        places[i] = (PLACE)found;
    });
}

// items[image][row][column] = the sum of the windows whose place it is; total: of the items.
KERNEL void spread_windows(
    const ITEM* gradient, const PLACE* places, ITEM* items, Index total,
    Index rows, Index cols, Index down, Index across, Index height,
    Index width, Index step_down, Index step_across, Index top, Index left, Index gap_down, Index gap_across) {
    each_item(total, rows, cols, [&](Index i, Index image, Index y, Index x) {
        Real sum = 0;
        const Index own = image * down * across;
        auto add = [&](int place, Index window) {
            if (places[own + window] == place) sum += widen(gradient[own + window]);
        };
        EACH_WINDOW(add)
        items[i] = Narrow<ITEM>::of(sum);
    });
}
