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

template <class Weights>
void linear_with(const Weights& w, const LinearCall& call) {
    const int step = task_columns(call);
    const int column_blocks = ceil_div(call.columns, step);
    const int row_blocks = ceil_div(call.rows, kRowBlock);
    const double worth = static_cast<double>(call.rows) * call.columns * call.inner;
    pool::loop(column_blocks * row_blocks, worth, [&](int block) {
        const int n = block / row_blocks * step;
        const int columns = call.columns - n < step ? call.columns - n : step;
        const int begin = block % row_blocks * kRowBlock;
        const int rows = call.rows - begin < kRowBlock ? call.rows - begin : kRowBlock;
        const float* x[kRowBlock];
        for (int r = 0; r < rows; ++r) x[r] = call.x + (begin + r) * call.x_stride;
        product(w, n, columns, x, rows, call.inner, call.leaves,
                call.out + begin * call.out_stride + n, call.out_stride);
    });
}

void linear(const LinearCall& call) {
    const std::ptrdiff_t inner = call.inner;
    switch (call.kind) {
        case Kind::kF32:
            return linear_with(F32Weights{reinterpret_cast<const float*>(call.codes), inner}, call);
        case Kind::kBf16:
            return linear_with(Bf16Weights{call.codes, inner}, call);
        case Kind::kFp8:
            return linear_with(Fp8Weights{call.codes, call.scales, inner, ceil_div(inner, 128)},
                               call);
        case Kind::kMxfp4:
            return linear_with(Mxfp4Weights{call.codes, call.scales, inner / 2, inner / 32}, call);
    }
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
