// The routed experts of generated rows in exact integers: the arithmetic of ops/integer_moe.py.
//
// All rows of an expert share one decode of its weights. Gate and up run in blocks of 128 outputs,
// one group, so that a block also quantizes what it made; down runs in blocks of outputs, each
// over all experts, so that no two threads add to one sum.

namespace deskside::DESKSIDE_TIER {
namespace {

constexpr float kLargest = 32639.0f;
constexpr int kLeastTop = -90;
constexpr int kDownColumns = 64;

LANES double power64(int exponent) {
    return __builtin_bit_cast(double, static_cast<std::int64_t>(exponent + 1023) << 52);
}

LANES float rounded(std::int64_t sum, double power) {
    return static_cast<float>(static_cast<double>(static_cast<float>(sum)) * power);
}

// The bits of |x|, 0 for what is not finite: they order as the numbers do.
LANES std::uint32_t magnitude_bits(float x) {
    const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x) & 0x7fffffff;
    return bits < 0x7f800000 ? bits : 0;
}

LANES std::uint32_t largest_bits(const float* x, int count) {
    std::uint32_t top = 0;
    for (int i = 0; i < count; ++i) {
        const std::uint32_t bits = magnitude_bits(x[i]);
        top = bits > top ? bits : top;
    }
    return top;
}

// The least e with the number of these bits <= 32639 * 2^e. Right for normal numbers; lower than
// every window for others.
LANES int exponent_of(std::uint32_t bits) {
    constexpr std::uint32_t kMantissa = 0x7efe00;  // of 32639 = 1.99... * 2^14
    const int exponent = static_cast<int>(bits >> 23) - 127 - 14;
    return exponent + ((bits & 0x7fffff) > kMantissa ? 1 : 0);
}

// One group of at most 128 elements as words at this exponent.
LANES void quantize(const float* x, int count, int exponent, std::int16_t* words) {
    const float scale = __builtin_bit_cast(float, static_cast<std::uint32_t>(127 - exponent) << 23);
    alignas(64) std::int32_t whole[kGroup] = {};
    for (int i = 0; i < count; ++i) {
        float v = magnitude_bits(x[i]) != 0 ? x[i] * scale : 0.0f;
        v = v > kLargest ? kLargest : v;
        v = v < -kLargest ? -kLargest : v;
        whole[i] = static_cast<std::int32_t>((v + 12582912.0f) - 12582912.0f);
    }
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < kGroup / 4; ++j)
            words[32 * i + j] = static_cast<std::int16_t>(whole[4 * j + i]);
}

LANES int within(int value, int low, int high) {
    return value < low ? low : value > high ? high : value;
}

struct Quantized {
    std::int16_t* words;   // [rows, groups, 128]
    std::int32_t* shifts;  // [rows, groups]
    IntegerRow* row;       // [rows]
    int groups;
};

Quantized carve_quantized(char*& memory, std::ptrdiff_t rows, int width) {
    const int groups = ceil_div(width, kGroup);
    const Quantized made = {carve<std::int16_t>(memory, rows * groups * kGroup),
                            carve<std::int32_t>(memory, rows * groups),
                            carve<IntegerRow>(memory, rows), groups};
    for (std::ptrdiff_t r = 0; r < rows; ++r)
        made.row[r] = {made.words + r * groups * kGroup, made.shifts + r * groups};
    return made;
}

std::size_t quantized_bytes(std::ptrdiff_t rows, int width) {
    const std::ptrdiff_t groups = ceil_div(width, kGroup);
    return rows * (groups * (kGroup * sizeof(std::int16_t) + sizeof(std::int32_t)) +
                   sizeof(IntegerRow)) +
           3 * 64;
}

// Quantizes a row of x in its own window; returns the window's low end.
int quantize_row(const float* x, int width, int depth, const Quantized& to, std::ptrdiff_t row) {
    std::int32_t* const shifts = to.shifts + row * to.groups;
    int top = kLeastTop;
    for (int g = 0; g < to.groups; ++g) {
        const int count = width - g * kGroup < kGroup ? width - g * kGroup : kGroup;
        shifts[g] = exponent_of(largest_bits(x + g * kGroup, count));
        top = shifts[g] > top ? shifts[g] : top;
    }
    const int low = top - depth;
    for (int g = 0; g < to.groups; ++g) {
        const int count = width - g * kGroup < kGroup ? width - g * kGroup : kGroup;
        const int exponent = within(shifts[g], low, top);
        quantize(x + g * kGroup, count, exponent, to.words + (row * to.groups + g) * kGroup);
        shifts[g] = exponent - low;
    }
    return low;
}

// Calls take(row, column, sum) for all rows and `columns` consecutive rows of weights.
template <int R, class Take>
void sums_of(const WeightRows& w, int columns, const IntegerRow* const* x, int first,
             const Take& take) {
    const auto tile = [&]<int C>(int c) {
        std::int64_t out[R][C];
        const std::ptrdiff_t at = c;
        integer_tile<R, C>(
            {w.codes + at * (w.inner / 2), w.scales + at * (w.inner / 32), w.inner, w.floor}, x,
            out);
        for (int r = 0; r < R; ++r)
            for (int i = 0; i < C; ++i) take(first + r, c + i, out[r][i]);
    };
    constexpr int kColumns = kIntegerColumns<R>;
    int c = 0;
    for (; c + kColumns <= columns; c += kColumns) tile.template operator()<kColumns>(c);
    for (; c < columns; ++c) tile.template operator()<1>(c);
}

// The same for any number of rows, `rows` at a time while they last.
template <int R, class Take>
void all_sums(const WeightRows& w, int columns, const IntegerRow* const* x, int count,
              const Take& take, int first = 0) {
    for (; count - first >= R; first += R) sums_of<R>(w, columns, x + first, first, take);
    if constexpr (R > 1)
        if (first < count) all_sums<R - 1>(w, columns, x, count, take, first);
}

WeightRows bank_rows(const Bank& bank, std::ptrdiff_t expert, std::ptrdiff_t rows, int inner,
                     std::ptrdiff_t first, int floor) {
    const std::ptrdiff_t row = expert * rows + first;
    return {bank.codes + row * (inner / 2), bank.scales + row * (inner / 32), inner, floor};
}

struct SumsRound {
    const ExpertSumsCall& call;
    Routed routed;
    std::ptrdiff_t first;  // row of the call
    Quantized x;
    int* x_low;
    const IntegerRow** inputs;  // [pairs]
    Quantized hidden;
    const IntegerRow** gated;  // [pairs]
};

// Gate, up, gated unit and its integers: one group of one expert, for all its rows.
void hidden_group(const SumsRound& round, int e, int group) {
    const ExpertSumsCall& call = round.call;
    const std::int32_t* const table = call.table;
    const int begin = round.routed.begin[e], count = round.routed.begin[e + 1] - begin;
    const int n = group * kGroup;
    const int columns = call.inner - n < kGroup ? call.inner - n : kGroup;
    float* const gate =
        static_cast<float*>(pool::scratch(pool::Slot::kTile, 2 * sizeof(float) * count * kGroup));
    float* const up = gate + static_cast<std::ptrdiff_t>(count) * kGroup;
    const auto row_of = [&](int p) { return round.routed.pair[begin + p] / call.topk; };
    const auto multiply = [&](const Bank& bank, float* out) {
        const WeightRows w =
            bank_rows(bank, round.routed.expert[e], call.inner, call.hidden, n, table[0]);
        all_sums<kIntegerRows>(w, columns, round.inputs + begin, count,
                               [&](int p, int c, std::int64_t sum) {
                                   const int exponent = round.x_low[row_of(p)] + table[0] - 128;
                                   out[p * kGroup + c] = rounded(sum, power64(exponent));
                               });
    };
    multiply(call.gate, gate);
    multiply(call.up, up);
    for (int p = 0; p < count; ++p) {
        const float weight = call.weights[round.first * call.topk + round.routed.pair[begin + p]];
        float* const h = gate + p * kGroup;
        for (int c = 0; c < columns; c += 16) {
            const int part = columns - c < 16 ? columns - c : 16;
            const Lanes g = at_least(load_part(h + c, part), splat(-128.0f));
            const Lanes unit = swiglu(g, load_part(up + p * kGroup + c, part), call.limit);
            store_part(h + c, unit * splat(weight), part);
        }
        const int low = table[3], top = table[4];
        const int exponent = within(exponent_of(largest_bits(h, columns)), low, top);
        const std::ptrdiff_t place =
            static_cast<std::ptrdiff_t>(begin + p) * round.hidden.groups + group;
        quantize(h, columns, exponent, round.hidden.words + place * kGroup);
        round.hidden.shifts[place] = exponent - low;
    }
}

// Outputs [n, n + columns) of all rows: all experts, one after the other.
void down_columns(const SumsRound& round, int n, int columns) {
    const ExpertSumsCall& call = round.call;
    for (int e = 0; e < round.routed.experts; ++e) {
        const int begin = round.routed.begin[e], count = round.routed.begin[e + 1] - begin;
        const WeightRows w =
            bank_rows(call.down, round.routed.expert[e], call.hidden, call.inner, n, call.table[2]);
        all_sums<kIntegerRows>(
            w, columns, round.gated + begin, count, [&](int p, int c, std::int64_t sum) {
                const std::ptrdiff_t row = round.first + round.routed.pair[begin + p] / call.topk;
                call.out[row * call.hidden + n + c] += sum;
            });
    }
}

void sums_round(const ExpertSumsCall& call, std::ptrdiff_t first, int rows) {
    const std::ptrdiff_t all = static_cast<std::ptrdiff_t>(rows) * call.topk;
    const std::size_t bytes = (call.experts + 1) * 3 * sizeof(int) + rows * sizeof(int) +
                              all * (2 * sizeof(int) + 2 * sizeof(IntegerRow*)) +
                              quantized_bytes(rows, call.hidden) +
                              quantized_bytes(all, call.inner) + 16 * 64;
    char* memory = static_cast<char*>(pool::scratch(pool::Slot::kCall, bytes));
    const Routed routed =
        sort_by_expert(call.ids + first * call.topk, rows, call.topk, call.experts, memory);
    int* const x_low = carve<int>(memory, rows);
    const IntegerRow** inputs = carve<const IntegerRow*>(memory, all);
    const IntegerRow** gated = carve<const IntegerRow*>(memory, all);
    const SumsRound round = {call,
                             routed,
                             first,
                             carve_quantized(memory, rows, call.hidden),
                             x_low,
                             inputs,
                             carve_quantized(memory, all, call.inner),
                             gated};
    for (int p = 0; p < routed.pairs; ++p) {
        inputs[p] = round.x.row + routed.pair[p] / call.topk;
        gated[p] = round.hidden.row + p;
    }
    each_row(rows, static_cast<std::ptrdiff_t>(call.hidden) * 4, [&](int row) {
        x_low[row] = quantize_row(call.x + (first + row) * call.hidden, call.hidden, call.table[1],
                                  round.x, row);
        std::int64_t* const out = call.out + (first + row) * call.hidden;
        for (int i = 0; i < call.hidden; ++i) out[i] = 0;
    });
    const double worth = static_cast<double>(routed.pairs) * call.inner * call.hidden;
    const int groups = round.hidden.groups;
    pool::loop(routed.experts * groups, 2 * worth,
               [&](int block) { hidden_group(round, block / groups, block % groups); });
    pool::loop(ceil_div(call.hidden, kDownColumns), worth, [&](int block) {
        const int n = block * kDownColumns;
        down_columns(round, n, call.hidden - n < kDownColumns ? call.hidden - n : kDownColumns);
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
