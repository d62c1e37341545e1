// Vectors as panels of eight, and their exact sums by AMX tiles of signed bytes.
//
// A tile product adds 16 rows of weights times a panel over half a group. A 16-bit integer is two
// signed bytes, 256 * high + low, each a column of the panel. Weights take a byte each: an index of
// four bits of code and two of shift looks up the weight times up to 2^3, so that blocks whose
// scales lie within three binades add up in one tile. What lies further apart takes another pass
// over the group. Sums of bytes stay below 2^31, so all of this is exact.

namespace deskside::DESKSIDE_TIER {
namespace {

constexpr bool kPrefersIntegers = true;

constexpr int kPanelRows = 8;
constexpr int kStripRows = 16;
constexpr int kHalfBytes = 1024;             // a tile: half a group of a panel, or of a strip
constexpr int kGroupBytes = 2 * kHalfBytes;  // even elements, then odd ones: low and high nibbles
constexpr int kMostPasses = 4;               // spans of up to 14 binades, four at a time

// Vectors of the rows of experts. The pairs of an expert fill panels of eight, the last one in
// part; a row that is alone with its expert waits for memory in any case, and stays in words.
class Vectors {
  public:
    static std::size_t bytes(std::ptrdiff_t rows, int topk, int experts, int width, bool shared) {
        const std::ptrdiff_t groups = ceil_div(width, kGroup), pairs = rows * topk;
        const std::ptrdiff_t shares = pairs / 2 < experts ? pairs / 2 : experts;
        const std::ptrdiff_t panels = ceil_div(pairs, kPanelRows) + shares;
        return panels * groups * (kGroupBytes + kPanelRows * sizeof(std::int64_t)) +
               (experts + 1 + pairs) * sizeof(int) + 4 * 64 +
               Words::bytes(rows, topk, experts, width, shared);
    }

    Vectors(const Routed& routed, std::ptrdiff_t rows, int topk, int width, bool shared,
            char*& memory)
        : words_(routed, rows, topk, width, shared, memory),
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
        if (alone) words_.put(index, group, x, count, exponent, shift);
    }

    // target(p)[c] += sum of pair p of expert e times row c of `columns` rows of weights.
    template <class Target>
    void add_sums(int e, const WeightRows& w, int columns, const Target& target) const {
        if (seat_[routed_.begin[e]] == kAlone) return words_.add_sums(e, w, columns, target);
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

    Words words_;
    const Routed& routed_;
    int fan_;  // pairs of a row that share its vector; 0 where each pair has its own
    int groups_;
    int* panel_;            // [experts + 1] first panel of an expert
    int* seat_;             // [pairs] panel * 8 + column, or kAlone
    std::int8_t* tiles_;    // [panels, groups, 2, 16, 8, 2, 4]
    std::int64_t* powers_;  // [panels, groups, 8]: a vector's shift of a group, as a factor
};

// Which blocks of a strip each pass over a group adds, and shifted how far. Rows are those of the
// strip, 16 always; `groups` is rounded up to whole vectors.
struct Passes {
    int groups;
    std::uint32_t* shift;  // [passes, rows, groups]: a byte a block, its shift << 4
    std::uint32_t* mask;   // 0x0f in blocks that take part
    std::int32_t* base;    // exponent that the shifts start from, over the floor
    std::uint64_t* left;   // [rows] blocks that no pass has taken yet
    std::uint16_t* item;   // the order of the work: group, pass, and whether some block stays out
    int items;
};

constexpr int kPassBit = 12;
constexpr std::uint16_t kMixed = 1 << 15;

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

// Groups of 16 with some of these blocks.
LANES __mmask16 groups_with(__mmask64 blocks) {
    const __m512i set = _mm512_movm_epi8(blocks);
    return _mm512_test_epi32_mask(set, set);
}

// One pass over 16 groups of a row, from place `at` on; takes its blocks off `left`.
LANES void take_pass(const Passes& to, std::ptrdiff_t at, __m512i scales, int floor,
                     __mmask64& left) {
    const __m512i known = _mm512_mask_blend_epi8(left, _mm512_set1_epi8(-1), scales);
    const __m512i pair = _mm512_min_epu8(known, _mm512_ror_epi32(known, 8));
    const __m512i least = _mm512_min_epu8(pair, _mm512_ror_epi32(pair, 16));
    const __m512i over = _mm512_sub_epi8(scales, least);
    const __mmask64 taken = _mm512_mask_cmple_epu8_mask(left, over, _mm512_set1_epi8(3));
    left &= ~taken;
    _mm512_store_si512(to.shift + at, _mm512_slli_epi16(_mm512_maskz_mov_epi8(taken, over), 4));
    _mm512_store_si512(to.mask + at, _mm512_maskz_set1_epi8(taken, 15));
    _mm512_store_si512(to.base + at,
                       _mm512_sub_epi32(_mm512_and_si512(least, _mm512_set1_epi32(255)),
                                        _mm512_set1_epi32(floor)));
}

// Plans the passes over a strip of `rows` rows of weights; rows that are not there repeat the last.
void plan_passes(const WeightRows& w, int rows, int groups, Passes& to) {
    const int blocks = w.inner / 32;
    const __m512i floor = _mm512_set1_epi8(static_cast<char>(w.floor));
    to.items = 0;
    for (int first = 0; first < groups; first += 16) {
        const int count = blocks - 4 * first;
        const __mmask64 present = count >= 64 ? ~__mmask64{0} : (__mmask64{1} << count) - 1;
        unsigned some[kMostPasses] = {}, mixed_groups = 0;
        for (int pass = 0; pass < kMostPasses; ++pass) {
            if (pass > 0 && some[pass] == 0) break;
            for (int i = 0; i < kStripRows; ++i) {
                const std::ptrdiff_t row = i < rows ? i : rows - 1;
                const __m512i scales =
                    _mm512_maskz_loadu_epi8(present, w.scales + row * blocks + 4 * first);
                __mmask64 left =
                    pass == 0 ? _mm512_mask_cmpge_epu8_mask(present, scales, floor) : to.left[i];
                const __mmask64 before = left;
                take_pass(to,
                          (pass * kStripRows + i) * static_cast<std::ptrdiff_t>(to.groups) + first,
                          scales, w.floor, left);
                to.left[i] = left;
                if (pass == 0) mixed_groups |= groups_with(present & ~(before & ~left));
                if (pass + 1 < kMostPasses) some[pass + 1] |= groups_with(left);
            }
        }
        for (int g = first; g < groups && g < first + 16; ++g) {
            const unsigned bit = 1u << (g - first);
            to.item[to.items++] =
                static_cast<std::uint16_t>(g | ((mixed_groups & bit) != 0 ? kMixed : 0));
            for (int pass = 1; pass < kMostPasses; ++pass)
                if ((some[pass] & bit) != 0)
                    to.item[to.items++] = static_cast<std::uint16_t>(g | pass << kPassBit | kMixed);
        }
    }
}

// Weights as integers times two to the power of 0 to 3: four bits of code, two of shift.
LANES __m512i shifted_weights() {
    const __m512i once = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    const __m512i twice = _mm512_add_epi8(once, once);
    const __m512i four = _mm512_add_epi8(twice, twice);
    const __m512i eight = _mm512_add_epi8(four, four);
    const __m512i low = _mm512_mask_blend_epi64(0x0c, once, twice);
    const __m512i high = _mm512_mask_blend_epi64(0xc0, four, eight);
    return _mm512_mask_blend_epi64(0xf0, low, high);
}

// The bytes of one group of a strip, as a pass takes them.
template <bool kSome>
LANES void decode_group(const WeightRows& w, int rows, int group, const Passes& passes,
                        std::ptrdiff_t at, std::int8_t* out) {
    constexpr int kNear = 256;  // bytes
    const std::ptrdiff_t ahead = kStripRows * static_cast<std::ptrdiff_t>(w.inner / 2);
    const __m512i table = shifted_weights(), nibble = _mm512_set1_epi8(15);
    const __m512i blocks = _mm512_inserti64x4(
        _mm512_castsi256_si512(_mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
                                                1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)),
        _mm256_setr_epi8(2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3,
                         3, 3, 3, 3, 3, 3, 3),
        1);
    const std::ptrdiff_t stride = w.inner / 2;
    const int left = static_cast<int>(stride) - group * 64;
    const __mmask64 present = left >= 64 ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
    const std::uint8_t* codes = w.codes + group * 64;
    for (int i = 0; i < kStripRows; ++i) {
        const __m512i code = _mm512_maskz_loadu_epi8(present, codes);
        // Strips lie one after the other: first into the second cache, then into the first.
        _mm_prefetch(reinterpret_cast<const char*>(codes + ahead), _MM_HINT_T1);
        _mm_prefetch(reinterpret_cast<const char*>(codes + kNear), _MM_HINT_T0);
        if (i + 1 < rows) codes += stride;
        const std::ptrdiff_t cell = at + static_cast<std::ptrdiff_t>(i) * passes.groups;
        const __m512i shift =
            _mm512_shuffle_epi8(_mm512_set1_epi32(static_cast<int>(passes.shift[cell])), blocks);
        const __m512i mask =
            kSome ? _mm512_shuffle_epi8(_mm512_set1_epi32(static_cast<int>(passes.mask[cell])),
                                        blocks)
                  : nibble;
        const __m512i even = _mm512_ternarylogic_epi32(code, mask, shift, 0xea);
        const __m512i odd =
            _mm512_ternarylogic_epi32(_mm512_srli_epi16(code, 4), mask, shift, 0xea);
        _mm512_store_si512(out + i * 64, _mm512_permutexvar_epi8(even, table));
        _mm512_store_si512(out + kHalfBytes + i * 64, _mm512_permutexvar_epi8(odd, table));
    }
}

LANES void decode_item(const WeightRows& w, int rows, const Passes& passes, int item,
                       std::int8_t* out) {
    const int what = passes.item[item], group = what & ((1 << kPassBit) - 1);
    const std::ptrdiff_t at =
        (what >> kPassBit & 3) * static_cast<std::ptrdiff_t>(kStripRows) * passes.groups + group;
    if ((what & kMixed) != 0)
        decode_group<true>(w, rows, group, passes, at, out);
    else
        decode_group<false>(w, rows, group, passes, at, out);
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
