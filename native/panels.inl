// Vectors as panels of eight columns for tiles. A 16-bit integer is two signed bytes, 256 * high +
// low, side by side.

namespace deskside::DESKSIDE_TIER {
namespace {

// Vectors of the rows of experts. The pairs of an expert fill panels of eight, the last one in
// part; a row that is alone with its expert waits for memory in any case, and stays plain.
class Vectors {
  public:
    static std::size_t bytes(std::ptrdiff_t rows, int topk, int experts, int width, bool shared) {
        const std::ptrdiff_t groups = ceil_div(width, kGroup), pairs = rows * topk;
        const std::ptrdiff_t shares = pairs / 2 < experts ? pairs / 2 : experts;
        const std::ptrdiff_t panels = ceil_div(pairs, kPanelRows) + shares;
        return panels * (groups * (kPanelBytes + sizeof(PanelStep)) +
                         ceil_div(groups, kStretch) * kPanelRows * sizeof(std::int64_t)) +
               (experts + 1 + pairs) * sizeof(int) + 5 * 64 +
               PlainVectors::bytes(rows, topk, experts, width, shared);
    }

    Vectors(const Routed& routed, std::ptrdiff_t rows, int topk, int width, bool shared,
            char*& memory)
        : plain_(routed, rows, topk, width, shared, memory),
          routed_(routed),
          fan_(shared ? topk : 0),
          groups_(ceil_div(width, kGroup)),
          stretches_(ceil_div(groups_, kStretch)),
          panel_(carve<int>(memory, routed.experts + 1)),
          seat_(carve<int>(memory, routed.pairs)) {
        panel_[0] = 0;
        for (int e = 0; e < routed.experts; ++e) {
            const int begin = routed.begin[e], count = routed.begin[e + 1] - begin;
            for (int p = 0; p < count; ++p)
                seat_[begin + p] = count > 1 ? panel_[e] * kPanelRows + p : kAlone;
            panel_[e + 1] = panel_[e] + (count > 1 ? ceil_div(count, kPanelRows) : 0);
        }
        const std::ptrdiff_t parts = static_cast<std::ptrdiff_t>(panel_[routed.experts]) * groups_;
        tiles_ = carve<std::int8_t>(memory, parts * kPanelBytes);
        steps_ = carve<PanelStep>(memory, parts);
        least_ = carve<std::int64_t>(
            memory, static_cast<std::ptrdiff_t>(panel_[routed.experts]) * stretches_ * kPanelRows);
    }

    // To be called when all groups are there, before the first sums.
    void settle() const {
        if (panel_[routed_.experts] == 0) return;
        pool::loop(routed_.experts, 1e9, [&](int e) {
            const int count = routed_.begin[e + 1] - routed_.begin[e];
            for (int panel = panel_[e], p = 0; panel < panel_[e + 1]; ++panel, p += kPanelRows)
                settle_panel(panel, count - p < kPanelRows ? count - p : kPanelRows);
        });
    }

    // Keeps a group of vector `index` as integers at `exponent`, to be shifted by `shift`.
    void put(std::ptrdiff_t index, int group, const float* x, int count, int exponent,
             int shift) const {
        alignas(64) std::int64_t cells[32];
        bool alone = false, packed = false;
        const auto give = [&](int place) {
            if (seat_[place] == kAlone) {
                alone = true;
                return;
            }
            if (!packed) pack(x, count, exponent, cells);
            packed = true;
            seat(seat_[place], group, cells, shift);
        };
        if (fan_ == 0) give(static_cast<int>(index));
        for (int k = 0; k < fan_; ++k)
            if (const int place = routed_.place[index * fan_ + k]; place >= 0) give(place);
        if (alone) plain_.put(index, group, x, count, exponent, shift);
    }

    // target(p)[c] += sum of pair p of expert e times row c of `columns` rows of weights.
    template <class Target>
    void add_sums(int e, const WeightRows& w, int columns, const Target& target) const {
        if (seat_[routed_.begin[e]] == kAlone) return plain_.add_sums(e, w, columns, target);
        add_panels(e, w, columns, target);
    }

  private:
    static constexpr int kAlone = -1;

    template <class Target>
    void add_panels(int e, const WeightRows& w, int columns, const Target& target) const;

    // Cells [even or odd][16]: the low bytes of four consecutive elements of a kind, then the high.
    static void pack(const float* x, int count, int exponent, std::int64_t (&cells)[32]) {
        const __m512 scale = _mm512_set1_ps(power32(-exponent));
        const __m512i order = _mm512_zextsi256_si512(
            _mm256_setr_epi8(0, 8, 16, 24, 1, 9, 17, 25, 32, 40, 48, 56, 33, 41, 49, 57, 4, 12, 20,
                             28, 5, 13, 21, 29, 36, 44, 52, 60, 37, 45, 53, 61));
        for (int i = 0; i < kGroup / 16; ++i) {
            const int left = count - 16 * i;
            const __mmask16 present = left >= 16 ? 0xffff : left > 0 ? (1u << left) - 1 : 0;
            const __m512 raw = _mm512_maskz_loadu_ps(present, x + 16 * i);
            const __m512i size =
                _mm512_and_si512(_mm512_castps_si512(raw), _mm512_set1_epi32(0x7fffffff));
            const __mmask16 finite = _mm512_cmplt_epi32_mask(size, _mm512_set1_epi32(0x7f800000));
            __m512 v = _mm512_maskz_mul_ps(finite, raw, scale);
            v = _mm512_max_ps(_mm512_min_ps(v, _mm512_set1_ps(kLargest)),
                              _mm512_set1_ps(-kLargest));
            const __m512i whole = _mm512_cvtps_epi32(v);
            const __m512i high = _mm512_add_epi32(whole, _mm512_set1_epi32(128));
            const __m512i both =
                _mm512_ternarylogic_epi32(_mm512_set1_epi32(255), whole, high, 0xca);
            const __m256i four = _mm512_castsi512_si256(_mm512_permutexvar_epi8(order, both));
            _mm_store_si128(reinterpret_cast<__m128i*>(cells + 2 * i),
                            _mm256_castsi256_si128(four));
            _mm_store_si128(reinterpret_cast<__m128i*>(cells + 16 + 2 * i),
                            _mm256_extracti128_si256(four, 1));
        }
    }

    void seat(int seat, int group, const std::int64_t (&cells)[32], int shift) const {
        const std::ptrdiff_t part =
            static_cast<std::ptrdiff_t>(seat / kPanelRows) * groups_ + group;
        const int column = seat % kPanelRows;
        std::int64_t* const to = reinterpret_cast<std::int64_t*>(tiles_ + part * kPanelBytes);
        for (int i = 0; i < 32; ++i) to[i * kPanelRows + column] = cells[i];
        steps_[part].over[2 * column] = steps_[part].over[2 * column + 1] = shift;
    }

    // Finds for each vector and stretch where the shifts start that 32 bits have room for: those of
    // its groups lie on both sides of their median.
    void settle_panel(int panel, int count) const {
        for (int s = 0; s < stretches_; ++s) {
            PanelStep* const steps =
                steps_ + static_cast<std::ptrdiff_t>(panel) * groups_ + s * kStretch;
            const int groups =
                groups_ - s * kStretch < kStretch ? groups_ - s * kStretch : kStretch;
            std::int64_t* const least =
                least_ + (static_cast<std::ptrdiff_t>(panel) * stretches_ + s) * kPanelRows;
            for (int g = 0; g < groups; ++g) steps[g].wide = false;
            for (int c = 0; c < count; ++c) {
                const int middle = median_shift(steps, groups, c);
                least[c] = middle > kMostOver / 2 ? middle - kMostOver / 2 : 0;
                for (int g = 0; g < groups; ++g) {
                    const int over = steps[g].over[2 * c] - static_cast<int>(least[c]);
                    steps[g].over[2 * c] = steps[g].over[2 * c + 1] = over;
                    steps[g].wide |= over < 0 || over > kMostOver;
                }
            }
        }
    }

    static int median_shift(const PanelStep* steps, int groups, int column) {
        int below[64] = {};
        for (int g = 0; g < groups; ++g) ++below[steps[g].over[2 * column] & 63];
        int middle = 0;
        for (int seen = below[0]; 2 * seen < groups; seen += below[++middle]) {
        }
        return middle;
    }

    PlainVectors plain_;
    const Routed& routed_;
    int fan_;  // pairs of a row that share its vector; 0 where each pair has its own
    int groups_;
    int stretches_;
    int* panel_;           // [experts + 1] first panel of an expert
    int* seat_;            // [pairs] panel * 8 + column, or kAlone
    std::int8_t* tiles_;   // [panels, groups, 2, 16, 8, 2, 4]
    PanelStep* steps_;     // [panels, groups]
    std::int64_t* least_;  // [panels, stretches, 8] shift of a stretch
};

// The strip from row n of `columns` on, and what comes after it.
WeightRows strip_rows(const WeightRows& w, int n, int columns) {
    const std::ptrdiff_t codes = w.inner / 2, scales = w.inner / 32, after = n + kStripRows;
    const bool last = after >= columns && w.next_codes != nullptr;
    return {w.codes + n * codes,
            w.scales + n * scales,
            w.inner,
            w.floor,
            last ? w.next_codes : w.codes + after * codes,
            last ? w.next_scales : w.scales + after * scales};
}

template <class Target>
void Vectors::add_panels(int e, const WeightRows& w, int columns, const Target& target) const {
    const int panels = panel_[e + 1] - panel_[e];
    const int count = routed_.begin[e + 1] - routed_.begin[e];
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(panel_[e]) * groups_;
    const Panels x = {tiles_ + first * kPanelBytes, steps_ + first,
                      least_ + first / groups_ * stretches_ * kPanelRows, panels, groups_};
    const Strip strip = carve_strip(groups_, panels);
    const TileShapes shapes;
    tile_fence();
    _tile_loadconfig(&shapes);
    // A matrix has whole strips of rows, because its rows are the columns of another one.
    for (int n = 0; n < columns; n += kStripRows) {
        StripProduct product = {strip_rows(w, n, columns), x, strip};
        product.run();
        for (int p = 0; p < count; ++p) {
            const std::int64_t* total = strip.total + p / kPanelRows * kStripSums + p % kPanelRows;
            std::int64_t* const out = target(p) + n;
            for (int i = 0; i < kStripRows; ++i) out[i] += total[i * kPanelRows];
        }
    }
    _tile_release();
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
