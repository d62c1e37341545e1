// Attention over one shared key/value head with a sink, and the indexer's scores.

namespace deskside::DESKSIDE_TIER {
namespace {

// Keys of one row as a weight matrix: row n of it stands wherever keys[n] points.
struct GatheredKeys {
    static constexpr bool kDecoded = true;
    const float* const* keys;

    LANES F32Row row(int n) const { return {keys[n]}; }
};

// The present keys of a row in the order of its lists: absent ones leave no trace.
int gather(const AttendCall& call, std::ptrdiff_t row, const float** keys) {
    int count = 0;
    const auto take = [&](const float* matrix, const std::int32_t* index, int length) {
        for (int i = 0; i < length; ++i)
            if (index[i] >= 0) {
                keys[count++] = matrix + static_cast<std::ptrdiff_t>(index[i]) * call.width;
            }
    };
    take(call.window_keys, call.window_index + row * call.window, call.window);
    take(call.entry_keys, call.entry_index + row * call.entries, call.entries);
    return count;
}

// Replaces a head's logits by exp(logit - top) and returns their sum, the sink's share with it.
float soften(float* logits, int count, int padded, float sink, float scale) {
    for (int j = count; j < padded; ++j) logits[j] = -__builtin_inff();
    Lanes tops = splat(sink);
    for (int j = 0; j < padded; j += 16) {
        const Lanes scaled = load(logits + j) * splat(scale);
        store(logits + j, scaled);
        tops = at_least(tops, scaled);
    }
    float each_top[16];
    store(each_top, tops);
    const Lanes top = splat(largest(each_top, 16, sink));
    Lanes total = zero();
    for (int j = 0; j < padded; j += 16) {
        const Lanes weight = exp(load(logits + j) - top);
        store(logits + j, weight);
        total = total + weight;
    }
    float first[16];
    store(first, exp(splat(sink) - top));
    return sum(total) + first[0];
}

// out[h, i .. i + 16 C) = sum over keys j, ascending, of weights[h, j] * keys[j, i ..].
template <int H, int C>
void weigh(const float* weights, std::ptrdiff_t stride, const float* const* keys, int count, int i,
           int width, const float* totals, float* out) {
    Lanes acc[H][C];
    for (int h = 0; h < H; ++h)
        for (int c = 0; c < C; ++c) acc[h][c] = zero();
    const int last = width - i - 16 * (C - 1);  // elements of the last register
    const bool whole = last >= 16;
    for (int j = 0; j < count; ++j) {
        Lanes key[C];
        for (int c = 0; c < C; ++c)
            key[c] = whole || c + 1 < C ? load(keys[j] + i + 16 * c)
                                        : load_part(keys[j] + i + 16 * c, last);
        for (int h = 0; h < H; ++h) {
            const Lanes weight = splat(weights[h * stride + j]);
            for (int c = 0; c < C; ++c) acc[h][c] = fma(weight, key[c], acc[h][c]);
        }
    }
    for (int h = 0; h < H; ++h)
        for (int c = 0; c < C; ++c)
            store_part(out + h * width + i + 16 * c, acc[h][c] / splat(totals[h]),
                       whole || c + 1 < C ? 16 : last);
}

template <int H>
void weigh_heads(const float* weights, std::ptrdiff_t stride, const float* const* keys, int count,
                 int width, const float* totals, float* out) {
    int i = 0;
    for (; i + 16 * kTileColumns <= width; i += 16 * kTileColumns)
        weigh<H, kTileColumns>(weights, stride, keys, count, i, width, totals, out);
    for (; i < width; i += 16) weigh<H, 1>(weights, stride, keys, count, i, width, totals, out);
}

constexpr int kHeadBlock = 16;

void attend_heads(const AttendCall& call, std::ptrdiff_t row, int head, int heads) {
    const int longest = call.window + call.entries;
    const std::ptrdiff_t stride = (longest + 15) / 16 * 16;
    const float** keys = static_cast<const float**>(
        pool::scratch(pool::Slot::kRows, (longest + 1) * sizeof(float*)));
    float* const weights = static_cast<float*>(
        pool::scratch(pool::Slot::kTile, (heads * stride + 16) * sizeof(float)));
    const int count = gather(call, row, keys);
    const std::ptrdiff_t offset = (row * call.heads + head) * call.width;
    const float* q[kHeadBlock];
    for (int h = 0; h < heads; ++h) q[h] = call.q + offset + h * call.width;
    row_tiles(GatheredKeys{keys}, 0, count, q, heads, call.width, 1, weights, stride);
    float totals[kHeadBlock];
    const int padded = (count + 15) / 16 * 16;
    for (int h = 0; h < heads; ++h)
        totals[h] = soften(weights + h * stride, count, padded, call.sink[head + h], call.scale);
    int h = 0;
    for (; h + kTileRows <= heads; h += kTileRows)
        weigh_heads<kTileRows>(weights + h * stride, stride, keys, count, call.width, totals + h,
                               call.out + offset + h * call.width);
    for (; h < heads; ++h)
        weigh_heads<1>(weights + h * stride, stride, keys, count, call.width, totals + h,
                       call.out + offset + h * call.width);
}

void attend(const AttendCall& call) {
    const int step = call.rows >= 8 ? kHeadBlock : kTileRows;
    const int head_blocks = ceil_div(call.heads, step);
    const double worth = 2.0 * call.rows * call.heads * call.width * (call.window + call.entries);
    pool::loop(call.rows * head_blocks, worth, [&](int block) {
        const int head = block % head_blocks * step;
        const int heads = call.heads - head < step ? call.heads - head : step;
        attend_heads(call, block / head_blocks, head, heads);
    });
}

void index_scores(const IndexScoresCall& call) {
    constexpr int kEntries = 64;
    const int entry_blocks = ceil_div(call.entries, kEntries);
    const double worth = static_cast<double>(call.rows) * call.heads * call.width * call.entries;
    pool::loop(call.rows * entry_blocks, worth, [&](int block) {
        const std::ptrdiff_t row = block / entry_blocks;
        const int begin = block % entry_blocks * kEntries;
        const int end = begin + kEntries < call.entries ? begin + kEntries : call.entries;
        const std::int64_t visible = call.visible[row] < end ? call.visible[row] : end;
        float* const out = call.out + row * call.entries;
        const int count = visible > begin ? static_cast<int>(visible) - begin : 0;
        for (int e = begin + count; e < end; ++e) out[e] = -__builtin_inff();
        if (count == 0) return;
        const std::ptrdiff_t stride = kEntries;
        float* const dots = static_cast<float*>(
            pool::scratch(pool::Slot::kTile, call.heads * stride * sizeof(float)));
        const float** q = static_cast<const float**>(
            pool::scratch(pool::Slot::kRows, call.heads * sizeof(float*)));
        for (int h = 0; h < call.heads; ++h) q[h] = call.q + (row * call.heads + h) * call.width;
        const float* keys = call.keys + (call.first[row] + begin) * call.width;
        row_tiles(F32Weights{keys, call.width}, 0, count, q, call.heads, call.width, 1, dots,
                  stride);
        for (int e = 0; e < count; e += 16) {
            Lanes score = zero();
            for (int h = 0; h < call.heads; ++h)
                score = fma(splat(call.weights[row * call.heads + h]),
                            at_least(load(dots + h * stride + e), zero()), score);
            store_part(out + begin + e, score, count - e < 16 ? count - e : 16);
        }
    });
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
