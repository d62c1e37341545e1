// Row-wise kernels: RMS norm, rotary embedding, gated unit.

namespace deskside::DESKSIDE_TIER {
namespace {

// Rows in blocks worth a thread; `width` is a row's elements.
template <class Function>
void each_row(int rows, std::ptrdiff_t width, const Function& function) {
    constexpr int kWorth = 16384;
    const int step = width >= kWorth ? 1 : ceil_div(kWorth, width > 0 ? width : 1);
    pool::loop(ceil_div(rows, step), static_cast<double>(rows) * width * 4, [&](int block) {
        const int end = (block + 1) * step < rows ? (block + 1) * step : rows;
        for (int r = block * step; r < end; ++r) function(r);
    });
}

float dot(const float* a, const float* b, int count) {
    float out;
    const F32Row row[1] = {{b}};
    leaf_tile<1, 1>(row, &a, 0, count, &out, 1);
    return out;
}

float inverse_rms(const float* x, int count, float eps) {
    return 1.0f / __builtin_sqrtf(dot(x, x, count) / static_cast<float>(count) + eps);
}

template <class Weight>
void rms_norm_by(const RmsNormCall& call, const Weight& weight) {
    each_row(call.rows, call.width, [&](int row) {
        const float* x = call.x + static_cast<std::ptrdiff_t>(row) * call.width;
        float* out = call.out + static_cast<std::ptrdiff_t>(row) * call.width;
        const Lanes scale = splat(inverse_rms(x, call.width, call.eps));
        int i = 0;
        for (; i + kUnit <= call.width; i += kUnit) {
            const Pair w = weight.unit(i);
            store(out + i, load(x + i) * scale * w.low);
            store(out + i + 16, load(x + i + 16) * scale * w.high);
        }
        for (; i < call.width; i += 16) {
            const int part = call.width - i < 16 ? call.width - i : 16;
            const Pair w = weight.part(i, part);
            store_part(out + i, load_part(x + i, part) * scale * w.low, part);
        }
    });
}

struct UnitWeight {
    LANES Pair unit(int) const { return {splat(1.0f), splat(1.0f)}; }
    LANES Pair part(int, int) const { return unit(0); }
};

void rms_norm(const RmsNormCall& call) {
    if (call.weight == nullptr) return rms_norm_by(call, UnitWeight{});
    if (call.half_weight)
        return rms_norm_by(call, Bf16Row{static_cast<const std::uint8_t*>(call.weight)});
    rms_norm_by(call, F32Row{static_cast<const float*>(call.weight)});
}

void rope(const RopeCall& call) {
    const int still = call.width - 2 * call.half;
    const std::ptrdiff_t row_width = static_cast<std::ptrdiff_t>(call.heads) * call.width;
    each_row(call.rows, row_width, [&](int row) {
        const float* cosines = call.table + static_cast<std::ptrdiff_t>(row) * 2 * call.half;
        const float* sines = cosines + call.half;
        const float sign = call.inverse ? -1.0f : 1.0f;
        for (int head = 0; head < call.heads; ++head) {
            const float* x = call.x + row * row_width + head * call.width;
            float* out = call.out + row * row_width + head * call.width;
            __builtin_memcpy(out, x, still * sizeof(float));
            x += still;
            out += still;
            for (int i = 0; i < call.half; ++i) {
                const float a = x[2 * i], b = x[2 * i + 1], c = cosines[i], s = sign * sines[i];
                out[2 * i] = a * c - b * s;
                out[2 * i + 1] = a * s + b * c;
            }
        }
    });
}

void gated_unit(const SwigluCall& call) {
    constexpr int kBlock = 4096;
    const int blocks = ceil_div(call.count, kBlock);
    pool::loop(blocks, static_cast<double>(call.count) * 16, [&](int block) {
        const std::ptrdiff_t begin = static_cast<std::ptrdiff_t>(block) * kBlock;
        const std::ptrdiff_t left = call.count - begin;
        const int count = left < kBlock ? static_cast<int>(left) : kBlock;
        const float* gate = call.gate + begin;
        const float* up = call.up + begin;
        float* out = call.out + begin;
        int i = 0;
        for (; i + 16 <= count; i += 16)
            store(out + i, swiglu(load(gate + i), load(up + i), call.limit));
        if (i < count) {
            const int part = count - i;
            store_part(out + i,
                       swiglu(load_part(gate + i, part), load_part(up + i, part), call.limit),
                       part);
        }
    });
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
