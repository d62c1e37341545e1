// Vectors as panels of eight, and their exact sums by AMX tiles of signed bytes.
//
// A tile product adds a strip of 16 rows of weights times a panel over half a group. A 16-bit
// integer is two signed bytes, 256 * high + low, each a column of the panel. Sums of bytes stay
// below 2^31, so all of this is exact.

namespace deskside::DESKSIDE_TIER {
namespace {

constexpr int kPanelRows = 8;

// Vectors of the rows of experts. The pairs of an expert fill panels of eight, the last one in
// part; a row that is alone with its expert waits for memory in any case, and stays plain.
class Vectors {
  public:
    static std::size_t bytes(std::ptrdiff_t rows, int topk, int experts, int width, bool shared) {
        const std::ptrdiff_t groups = ceil_div(width, kGroup), pairs = rows * topk;
        const std::ptrdiff_t shares = pairs / 2 < experts ? pairs / 2 : experts;
        const std::ptrdiff_t panels = ceil_div(pairs, kPanelRows) + shares;
        return panels * groups * (kGroupBytes + kPanelRows * sizeof(std::int64_t)) +
               (experts + 1 + pairs) * sizeof(int) + 4 * 64 +
               PlainVectors::bytes(rows, topk, experts, width, shared);
    }

    Vectors(const Routed& routed, std::ptrdiff_t rows, int topk, int width, bool shared,
            char*& memory)
        : plain_(routed, rows, topk, width, shared, memory),
          routed_(routed),
          fan_(shared ? topk : 0),
          groups_(ceil_div(width, kGroup)),
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
        tiles_ = carve<std::int8_t>(memory, parts * kGroupBytes);
        powers_ = carve<std::int64_t>(memory, parts * kPanelRows);
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
        std::int64_t* const to = reinterpret_cast<std::int64_t*>(tiles_ + part * kGroupBytes);
        for (int i = 0; i < 32; ++i) to[i * kPanelRows + column] = cells[i];
        powers_[part * kPanelRows + column] = std::int64_t{1} << shift;
    }

    PlainVectors plain_;
    const Routed& routed_;
    int fan_;  // pairs of a row that share its vector; 0 where each pair has its own
    int groups_;
    int* panel_;            // [experts + 1] first panel of an expert
    int* seat_;             // [pairs] panel * 8 + column, or kAlone
    std::int8_t* tiles_;    // [panels, groups, 2, 16, 8, 2, 4]
    std::int64_t* powers_;  // [panels, groups, 8]: a vector's shift of a group, as a factor
};

// Memory of one thread for one strip.
struct Strip {
    Passes passes;
    std::int8_t* weights;   // [2, kGroupBytes] decoded, in turns
    std::int32_t* product;  // [2, 16 rows, 8 columns, low and high]
    std::int64_t* total;    // [panels, 16 rows, 8 columns]
};

Strip carve_strip(int groups, int panels) {
    const std::ptrdiff_t wide = (groups + 15) / 16 * 16, cells = kMostPasses * kStripRows * wide;
    const std::size_t bytes = cells * 12 + wide * kMostPasses * 2 + kStripRows * 8 +
                              2 * (kGroupBytes + kHalfBytes) + panels * kHalfBytes + 8 * 64;
    char* memory = static_cast<char*>(pool::scratch(pool::Slot::kStrip, bytes));
    Passes passes = {static_cast<int>(wide),
                     carve<std::uint32_t>(memory, cells),
                     carve<std::uint32_t>(memory, cells),
                     carve<std::int32_t>(memory, cells),
                     carve<std::uint64_t>(memory, kStripRows),
                     carve<std::uint16_t>(memory, kMostPasses * wide),
                     0};
    return {passes, carve<std::int8_t>(memory, 2 * kGroupBytes),
            carve<std::int32_t>(memory, 2 * kHalfBytes / 4),
            carve<std::int64_t>(memory, panels * kHalfBytes / 8)};
}

// The compiler knows of no memory behind a tile: what it reads must be written before, and what it
// writes read after.
LANES void tile_fence() { asm volatile("" ::: "memory"); }

LANES void load_weights(const std::int8_t* weights) {
    tile_fence();
    _tile_loadd(0, weights, 64);
    _tile_loadd(1, weights + kHalfBytes, 64);
}

// product[row, column] = low and high sums of a strip's row times a panel's column.
LANES void multiply_panel(const std::int8_t* panel, std::int32_t* product) {
    tile_fence();
    _tile_loadd(2, panel, 64);
    _tile_loadd(3, panel + kHalfBytes, 64);
    _tile_zero(4);
    _tile_dpbssd(4, 0, 2);
    _tile_dpbssd(4, 1, 3);
    _tile_stored(4, product, 64);
    tile_fence();
}

LANES void add_product(const std::int32_t* product, const std::int32_t* base, std::ptrdiff_t stride,
                       const std::int64_t* powers, std::int64_t* total) {
    const __m512i power = _mm512_load_si512(powers);
    for (int i = 0; i < kStripRows; ++i) {
        const __m512i low = _mm512_load_si512(product + 16 * i);
        const __m512i high = _mm512_slli_epi32(_mm512_shuffle_epi32(low, _MM_PERM_DDBB), 8);
        const __m512i factor = _mm512_sllv_epi32(power, _mm512_set1_epi32(base[i * stride]));
        const __m512i sum = _mm512_mul_epi32(_mm512_add_epi32(low, high), factor);
        _mm512_store_si512(total + 8 * i, _mm512_add_epi64(_mm512_load_si512(total + 8 * i), sum));
    }
}

struct [[gnu::packed]] TileShapes {
    std::uint8_t palette = 1, start = 0, reserved[14] = {};
    std::uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// total = sums of a strip times `panels` panels. Decode, tiles and sums of neighbouring steps
// overlap: a tile waits for the bytes it loads, and sums for the tile.
void multiply_strip(const WeightRows& w, int rows, const Strip& strip, int groups,
                    const std::int8_t* tiles, const std::int64_t* powers, int panels) {
    const Passes& passes = strip.passes;
    const auto add = [&](int step, int item, int panel) {
        const int what = passes.item[item], group = what & ((1 << kPassBit) - 1);
        const std::ptrdiff_t at =
            (what >> kPassBit & 3) * static_cast<std::ptrdiff_t>(kStripRows) * passes.groups +
            group;
        const std::ptrdiff_t part = static_cast<std::ptrdiff_t>(panel) * groups + group;
        add_product(strip.product + step % 2 * (kHalfBytes / 4), passes.base + at, passes.groups,
                    powers + part * kPanelRows, strip.total + panel * (kHalfBytes / 8));
    };
    decode_item(w, rows, passes, 0, strip.weights);
    int step = 0, last_item = 0, last_panel = 0;
    for (int item = 0; item < passes.items; ++item) {
        const int group = passes.item[item] & ((1 << kPassBit) - 1);
        load_weights(strip.weights + item % 2 * kGroupBytes);
        for (int panel = 0; panel < panels; ++panel, ++step) {
            const std::ptrdiff_t part = static_cast<std::ptrdiff_t>(panel) * groups + group;
            multiply_panel(tiles + part * kGroupBytes, strip.product + step % 2 * (kHalfBytes / 4));
            if (panel == 0 && item + 1 < passes.items)
                decode_item(w, rows, passes, item + 1,
                            strip.weights + (item + 1) % 2 * kGroupBytes);
            if (step > 0) add(step - 1, last_item, last_panel);
            last_item = item;
            last_panel = panel;
        }
    }
    add(step - 1, last_item, last_panel);
}

template <class Target>
void Vectors::add_panels(int e, const WeightRows& w, int columns, const Target& target) const {
    const int panels = panel_[e + 1] - panel_[e];
    const int count = routed_.begin[e + 1] - routed_.begin[e];
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(panel_[e]) * groups_;
    Strip strip = carve_strip(groups_, panels);
    const TileShapes shapes;
    tile_fence();
    _tile_loadconfig(&shapes);
    for (int n = 0; n < columns; n += kStripRows) {
        const int rows = columns - n < kStripRows ? columns - n : kStripRows;
        const std::ptrdiff_t at = n;
        const WeightRows part = {w.codes + at * (w.inner / 2), w.scales + at * (w.inner / 32),
                                 w.inner, w.floor};
        plan_passes(part, rows, groups_, strip.passes);
        __builtin_memset(strip.total, 0, static_cast<std::size_t>(panels) * kHalfBytes);
        multiply_strip(part, rows, strip, groups_, tiles_ + first * kGroupBytes,
                       powers_ + first * kPanelRows, panels);
        for (int p = 0; p < count; ++p) {
            const std::int64_t* total =
                strip.total + p / kPanelRows * (kHalfBytes / 8) + p % kPanelRows;
            std::int64_t* const out = target(p) + n;
            for (int i = 0; i < rows; ++i) out[i] += total[i * kPanelRows];
        }
    }
    _tile_release();
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
