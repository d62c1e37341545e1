// The stored weight formats as sources of decoded units: 32 consecutive weights of one row.
//
// `part` gives the last `count` weights of a leaf, zeros after them. Decoding is exact, so a unit
// has the same bits whether it is used at once or kept in a strip.

namespace deskside::DESKSIDE_TIER {
namespace {

constexpr int kUnit = 32;

struct F32Weights {
    static constexpr bool kDecoded = true;
    const float* base;
    std::ptrdiff_t stride;

    LANES Pair unit(int n, int k) const { return f32_unit(base + n * stride + k); }
    LANES Pair part(int n, int k, int count) const {
        const float* p = base + n * stride + k;
        if (count <= 16) return {load_part(p, count), zero()};
        return {load(p), load_part(p + 16, count - 16)};
    }
};

// A unit cut short: its bytes, then zero bytes, which every format reads as zeros.
template <int kBytes>
struct Padded {
    alignas(64) std::uint8_t bytes[kBytes] = {};
    Padded(const std::uint8_t* p, int count) {
        for (int i = 0; i < count; ++i) bytes[i] = p[i];
    }
};

struct Bf16Weights {
    static constexpr bool kDecoded = false;
    const std::uint8_t* base;
    std::ptrdiff_t stride;

    LANES Pair unit(int n, int k) const { return bf16_unit(base + 2 * (n * stride + k)); }
    LANES Pair part(int n, int k, int count) const {
        return bf16_unit(Padded<2 * kUnit>(base + 2 * (n * stride + k), 2 * count).bytes);
    }
};

// E4M3 with one E8M0 scale per 128 x 128.
struct Fp8Weights {
    static constexpr bool kDecoded = false;
    const std::uint8_t* base;
    const std::uint8_t* scales;
    std::ptrdiff_t stride;
    std::ptrdiff_t scale_stride;

    LANES Pair scaled(Pair codes, int n, int k) const {
        const std::uint8_t exponent = scales[(n >> 7) * scale_stride + (k >> 7)];
        const Lanes scale = splat(kE8m0.value[exponent]);
        return {codes.low * scale, codes.high * scale};
    }
    LANES Pair unit(int n, int k) const { return scaled(fp8_unit(base + n * stride + k), n, k); }
    LANES Pair part(int n, int k, int count) const {
        return scaled(fp8_unit(Padded<kUnit>(base + n * stride + k, count).bytes), n, k);
    }
};

// E2M1, two a byte with the lower index in the low nibble, and one E8M0 scale per 32: one per unit.
struct Mxfp4Weights {
    static constexpr bool kDecoded = false;
    const std::uint8_t* base;
    const std::uint8_t* scales;
    std::ptrdiff_t stride;        // bytes a row: K / 2
    std::ptrdiff_t scale_stride;  // bytes a row: K / 32

    LANES Pair unit(int n, int k) const {
        const std::uint8_t exponent = scales[n * scale_stride + (k >> 5)];
        return fp4_unit(base + n * stride + (k >> 1), kE8m0.value[exponent]);
    }
    LANES Pair part(int n, int k, int) const { return unit(n, k); }
};

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
