#include "select.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <functional>

#include "pool.hpp"

namespace deskside {
namespace {

// Unsigned keys in the order of the scores; both zeros share one key.
constexpr std::uint32_t kNegativeInfinity = 0x007fffff;

std::uint32_t key(float score) {
    if (score != score) return 0xffffffff;
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(score + 0.0f);
    return (bits & 0x80000000) != 0 ? ~bits : bits | 0x80000000;
}

void select_row(const float* scores, int columns, int count, std::int64_t* out) {
    std::uint32_t* const keys = static_cast<std::uint32_t*>(
        pool::scratch(pool::Slot::kTile, 2 * static_cast<std::size_t>(columns) * sizeof(*keys)));
    std::uint32_t* const ordered = keys + columns;
    for (int c = 0; c < columns; ++c) ordered[c] = keys[c] = key(scores[c]);
    std::uint32_t bound = kNegativeInfinity;
    if (count < columns && count > 0) {
        std::nth_element(ordered, ordered + count - 1, ordered + columns, std::greater<>());
        bound = std::max(ordered[count - 1], bound);
    }
    const auto above = std::count_if(keys, keys + columns, [&](auto k) { return k > bound; });
    std::ptrdiff_t ties = bound == kNegativeInfinity ? 0 : count - above;
    std::int64_t* next = out;
    for (int c = 0; c < columns; ++c)
        if (keys[c] > bound || (keys[c] == bound && ties-- > 0)) *next++ = c;
    std::fill(next, out + count, -1);
}

}  // namespace

void select(const float* scores, int rows, int columns, int count, std::int64_t* out) {
    const double worth = 8.0 * rows * columns;
    pool::loop(rows, worth, [&](int row) {
        const std::ptrdiff_t r = row;
        select_row(scores + r * columns, columns, count, out + r * count);
    });
}

}  // namespace deskside
