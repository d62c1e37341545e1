// Exact sums of many rows of activations: weights are decoded once, each row of them in a lane of
// its own, and then multiply all rows of activations.

namespace deskside::DESKSIDE_TIER {
namespace {

// The next R or fewer rows of x, as many as `count` says.
template <int R>
void multiply_some(const Band& w, int group, int blocks, const IntegerRow* const* x, int count,
                   std::int64_t* total) {
    if (count == R) return multiply_band<R>(w, group, blocks, x, total);
    if constexpr (R > 1) multiply_some<R - 1>(w, group, blocks, x, count, total);
}

// target(p)[c] += sum of x[p] times row c of `columns` rows of weights.
template <class Target>
void add_bands(const WeightRows& w, int columns, const IntegerRow* const* x, int count,
               const Target& target) {
    const std::ptrdiff_t all = count;
    const int step = ceil_div(count, ceil_div(count, kBandRows));  // parts of much the same size
    const std::size_t size = static_cast<std::size_t>(all) * kBandLanes * sizeof(std::int64_t);
    char* memory = static_cast<char*>(pool::scratch(pool::Slot::kStrip, sizeof(Band) + size));
    Band& band = *carve<Band>(memory, 1);
    std::int64_t* const total = carve<std::int64_t>(memory, all * kBandLanes);
    for (int n = 0; n < columns; n += kBandLanes) {
        const std::ptrdiff_t at = n;
        const WeightRows rows = {w.codes + at * (w.inner / 2), w.scales + at * (w.inner / 32),
                                 w.inner, w.floor};
        __builtin_memset(total, 0, size);
        for (int group = 0; group * kGroup < w.inner; ++group) {
            const int left = (w.inner - group * kGroup) / 32, blocks = left < 4 ? left : 4;
            decode_band(rows, group, blocks, band);
            for (int r = 0; r < count; r += step)
                multiply_some<kBandRows>(band, group, blocks, x + r,
                                         step < count - r ? step : count - r,
                                         total + r * kBandLanes);
        }
        for (int p = 0; p < count; ++p) {
            std::int64_t* const out = target(p) + n;
            for (int r = 0; r < kBandLanes; ++r) out[r] += total[p * kBandLanes + band_place(r)];
        }
    }
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
