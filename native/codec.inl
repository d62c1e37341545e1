// The stored form of cached rows: FP8 with a rotated bfloat16 tail, and MXFP4 index keys.
//
// Each element is one correct rounding, so the bytes are those of the definitions in
// formats/rows.py.

namespace deskside::DESKSIDE_TIER {
namespace {

LANES std::uint32_t bits_of(float x) { return __builtin_bit_cast(std::uint32_t, x); }
LANES float float_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

// The largest magnitude, not below `least`.
LANES float magnitude(const float* x, int count, float least) {
    float top = least;
    for (int i = 0; i < count; ++i) {
        const float size = __builtin_fabsf(x[i]);
        top = size > top ? size : top;
    }
    return top;
}

// The least exponent e >= -127 with size <= largest * 2^e, where largest = mantissa * 2^power and
// mantissa in [1, 2) is given by its 23 bits.
LANES int exponent_for(float size, std::uint32_t mantissa, int power) {
    const std::uint32_t bits = bits_of(size);
    const int exponent = static_cast<int>(bits >> 23) - 127 - power;
    const int least = exponent + ((bits & 0x7fffff) > mantissa ? 1 : 0);
    const int most = 127 - power;
    return least < -127 ? -127 : least > most ? most : least;
}

LANES float power_of_two(int exponent) {  // -126 .. 127
    return float_of(static_cast<std::uint32_t>(exponent + 127) << 23);
}

// To nearest, ties to even; at most 448 in magnitude, or NaN.
LANES std::uint8_t to_e4m3(float x) {
    const std::uint32_t bits = bits_of(x), size = bits & 0x7fffffff;
    const std::uint32_t normal = ((size + 0x7ffff + (size >> 20 & 1)) >> 20) - (120 << 3);
    // Adding 1.5 * 2^14 leaves multiples of 2^-9, the step below 2^-6, in the low bits.
    const std::uint32_t tiny = bits_of(float_of(size) + 24576.0f) - bits_of(24576.0f);
    std::uint32_t code = size < 0x3c800000 ? tiny : normal;
    code = size > 0x43e00000 ? 0x7f : code;
    return static_cast<std::uint8_t>(code | (bits >> 24 & 0x80));
}

LANES std::uint16_t to_bf16(float x) {
    const std::uint32_t bits = bits_of(x);
    const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return static_cast<std::uint16_t>(x != x ? 0x7fc0 : rounded);
}

// To nearest, ties to even; beyond 6 becomes 6.
LANES std::uint32_t to_e2m1(float x) {
    const float size = __builtin_fabsf(x);
    const float held = size < 6.0f ? size : 6.0f;
    const float steps = held < 2.0f ? held + held : held < 4.0f ? held : held * 0.5f;
    const std::uint32_t base = held < 2.0f ? 0 : held < 4.0f ? 2 : 4;
    const std::uint32_t round = bits_of(steps + 12582912.0f) - bits_of(12582912.0f);
    return ((base + round) & 7) | (bits_of(x) >> 28 & 8);
}

constexpr int kFp8Block = 64;

int fp8_tail(int still) { return (still + still / kFp8Block + 7) / 8 * 8; }

void encode_fp8_rows(const RowsCall& call) {
    const int still = call.still, turning = call.width - still, tail = fp8_tail(still);
    each_row(call.rows, call.width, [&](int row) {
        const float* x = call.floats + static_cast<std::ptrdiff_t>(row) * call.width;
        std::uint8_t* out = call.bytes + static_cast<std::ptrdiff_t>(row) * (tail + 2 * turning);
        for (int b = 0; b < still / kFp8Block; ++b) {
            const float* block = x + b * kFp8Block;
            const float size = magnitude(block, kFp8Block, 1e-4f);
            const int exponent = exponent_for(size, 0x600000, 8);  // 448 = 1.75 * 2^8
            const float scale = power_of_two(-exponent);
            for (int i = 0; i < kFp8Block; ++i) out[b * kFp8Block + i] = to_e4m3(block[i] * scale);
            out[still + b] = static_cast<std::uint8_t>(exponent + 127);
        }
        for (int i = still + still / kFp8Block; i < tail; ++i) out[i] = 0;
        for (int i = 0; i < turning; ++i) {
            const std::uint16_t half = to_bf16(x[still + i]);
            __builtin_memcpy(out + tail + 2 * i, &half, sizeof half);
        }
    });
}

void decode_fp8_rows(const RowsCall& call) {
    const int still = call.still, turning = call.width - still, tail = fp8_tail(still);
    each_row(call.rows, call.width, [&](int row) {
        const std::uint8_t* stored =
            call.bytes + static_cast<std::ptrdiff_t>(row) * (tail + 2 * turning);
        float* out = call.floats + static_cast<std::ptrdiff_t>(row) * call.width;
        for (int i = 0; i < still; i += kUnit) {
            const float scale = kE8m0.value[stored[still + i / kFp8Block]];
            const Pair unit = fp8_unit(stored + i);
            store(out + i, unit.low * splat(256.0f) * splat(scale));
            store(out + i + 16, unit.high * splat(256.0f) * splat(scale));
        }
        const Bf16Row halves = {stored + tail};
        int i = 0;
        for (; i + kUnit <= turning; i += kUnit) {
            const Pair unit = halves.unit(i);
            store(out + still + i, unit.low);
            store(out + still + i + 16, unit.high);
        }
        if (const int left = turning - i; left > 0) {
            const Pair unit = halves.part(i, left);
            store_part(out + still + i, unit.low, left < 16 ? left : 16);
            if (left > 16) store_part(out + still + i + 16, unit.high, left - 16);
        }
    });
}

void encode_mxfp4_rows(const RowsCall& call) {
    const int blocks = call.width / kUnit, half = call.width / 2;
    each_row(call.rows, call.width, [&](int row) {
        const float* x = call.floats + static_cast<std::ptrdiff_t>(row) * call.width;
        std::uint8_t* out = call.bytes + static_cast<std::ptrdiff_t>(row) * (half + blocks);
        for (int b = 0; b < blocks; ++b) {
            const float* block = x + b * kUnit;
            const float size = magnitude(block, kUnit, 7.052966104933725e-38f);  // 6 * 2^-126
            const int exponent = exponent_for(size, 0x400000, 2);                // 6 = 1.5 * 2^2
            const float scale = power_of_two(-exponent);
            std::uint32_t nibbles[kUnit];
            for (int i = 0; i < kUnit; ++i) nibbles[i] = to_e2m1(block[i] * scale);
            for (int i = 0; i < kUnit / 2; ++i)
                out[b * (kUnit / 2) + i] =
                    static_cast<std::uint8_t>(nibbles[2 * i] | nibbles[2 * i + 1] << 4);
            out[half + b] = static_cast<std::uint8_t>(exponent + 127);
        }
    });
}

void decode_mxfp4_rows(const RowsCall& call) {
    const int blocks = call.width / kUnit, half = call.width / 2;
    each_row(call.rows, call.width, [&](int row) {
        const std::uint8_t* stored =
            call.bytes + static_cast<std::ptrdiff_t>(row) * (half + blocks);
        float* out = call.floats + static_cast<std::ptrdiff_t>(row) * call.width;
        const Mxfp4Row codes = {stored, stored + half};
        for (int k = 0; k < call.width; k += kUnit) {
            const Pair unit = codes.unit(k);
            store(out + k, unit.low);
            store(out + k + 16, unit.high);
        }
    });
}

// One step of butterflies inside sixteen elements: low + high, low - high.
using Sixteen = float __attribute__((vector_size(64)));

template <int S>
LANES Sixteen butterfly(Sixteen x) {
    const Sixteen other =
        __builtin_shufflevector(x, x, 0 ^ S, 1 ^ S, 2 ^ S, 3 ^ S, 4 ^ S, 5 ^ S, 6 ^ S, 7 ^ S, 8 ^ S,
                                9 ^ S, 10 ^ S, 11 ^ S, 12 ^ S, 13 ^ S, 14 ^ S, 15 ^ S);
    Sixteen sign;
    for (int i = 0; i < 16; ++i) sign[i] = (i & S) != 0 ? -1.0f : 1.0f;
    return other + x * sign;
}

void butterflies(float* x, int width, int step) {
    for (; step < width; step *= 2)
        for (int first = 0; first < width; first += 2 * step)
            for (int i = first; i < first + step; ++i) {
                const float low = x[i], high = x[i + step];
                x[i] = low + high;
                x[i + step] = low - high;
            }
}

// Orthonormal Sylvester-Hadamard transform of rows of a power of two, smallest steps first.
void hadamard(const HadamardCall& call) {
    each_row(call.rows, static_cast<std::ptrdiff_t>(call.width) * 4, [&](int row) {
        const float* x = call.x + static_cast<std::ptrdiff_t>(row) * call.width;
        float* out = call.out + static_cast<std::ptrdiff_t>(row) * call.width;
        __builtin_memcpy(out, x, call.width * sizeof(float));
        if (call.width < 16) {
            butterflies(out, call.width, 1);
        } else {
            for (int i = 0; i < call.width; i += 16) {
                Sixteen part;
                __builtin_memcpy(&part, out + i, sizeof part);
                part = butterfly<8>(butterfly<4>(butterfly<2>(butterfly<1>(part))));
                __builtin_memcpy(out + i, &part, sizeof part);
            }
            butterflies(out, call.width, 16);
        }
        for (int i = 0; i < call.width; ++i) out[i] *= call.scale;
    });
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
