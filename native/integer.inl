// The routed experts in exact integers: the arithmetic of ops/integer_moe.py.
//
// All rows of an expert share one decode of its weights. Gate and up run in blocks of whole groups
// of 128 outputs, so that a block also quantizes what it made; down runs in blocks of outputs, each
// over all experts, so that no two threads add to one sum.

namespace deskside::DESKSIDE_TIER {
namespace {

constexpr int kLeastTop = -90;
constexpr int kDownColumns = 64;

// Blocks may grow to so many groups, or times kDownColumns: the longer a stretch of weights, the
// less of it is lost at its ends, where nothing was fetched ahead and too much was.
constexpr int kMostGroups = 4;
constexpr int kMostDown = 8;

// How many of `parts` equal parts a block takes, so that each thread finds several blocks.
int shared_out(int parts, int most) {
    constexpr int kBlocksEach = 8;
    const int share = parts / (pool::threads() * kBlocksEach);
    return share < 1 ? 1 : share < most ? share : most;
}

// Quantizes a row of x in its own window; returns the window's low end.
int quantize_row(const float* x, int width, int depth, const Vectors& to, std::ptrdiff_t row) {
    const int top = within(exponent_of(largest_bits(x, width)), kLeastTop, 127);
    const int low = top - depth;
    for (int n = 0; n < width; n += kGroup) {
        const int count = width - n < kGroup ? width - n : kGroup;
        const int exponent = within(exponent_of(largest_bits(x + n, count)), low, top);
        to.put(row, n / kGroup, x + n, count, exponent, exponent - low);
    }
    return low;
}

WeightRows bank_rows(const Bank& bank, std::ptrdiff_t expert, std::ptrdiff_t rows, int inner,
                     std::ptrdiff_t first, int floor) {
    const std::ptrdiff_t row = expert * rows + first;
    return {bank.codes + row * (inner / 2), bank.scales + row * (inner / 32), inner, floor};
}

WeightRows followed_by(const WeightRows& w, const WeightRows& next) {
    return {w.codes, w.scales, w.inner, w.floor, next.codes, next.scales};
}

struct SumsRound {
    const ExpertSumsCall& call;
    const Routed& routed;
    std::ptrdiff_t first;   // row of the call
    int* x_low;             // [rows]
    const Vectors& x;       // one a row
    const Vectors& hidden;  // one a pair
};

// The gated unit of pair p of the call's sums, and its integers: one group.
void keep_hidden(const SumsRound& round, int p, int group, int columns, const std::int64_t* gate,
                 const std::int64_t* up) {
    const ExpertSumsCall& call = round.call;
    const int pair = round.routed.pair[p];
    const double power = power64(round.x_low[pair / call.topk] + call.table[0] - 128);
    const float weight = call.weights[round.first * call.topk + pair];
    alignas(64) float g[kGroup], u[kGroup];
    for (int c = 0; c < kGroup; ++c) g[c] = rounded(gate[c], power);
    for (int c = 0; c < kGroup; ++c) u[c] = rounded(up[c], power);
    for (int c = 0; c < kGroup; c += 16) {
        const Lanes unit = swiglu(at_least(load(g + c), splat(-128.0f)), load(u + c), call.limit);
        store(g + c, unit * splat(weight));
    }
    const int low = call.table[3], top = call.table[4];
    const int exponent = within(exponent_of(largest_bits(g, columns)), low, top);
    round.hidden.put(p, group, g, columns, exponent, exponent - low);
}

// Gate, up and gated unit of `groups` groups of one expert, for all its rows.
void hidden_groups(const SumsRound& round, int e, int first_group, int groups) {
    const ExpertSumsCall& call = round.call;
    const int begin = round.routed.begin[e], count = round.routed.begin[e + 1] - begin;
    const int n = first_group * kGroup, width = groups * kGroup;
    const int columns = call.inner - n < width ? call.inner - n : width;
    const std::ptrdiff_t all = static_cast<std::ptrdiff_t>(count) * width;
    std::int64_t* const gate = static_cast<std::int64_t*>(
        pool::scratch(pool::Slot::kTile, 2 * sizeof(std::int64_t) * all));
    std::int64_t* const up = gate + all;
    const auto multiply = [&](const WeightRows& w, std::int64_t* out) {
        __builtin_memset(out, 0, all * sizeof(std::int64_t));
        round.x.add_sums(e, w, columns, [&](int p) { return out + p * width; });
    };
    const auto rows = [&](const Bank& bank) {
        return bank_rows(bank, round.routed.expert[e], call.inner, call.hidden, n, call.table[0]);
    };
    const WeightRows gate_rows = rows(call.gate), up_rows = rows(call.up);
    multiply(followed_by(gate_rows, up_rows), gate);
    multiply(up_rows, up);
    for (int p = 0; p < count; ++p)
        for (int g = 0; g < groups; ++g) {
            const int left = columns - g * kGroup, at = p * width + g * kGroup;
            keep_hidden(round, begin + p, first_group + g, left < kGroup ? left : kGroup, gate + at,
                        up + at);
        }
}

// Outputs [n, n + columns) of all rows: all experts, one after the other.
void down_columns(const SumsRound& round, int n, int columns) {
    const ExpertSumsCall& call = round.call;
    const auto rows = [&](int e) {
        return bank_rows(call.down, round.routed.expert[e], call.hidden, call.inner, n,
                         call.table[2]);
    };
    for (int e = 0; e < round.routed.experts; ++e) {
        const int* const pair = round.routed.pair + round.routed.begin[e];
        const bool last = e + 1 == round.routed.experts;
        const WeightRows w = last ? rows(e) : followed_by(rows(e), rows(e + 1));
        round.hidden.add_sums(e, w, columns, [&](int p) {
            return call.out + (round.first + pair[p] / call.topk) * call.hidden + n;
        });
    }
}

void sums_round(const ExpertSumsCall& call, std::ptrdiff_t first, int rows) {
    const std::ptrdiff_t all = static_cast<std::ptrdiff_t>(rows) * call.topk;
    const std::size_t bytes =
        (call.experts + 1) * 3 * sizeof(int) + (rows + all * 2) * sizeof(int) +
        Vectors::bytes(rows, call.topk, call.experts, call.hidden, true) +
        Vectors::bytes(rows, call.topk, call.experts, call.inner, false) + 16 * 64;
    char* memory = static_cast<char*>(pool::scratch(pool::Slot::kCall, bytes));
    const Routed routed =
        sort_by_expert(call.ids + first * call.topk, rows, call.topk, call.experts, memory);
    int* const x_low = carve<int>(memory, rows);
    const Vectors x(routed, rows, call.topk, call.hidden, true, memory);
    const Vectors hidden(routed, rows, call.topk, call.inner, false, memory);
    const SumsRound round = {call, routed, first, x_low, x, hidden};
    each_row(rows, static_cast<std::ptrdiff_t>(call.hidden) * 4, [&](int row) {
        x_low[row] =
            quantize_row(call.x + (first + row) * call.hidden, call.hidden, call.table[1], x, row);
        std::int64_t* const out = call.out + (first + row) * call.hidden;
        for (int i = 0; i < call.hidden; ++i) out[i] = 0;
    });
    x.settle();
    const double worth = static_cast<double>(routed.pairs) * call.inner * call.hidden;
    const int groups = ceil_div(call.inner, kGroup);
    const int together = shared_out(routed.experts * groups, kMostGroups);
    const int parts = ceil_div(groups, together);
    pool::loop(routed.experts * parts, 2 * worth, [&](int block) {
        const int group = block % parts * together;
        hidden_groups(round, block / parts, group,
                      groups - group < together ? groups - group : together);
    });
    hidden.settle();
    const int columns = kDownColumns * shared_out(ceil_div(call.hidden, kDownColumns), kMostDown);
    pool::loop(ceil_div(call.hidden, columns), worth, [&](int block) {
        const int n = block * columns;
        down_columns(round, n, call.hidden - n < columns ? call.hidden - n : columns);
    });
}

void expert_sums(const ExpertSumsCall& call) {
    for (int first = 0; first < call.rows; first += kMoeRows)
        sums_round(call, first, call.rows - first < kMoeRows ? call.rows - first : kMoeRows);
}

LANES bool all_finite(const float* x, int count) {
    std::uint32_t top = 0;
    for (int i = 0; i < count; ++i) {
        const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x[i]) & 0x7fffffff;
        top = bits > top ? bits : top;
    }
    return top < 0x7f800000;
}

void finish_experts(const FinishExpertsCall& call) {
    const double power = power64(call.table[3] + call.table[2] - 128);
    each_row(call.rows, static_cast<std::ptrdiff_t>(call.hidden) * 2, [&](int row) {
        const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(row) * call.hidden;
        bool sound = all_finite(call.x + first, call.hidden);
        for (int k = 0; k < call.topk; ++k) {
            const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(row) * call.topk + k;
            sound = sound && (call.ids[at] < 0 || all_finite(call.weights + at, 1));
        }
        for (int i = 0; i < call.hidden; ++i)
            call.out[first + i] = sound ? rounded(call.sums[first + i], power) : __builtin_nanf("");
    });
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
