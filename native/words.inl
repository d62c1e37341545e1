// Vectors as 16-bit words, and their exact sums by the tiles of this tier's sums_*.hpp.

namespace deskside::DESKSIDE_TIER {
namespace {

// The integers of one group of at most 128 elements, zeros after them.
LANES void integers_of(const float* x, int count, int exponent, std::int32_t (&whole)[kGroup]) {
    const float scale = power32(-exponent);
    for (int i = 0; i < count; ++i) {
        float v = magnitude_bits(x[i]) != 0 ? x[i] * scale : 0.0f;
        v = v > kLargest ? kLargest : v;
        v = v < -kLargest ? -kLargest : v;
        whole[i] = static_cast<std::int32_t>((v + 12582912.0f) - 12582912.0f);
    }
    for (int i = count; i < kGroup; ++i) whole[i] = 0;
}

// The vectors that the rows of experts are multiplied with: one for each row of the call, shared by
// its pairs, or one for each sorted pair.
class Words {
  public:
    static std::size_t bytes(std::ptrdiff_t rows, int topk, int, int width, bool shared) {
        const std::ptrdiff_t groups = ceil_div(width, kGroup), count = shared ? rows : rows * topk;
        return count * (groups * (kGroup * sizeof(std::int16_t) + sizeof(std::int32_t)) +
                        sizeof(IntegerRow)) +
               rows * topk * sizeof(IntegerRow*) + 4 * 64;
    }

    Words(const Routed& routed, std::ptrdiff_t rows, int topk, int width, bool shared,
          char*& memory)
        : routed_(routed), groups_(ceil_div(width, kGroup)) {
        const std::ptrdiff_t count = shared ? rows : routed.pairs;
        words_ = carve<std::int16_t>(memory, count * groups_ * kGroup);
        shifts_ = carve<std::int32_t>(memory, count * groups_);
        IntegerRow* const row = carve<IntegerRow>(memory, count);
        for (std::ptrdiff_t r = 0; r < count; ++r)
            row[r] = {words_ + r * groups_ * kGroup, shifts_ + r * groups_};
        row_ = carve<const IntegerRow*>(memory, routed.pairs);
        for (int p = 0; p < routed.pairs; ++p) row_[p] = row + (shared ? routed.pair[p] / topk : p);
    }

    // Keeps a group of vector `index` as integers at `exponent`, to be shifted by `shift`.
    void put(std::ptrdiff_t index, int group, const float* x, int count, int exponent,
             int shift) const {
        std::int32_t whole[kGroup];
        integers_of(x, count, exponent, whole);
        std::int16_t* const words = words_ + (index * groups_ + group) * kGroup;
        for (int i = 0; i < 4; ++i)
            for (int j = 0; j < kGroup / 4; ++j)
                words[32 * i + j] = static_cast<std::int16_t>(whole[4 * j + i]);
        shifts_[index * groups_ + group] = shift;
    }

    // target(p)[c] += sum of pair p of expert e times row c of `columns` rows of weights.
    template <class Target>
    void add_sums(int e, const WeightRows& w, int columns, const Target& target) const {
        const int begin = routed_.begin[e];
        add_rows<kIntegerRows>(w, columns, row_ + begin, routed_.begin[e + 1] - begin, 0, target);
    }

  private:
    template <int R, class Target>
    static void add_tiles(const WeightRows& w, int columns, const IntegerRow* const* x, int first,
                          const Target& target) {
        const auto tile = [&]<int C>(int c) {
            std::int64_t out[R][C];
            const std::ptrdiff_t at = c;
            integer_tile<R, C>(
                {w.codes + at * (w.inner / 2), w.scales + at * (w.inner / 32), w.inner, w.floor}, x,
                out);
            for (int r = 0; r < R; ++r)
                for (int i = 0; i < C; ++i) target(first + r)[c + i] += out[r][i];
        };
        constexpr int kColumns = kIntegerColumns<R>;
        int c = 0;
        for (; c + kColumns <= columns; c += kColumns) tile.template operator()<kColumns>(c);
        for (; c < columns; ++c) tile.template operator()<1>(c);
    }

    // Rows [first, count), `R` at a time while they last.
    template <int R, class Target>
    static void add_rows(const WeightRows& w, int columns, const IntegerRow* const* x, int count,
                         int first, const Target& target) {
        for (; count - first >= R; first += R) add_tiles<R>(w, columns, x + first, first, target);
        if constexpr (R > 1)
            if (first < count) add_rows<R - 1>(w, columns, x, count, first, target);
    }

    const Routed& routed_;
    int groups_;
    std::int16_t* words_;     // [vectors, groups, 128]
    std::int32_t* shifts_;    // [vectors, groups]
    const IntegerRow** row_;  // [pairs]
};

#if !defined(DESKSIDE_PANELS)
constexpr bool kPrefersIntegers = false;
using Vectors = Words;
#endif

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
