// The numbers of ops/integer_moe.py that every layout of the integers needs: exponents and
// rounding.

namespace deskside::DESKSIDE_TIER {
namespace {

constexpr float kLargest = 32639.0f;

LANES float power32(int exponent) {  // -126 .. 127
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(127 + exponent) << 23);
}

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

LANES int within(int value, int low, int high) {
    return value < low ? low : value > high ? high : value;
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
