// The one inner product: rows of activations times rows of weights, in a fixed order of addition.
//
// Few rows decode weights in registers; more rows decode a strip once and read it again for each
// tile of rows. Both add the same numbers in the same order, so the choice never shows in a bit.

namespace deskside::DESKSIDE_TIER {
namespace {

constexpr int kStripColumns = 16;
constexpr int kMaxLeaves = 64;

// Where the scale that holds at k ends, or the leaf.
template <class Row>
LANES int block_end(int k, int end) {
    if constexpr (Row::kBlock == kWhole) return end;
    const int stop = (k | (Row::kBlock - 1)) + 1;
    return stop < end ? stop : end;
}

// sums[r * stride + c] = the leaf [k, k + length) of x[r] . w[c].
template <int R, int C, class Row>
LANES void leaf_tile(const Row (&w)[C], const float* const* x, int k, int length, float* sum,
                     std::ptrdiff_t stride) {
    Lanes acc[R][C];
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) acc[r][c] = zero();
    const auto add = [&](int c, const Pair& weight, const Pair(&rows)[R]) {
        for (int r = 0; r < R; ++r) acc[r][c] = fma(rows[r].low, weight.low, acc[r][c]);
        for (int r = 0; r < R; ++r) acc[r][c] = fma(rows[r].high, weight.high, acc[r][c]);
    };
    const int end = k + length;
    Pair rows[R];
    while (k < end) {
        decltype(w[0].scale(0)) scale[C];
        for (int c = 0; c < C; ++c) scale[c] = w[c].scale(k);
        const int stop = block_end<Row>(k, end);
        for (; k + kUnit <= stop; k += kUnit) {
            for (int r = 0; r < R; ++r) rows[r] = F32Row{x[r]}.unit(k);
            for (int c = 0; c < C; ++c) add(c, w[c].unit(k, scale[c]), rows);
        }
        if (k < stop) {
            for (int r = 0; r < R; ++r) rows[r] = F32Row{x[r]}.part(k, stop - k);
            for (int c = 0; c < C; ++c) add(c, w[c].part(k, stop - k, scale[c]), rows);
            k = stop;
        }
    }
    sums(acc, sum, stride);
}

template <int R, int C, class Weights>
[[gnu::noinline]] void tile(const Weights& w, int n, const float* const* x, int inner, int leaves,
                            float* out, std::ptrdiff_t stride) {
    decltype(w.row(0)) row[C];
    for (int c = 0; c < C; ++c) row[c] = w.row(n + c);
    if (leaves == 1) return leaf_tile<R, C>(row, x, 0, inner, out, stride);
    float tree[kMaxLeaves][R * C];
    const int length = inner / leaves;
    for (int i = 0; i < leaves; ++i) leaf_tile<R, C>(row, x, i * length, length, tree[i], C);
    for (int count = leaves; count > 1; count = (count + 1) / 2) {
        for (int i = 0; i < count / 2; ++i)
            for (int j = 0; j < R * C; ++j) tree[i][j] = tree[2 * i][j] + tree[2 * i + 1][j];
        if (count % 2 != 0)
            for (int j = 0; j < R * C; ++j) tree[count / 2][j] = tree[count - 1][j];
    }
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) out[r * stride + c] = tree[0][r * C + c];
}

template <int R, class Weights>
void tiles(const Weights& w, int n, int columns, const float* const* x, int inner, int leaves,
           float* out, std::ptrdiff_t stride) {
    int c = 0;
    for (; c + kTileColumns <= columns; c += kTileColumns)
        tile<R, kTileColumns>(w, n + c, x, inner, leaves, out + c, stride);
    for (; c < columns; ++c) tile<R, 1>(w, n + c, x, inner, leaves, out + c, stride);
}

template <class Weights>
void row_tiles(const Weights& w, int n, int columns, const float* const* x, int rows, int inner,
               int leaves, float* out, std::ptrdiff_t stride) {
    int r = 0;
    for (; r + kTileRows <= rows; r += kTileRows)
        tiles<kTileRows>(w, n, columns, x + r, inner, leaves, out + r * stride, stride);
    for (; r < rows; ++r) {
        const int left = rows - r;
        if constexpr (kTileRows > 2) {
            if (left == 3) {
                tiles<3>(w, n, columns, x + r, inner, leaves, out + r * stride, stride);
                return;
            }
            if (left == 2) {
                tiles<2>(w, n, columns, x + r, inner, leaves, out + r * stride, stride);
                return;
            }
        }
        tiles<1>(w, n, columns, x + r, inner, leaves, out + r * stride, stride);
    }
}

// Decodes rows [n, n + columns) of the weights, leaf by leaf as the tiles read them.
template <class Weights>
F32Weights decode_strip(const Weights& w, int n, int columns, int inner, int leaves) {
    // One more register of room a row keeps the rows of a strip out of each other's cache sets.
    const std::ptrdiff_t stride = (inner + 15) / 16 * 16 + 16;
    float* const strip = static_cast<float*>(
        pool::scratch(pool::Slot::kStrip, kStripColumns * stride * sizeof(float)));
    const int length = inner / leaves;
    for (int c = 0; c < columns; ++c) {
        float* const out = strip + c * stride;
        const auto row = w.row(n + c);
        for (int k = 0, end = length; k < inner; end += k < end ? 0 : length) {
            const auto scale = row.scale(k);
            const int stop = block_end<decltype(w.row(0))>(k, end);
            for (; k + kUnit <= stop; k += kUnit) {
                const Pair unit = row.unit(k, scale);
                store(out + k, unit.low);
                store(out + k + 16, unit.high);
            }
            if (k < stop) {
                const int count = stop - k;
                const Pair unit = row.part(k, count, scale);
                store_part(out + k, unit.low, count < 16 ? count : 16);
                if (count > 16) store_part(out + k + 16, unit.high, count - 16);
                k = stop;
            }
        }
    }
    return {strip, stride};
}

// out[r * stride + c] = x[r] . w[n + c] for all rows and c in [0, columns), columns <= 16 where
// rows exceed a tile.
template <class Weights>
void product(const Weights& w, int n, int columns, const float* const* x, int rows, int inner,
             int leaves, float* out, std::ptrdiff_t stride) {
    if constexpr (!Weights::kDecoded) {
        if (rows > kTileRows) {
            const F32Weights strip = decode_strip(w, n, columns, inner, leaves);
            return row_tiles(strip, 0, columns, x, rows, inner, leaves, out, stride);
        }
    }
    row_tiles(w, n, columns, x, rows, inner, leaves, out, stride);
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
