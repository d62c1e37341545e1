// The stored weight formats as sources of decoded units: 32 consecutive weights of one row.
//
// A source hands out rows; a row has a scale that holds for `kBlock` weights (kWhole: for all), and
// units. `part` gives the last `count` weights of a leaf, zeros after them. Decoding is exact, so a
// unit has the same bits whether it is used at once or kept in a strip.

namespace deskside::DESKSIDE_TIER {
namespace {

constexpr int kUnit = 32;
constexpr int kWhole = 1 << 30;

struct NoScale {};

struct F32Row {
    static constexpr int kBlock = kWhole;
    const float* values;

    LANES NoScale scale(int) const { return {}; }
    LANES Pair unit(int k, NoScale = {}) const { return {load(values + k), load(values + k + 16)}; }
    LANES Pair part(int k, int count, NoScale = {}) const {
        const float* p = values + k;
        if (count <= 16) return {load_part(p, count), zero()};
        return {load(p), load_part(p + 16, count - 16)};
    }
};

struct F32Weights {
    static constexpr bool kDecoded = true;
    const float* base;
    std::ptrdiff_t stride;

    LANES F32Row row(int n) const { return {base + n * stride}; }
};

// A unit cut short: its bytes, then zero bytes, which every format reads as zeros.
template <int kBytes>
struct Padded {
    alignas(64) std::uint8_t bytes[kBytes] = {};
    Padded(const std::uint8_t* p, int count) {
        for (int i = 0; i < count; ++i) bytes[i] = p[i];
    }
};

struct Bf16Row {
    static constexpr int kBlock = kWhole;
    const std::uint8_t* codes;

    LANES NoScale scale(int) const { return {}; }
    LANES Pair unit(int k, NoScale = {}) const { return bf16_unit(codes + 2 * k); }
    LANES Pair part(int k, int count, NoScale = {}) const {
        return bf16_unit(Padded<2 * kUnit>(codes + 2 * k, 2 * count).bytes);
    }
};

struct Bf16Weights {
    static constexpr bool kDecoded = false;
    const std::uint8_t* base;
    std::ptrdiff_t stride;

    LANES Bf16Row row(int n) const { return {base + 2 * n * stride}; }
};

// E4M3 with one E8M0 scale per 128 x 128. Units come 2^8 too small, which the scale makes up for;
// where it would overflow (2^120 and more), in a second step.
struct Fp8Row {
    static constexpr int kBlock = 128;
    struct Scale {
        float value;
        bool huge;
    };
    const std::uint8_t* codes;
    const std::uint8_t* scales;

    LANES Scale scale(int k) const {
        const std::uint8_t exponent = scales[k >> 7];
        const bool huge = exponent > 254 - 8;
        return {kE8m0.value[exponent] * (huge ? 1.0f : 256.0f), huge};
    }
    LANES static Pair scaled(Pair small, Scale scale) {
        Pair unit = {small.low * splat(scale.value), small.high * splat(scale.value)};
        if (scale.huge) [[unlikely]]
            unit = {unit.low * splat(256.0f), unit.high * splat(256.0f)};
        return unit;
    }
    LANES Pair unit(int k, Scale scale) const { return scaled(fp8_unit(codes + k), scale); }
    LANES Pair part(int k, int count, Scale scale) const {
        return scaled(fp8_unit(Padded<kUnit>(codes + k, count).bytes), scale);
    }
};

struct Fp8Weights {
    static constexpr bool kDecoded = false;
    const std::uint8_t* base;
    const std::uint8_t* scales;
    std::ptrdiff_t stride;
    std::ptrdiff_t scale_stride;

    LANES Fp8Row row(int n) const { return {base + n * stride, scales + (n >> 7) * scale_stride}; }
};

// E2M1, two a byte with the lower index in the low nibble, and one E8M0 scale per 32: one per unit.
struct Mxfp4Row {
    static constexpr int kBlock = kWhole;
    const std::uint8_t* codes;
    const std::uint8_t* scales;

    LANES NoScale scale(int) const { return {}; }
    LANES Pair unit(int k, NoScale = {}) const {
        return fp4_unit(codes + (k >> 1), kE8m0.value[scales[k >> 5]]);
    }
    LANES Pair part(int k, int, NoScale = {}) const { return unit(k); }
};

struct Mxfp4Weights {
    static constexpr bool kDecoded = false;
    const std::uint8_t* base;
    const std::uint8_t* scales;
    std::ptrdiff_t stride;        // bytes a row: K / 2
    std::ptrdiff_t scale_stride;  // bytes a row: K / 32

    LANES Mxfp4Row row(int n) const { return {base + n * stride, scales + n * scale_stride}; }
};

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
