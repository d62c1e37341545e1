// Vectors as integers, and their exact sums: few rows by tiles, many by bands.

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
class PlainVectors {
  public:
    static std::size_t bytes(std::ptrdiff_t rows, int topk, int, int width, bool shared) {
        const std::ptrdiff_t groups = ceil_div(width, kGroup), count = shared ? rows : rows * topk;
        return count * (groups * (sizeof(RowGroup) + sizeof(std::int32_t)) + sizeof(IntegerRow)) +
               rows * topk * sizeof(IntegerRow*) + 4 * 64;
    }

    PlainVectors(const Routed& routed, std::ptrdiff_t rows, int topk, int width, bool shared,
                 char*& memory)
        : routed_(routed), groups_(ceil_div(width, kGroup)) {
        const std::ptrdiff_t count = shared ? rows : routed.pairs;
        group_ = carve<RowGroup>(memory, count * groups_);
        shifts_ = carve<std::int32_t>(memory, count * groups_);
        IntegerRow* const row = carve<IntegerRow>(memory, count);
        for (std::ptrdiff_t r = 0; r < count; ++r)
            row[r] = {group_ + r * groups_, shifts_ + r * groups_};
        row_ = carve<const IntegerRow*>(memory, routed.pairs);
        for (int p = 0; p < routed.pairs; ++p) row_[p] = row + (shared ? routed.pair[p] / topk : p);
    }

    // Keeps a group of vector `index` as integers at `exponent`, to be shifted by `shift`.
    void put(std::ptrdiff_t index, int group, const float* x, int count, int exponent,
             int shift) const {
        std::int32_t whole[kGroup];
        integers_of(x, count, exponent, whole);
        pack_group(whole, group_[index * groups_ + group]);
        shifts_[index * groups_ + group] = shift;
    }

    // target(p)[c] += sum of pair p of expert e times row c of `columns` rows of weights.
    template <class Target>
    void add_sums(int e, const WeightRows& w, int columns, const Target& target) const {
        const IntegerRow* const* const x = row_ + routed_.begin[e];
        const int count = routed_.begin[e + 1] - routed_.begin[e];
        if constexpr (kBandFrom > 1)
            if (count < kBandFrom) return add_tiles<kBandFrom - 1>(w, columns, x, count, 0, target);
        add_bands(w, columns, x, count, target);
    }

    // For layouts that are made of all groups of a vector.
    void settle() const {}

    // The vector of sorted pair p.
    const IntegerRow& row(int p) const { return *row_[p]; }

  private:
    const Routed& routed_;
    int groups_;
    RowGroup* group_;         // [vectors, groups]
    std::int32_t* shifts_;    // [vectors, groups]
    const IntegerRow** row_;  // [pairs]
};

#if !defined(DESKSIDE_PANELS)
using Vectors = PlainVectors;
#endif

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
