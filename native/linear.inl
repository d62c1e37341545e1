// The linear layer: blocks of columns, and of rows where there are many, shared by the threads.

namespace deskside::DESKSIDE_TIER {
namespace {

constexpr int kRowBlock = 256;

constexpr int ceil_div(std::ptrdiff_t a, std::ptrdiff_t b) {
    return static_cast<int>((a + b - 1) / b);
}

// Columns one task takes: one strip, or for few rows as many as make waking a thread worth it.
int task_columns(const LinearCall& call) {
    constexpr int kWorth = 16384;  // weights
    if (call.rows > kTileRows) return kStripColumns;
    return kStripColumns *
           ceil_div(kWorth, static_cast<std::ptrdiff_t>(call.inner) * kStripColumns);
}

// Rows [begin, begin + rows) times columns [n, n + columns) of a part.
template <class Weights>
void linear_block(const Weights& w, const LinearCall& call, const LinearPart& part, int n,
                  int columns, int begin, int rows) {
    const float* x[kRowBlock];
    for (int r = 0; r < rows; ++r) x[r] = part.x + (begin + r) * call.x_stride;
    product(w, n, columns, x, rows, call.inner, call.leaves, part.out + begin * part.out_stride + n,
            part.out_stride);
}

void linear_block(const LinearCall& call, const LinearPart& part, int n, int columns, int begin,
                  int rows) {
    const std::ptrdiff_t inner = call.inner;
    const auto with = [&](const auto& w) { linear_block(w, call, part, n, columns, begin, rows); };
    switch (part.kind) {
        case Kind::kF32:
            return with(F32Weights{reinterpret_cast<const float*>(part.codes), inner});
        case Kind::kBf16:
            return with(Bf16Weights{part.codes, inner});
        case Kind::kFp8:
            return with(Fp8Weights{part.codes, part.scales, inner, ceil_div(inner, 128)});
        case Kind::kMxfp4:
            return with(Mxfp4Weights{part.codes, part.scales, inner / 2, inner / 32});
    }
}

void linear(const LinearCall& call) {
    const int step = task_columns(call);
    const int row_blocks = ceil_div(call.rows, kRowBlock);
    const auto blocks = [&](const LinearPart& part) {
        return ceil_div(part.columns, step) * row_blocks;
    };
    int total = 0;
    double columns = 0;
    for (int i = 0; i < call.count; ++i) {
        total += blocks(call.parts[i]);
        columns += call.parts[i].columns;
    }
    pool::loop(total, columns * call.rows * call.inner, [&](int block) {
        const LinearPart* part = call.parts;
        for (; block >= blocks(*part); ++part) block -= blocks(*part);
        const int n = block / row_blocks * step;
        const int begin = block % row_blocks * kRowBlock;
        linear_block(call, *part, n, part->columns - n < step ? part->columns - n : step, begin,
                     call.rows - begin < kRowBlock ? call.rows - begin : kRowBlock);
    });
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
