// The code tables of the stored formats, as float32 values. Every entry is exact.
#pragma once

#include <bit>
#include <cstdint>

namespace deskside {

// E8M0: a byte is the exponent of a power of two; 0 is 2^-127 (subnormal), 255 is NaN.
struct E8m0Table {
    float value[256];
    constexpr E8m0Table() : value{} {
        for (std::uint32_t byte = 0; byte < 255; ++byte) {
            value[byte] = std::bit_cast<float>(byte == 0 ? 0x00400000u : byte << 23);
        }
        value[255] = std::bit_cast<float>(0x7fc00000u);
    }
};

// E4M3: sign, 4 exponent bits (bias 7, 0 is subnormal), 3 mantissa bits; 0x7f and 0xff are NaN.
struct E4m3Table {
    float value[256];
    constexpr E4m3Table() : value{} {
        for (std::uint32_t byte = 0; byte < 256; ++byte) {
            const std::uint32_t exponent = byte >> 3 & 15, mantissa = byte & 7;
            float magnitude = static_cast<float>(exponent == 0 ? mantissa : 8 + mantissa) / 512;
            for (std::uint32_t e = 1; e < exponent; ++e) magnitude *= 2;
            if ((byte & 0x7f) == 0x7f) magnitude = std::bit_cast<float>(0x7fc00000u);
            value[byte] =
                std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | (byte & 0x80) << 24);
        }
    }
};

inline constexpr E8m0Table kE8m0{};
inline constexpr E4m3Table kE4m3{};

// E2M1: sign in bit 3, then the index of a magnitude.
alignas(64) inline constexpr float kE2m1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,
                                                4.0f,  6.0f,  -0.0f, -0.5f, -1.0f, -1.5f,
                                                -2.0f, -3.0f, -4.0f, -6.0f};

}  // namespace deskside
