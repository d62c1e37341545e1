// The routed experts of one layer over packed MXFP4 banks.
//
// Rows are sorted by expert, so that all rows of an expert share one decode of its weights; each
// row's outputs are then added in the order of its own list of experts.

namespace deskside::DESKSIDE_TIER {
namespace {

// Rows that share one round: bounds the memory between the phases.
constexpr int kMoeRows = 512;

struct Routed {
    int experts;        // with at least one row here
    const int* expert;  // [experts]
    const int* begin;   // [experts + 1] into the sorted pairs
    const int* pair;    // sorted pairs: row * topk + slot
    const int* place;   // [rows * topk] where a pair was sorted to; -1 for a skipped one
    int pairs;
};

template <class T>
T* carve(char*& memory, std::ptrdiff_t count) {
    T* const taken = reinterpret_cast<T*>(memory);
    memory += (count * static_cast<std::ptrdiff_t>(sizeof(T)) + 63) / 64 * 64;
    return taken;
}

Routed sort_by_expert(const std::int64_t* ids, int rows, int topk, int experts, char*& memory) {
    const int all = rows * topk;
    int* const expert = carve<int>(memory, experts);
    int* const begin = carve<int>(memory, experts + 1);
    int* const next = carve<int>(memory, experts + 1);
    int* const pair = carve<int>(memory, all);
    int* const place = carve<int>(memory, all);
    for (int e = 0; e <= experts; ++e) next[e] = 0;
    for (int i = 0; i < all; ++i)
        if (ids[i] >= 0) ++next[ids[i] + 1];
    for (int e = 0; e < experts; ++e) next[e + 1] += next[e];
    int found = 0;
    for (int e = 0; e < experts; ++e) {
        if (next[e + 1] == next[e]) continue;
        expert[found] = e;
        begin[found++] = next[e];
    }
    begin[found] = next[experts];
    for (int i = 0; i < all; ++i) {
        place[i] = ids[i] >= 0 ? next[ids[i]]++ : -1;
        if (place[i] >= 0) pair[place[i]] = i;
    }
    return {found, expert, begin, pair, place, begin[found]};
}

Mxfp4Weights bank_matrix(const Bank& bank, std::ptrdiff_t expert, std::ptrdiff_t rows,
                         std::ptrdiff_t columns) {
    return {bank.codes + expert * rows * columns / 2, bank.scales + expert * rows * columns / 32,
            columns / 2, columns / 32};
}

// Runs body(expert index, first column, columns) over all columns of all experts with rows.
template <class Function>
void each_expert_block(const Routed& routed, int columns, int inner, const Function& body) {
    constexpr int kWorth = 16384;
    const bool few = routed.pairs <= routed.experts * kTileRows;
    const int step =
        few ? kStripColumns * ceil_div(kWorth, static_cast<std::ptrdiff_t>(inner) * kStripColumns)
            : kStripColumns;
    const int blocks = ceil_div(columns, step);
    const double worth = static_cast<double>(routed.pairs) * columns * inner;
    pool::loop(routed.experts * blocks, worth, [&](int block) {
        const int begin = block % blocks * step;
        const int end = begin + step < columns ? begin + step : columns;
        for (int n = begin; n < end; n += kStripColumns)
            body(block / blocks, n, end - n < kStripColumns ? end - n : kStripColumns);
    });
}

void moe_rows(const MoeCall& call, std::ptrdiff_t first, int rows) {
    const std::ptrdiff_t all = static_cast<std::ptrdiff_t>(rows) * call.topk;
    const std::size_t bytes =
        (call.experts + 1) * 3 * sizeof(int) + all * (2 * sizeof(int) + 2 * sizeof(float*)) +
        all * (static_cast<std::ptrdiff_t>(call.inner) + call.hidden) * sizeof(float) + 16 * 64;
    char* memory = static_cast<char*>(pool::scratch(pool::Slot::kCall, bytes));
    const Routed routed =
        sort_by_expert(call.ids + first * call.topk, rows, call.topk, call.experts, memory);
    const float** inputs = carve<const float*>(memory, all);
    const float** gated = carve<const float*>(memory, all);
    float* const hidden = carve<float>(memory, all * call.inner);
    float* const parts = carve<float>(memory, all * call.hidden);
    for (int p = 0; p < routed.pairs; ++p) {
        inputs[p] = call.x + (first + routed.pair[p] / call.topk) * call.hidden;
        gated[p] = hidden + static_cast<std::ptrdiff_t>(p) * call.inner;
    }

    each_expert_block(routed, call.inner, 2 * call.hidden, [&](int e, int n, int columns) {
        const int begin = routed.begin[e], count = routed.begin[e + 1] - begin;
        const std::ptrdiff_t expert = routed.expert[e], stride = kStripColumns;
        float* const gate = static_cast<float*>(
            pool::scratch(pool::Slot::kTile, 2 * count * stride * sizeof(float)));
        float* const up = gate + count * stride;
        const auto multiply = [&](const Bank& bank, float* out) {
            product(bank_matrix(bank, expert, call.inner, call.hidden), n, columns, inputs + begin,
                    count, call.hidden, 1, out, stride);
        };
        multiply(call.gate, gate);
        multiply(call.up, up);
        for (int p = 0; p < count; ++p) {
            const Lanes weight = splat(call.weights[first * call.topk + routed.pair[begin + p]]);
            const Lanes unit = swiglu(load_part(gate + p * stride, columns),
                                      load_part(up + p * stride, columns), call.limit);
            store_part(hidden + static_cast<std::ptrdiff_t>(begin + p) * call.inner + n,
                       unit * weight, columns);
        }
    });

    each_expert_block(routed, call.hidden, call.inner, [&](int e, int n, int columns) {
        const int begin = routed.begin[e], count = routed.begin[e + 1] - begin;
        product(bank_matrix(call.down, routed.expert[e], call.hidden, call.inner), n, columns,
                gated + begin, count, call.inner, 1,
                parts + static_cast<std::ptrdiff_t>(begin) * call.hidden + n, call.hidden);
    });

    each_row(rows, static_cast<std::ptrdiff_t>(call.hidden) * call.topk, [&](int row) {
        const int* place = routed.place + static_cast<std::ptrdiff_t>(row) * call.topk;
        float* const out = call.out + (first + row) * call.hidden;
        for (int i = 0; i < call.hidden; i += 16) {
            const int part = call.hidden - i < 16 ? call.hidden - i : 16;
            Lanes total = zero();
            for (int slot = 0; slot < call.topk; ++slot)
                if (place[slot] >= 0) {
                    const std::ptrdiff_t p = place[slot];
                    total = total + load_part(parts + p * call.hidden + i, part);
                }
            store_part(out + i, total, part);
        }
    });
}

void moe(const MoeCall& call) {
    for (int first = 0; first < call.rows; first += kMoeRows)
        moe_rows(call, first, call.rows - first < kMoeRows ? call.rows - first : kMoeRows);
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
