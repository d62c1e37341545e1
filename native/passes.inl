// Strips of 16 rows of weights as signed bytes, for tiles.
//
// Weights take a byte each: an index of four bits of code and two of shift looks up the weight
// times up to 2^3, so that blocks whose scales lie within three binades add up in one tile. What
// lies further apart takes another pass over the group.

namespace deskside::DESKSIDE_TIER {
namespace {

constexpr int kStripRows = 16;
constexpr int kHalfBytes = 1024;             // a tile: half a group of a panel, or of a strip
constexpr int kGroupBytes = 2 * kHalfBytes;  // even elements, then odd ones: low and high nibbles
constexpr int kMostPasses = 4;               // spans of up to 14 binades, four at a time

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
    const std::ptrdiff_t ahead = 2 * kStripRows * static_cast<std::ptrdiff_t>(w.inner / 2);
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
        // Strips lie one after the other: two ahead into the second cache, then into the first.
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

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
