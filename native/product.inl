// The one inner product: rows of activations times rows of weights, in a fixed order of addition.
//
// Few rows decode weights in registers; more rows decode a strip once and read it again for each
// tile of rows. Both add the same numbers in the same order, so the choice never shows in a bit.

namespace deskside::DESKSIDE_TIER {
namespace {

constexpr int kStripColumns = 16;
constexpr int kMaxLeaves = 64;

// sums[r * stride + c] = the leaf [k, k + length) of x[r] . w[n + c].
template <int R, int C, class Weights>
LANES void leaf_tile(const Weights& w, int n, const float* const* x, int k, int length, float* sum,
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
    for (; k + kUnit <= end; k += kUnit) {
        for (int r = 0; r < R; ++r) rows[r] = f32_unit(x[r] + k);
        for (int c = 0; c < C; ++c) add(c, w.unit(n + c, k), rows);
    }
    if (k < end) {
        for (int r = 0; r < R; ++r) rows[r] = F32Weights{x[r], 0}.part(0, k, end - k);
        for (int c = 0; c < C; ++c) add(c, w.part(n + c, k, end - k), rows);
    }
    sums(acc, sum, stride);
}

template <int R, int C, class Weights>
[[gnu::noinline]] void tile(const Weights& w, int n, const float* const* x, int inner, int leaves,
                            float* out, std::ptrdiff_t stride) {
    if (leaves == 1) return leaf_tile<R, C>(w, n, x, 0, inner, out, stride);
    float tree[kMaxLeaves][R * C];
    const int length = inner / leaves;
    for (int i = 0; i < leaves; ++i) leaf_tile<R, C>(w, n, x, i * length, length, tree[i], C);
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
        float* const row = strip + c * stride;
        for (int begin = 0; begin < inner; begin += length) {
            const int end = begin + length;
            int k = begin;
            for (; k + kUnit <= end; k += kUnit) {
                const Pair unit = w.unit(n + c, k);
                store(row + k, unit.low);
                store(row + k + 16, unit.high);
            }
            if (k < end) {
                const Pair unit = w.part(n + c, k, end - k);
                const int count = end - k;
                store_part(row + k, unit.low, count < 16 ? count : 16);
                if (count > 16) store_part(row + k + 16, unit.high, count - 16);
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
