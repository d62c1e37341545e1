// Strips of 32 rows of weights as signed bytes, for tiles.
//
// Weights take a byte each: an index of four bits of code and two of shift looks up the weight
// times up to 2^3, so that blocks of a row whose scales lie within three binades add up in one
// tile. What lies further apart takes another pass.

namespace deskside::DESKSIDE_TIER {
namespace {

constexpr int kStripRows = 32;
constexpr int kTileBytes = 1024;             // 16 rows of 64 bytes
constexpr int kHalfBytes = 2 * kTileBytes;   // half a group of a strip
constexpr int kGroupBytes = 2 * kHalfBytes;  // even elements, then odd ones: low and high nibbles
constexpr int kStretch = 16;                 // groups that are planned, and added up, together
constexpr int kMostPasses = 4;               // spans of up to 14 binades, four at a time

// One pass over a stretch of a strip: which blocks of a row it adds, and shifted how far.
struct Pass {
    std::uint32_t shift[kStripRows][kStretch];  // a byte a block, its shift << 4
    std::uint32_t mask[kStripRows][kStretch];   // 0x0f in blocks that take part
    std::int32_t base[kStripRows];              // exponent of shift 0, over the floor
};

// What is decoded and multiplied at once: one group of one pass.
struct Item {
    const Pass* pass;
    int group;
    bool mixed;  // some block stays out
};

// The order of the work. Products of a run of items, those of one pass, add up.
struct Passes {
    Pass* pass;  // [stretches * kMostPasses]
    Item* item;  // [groups * kMostPasses]
    int* end;    // [stretches * kMostPasses] of a run's items
    int items;
    int runs;
};

// Groups of a stretch with some of these blocks.
LANES __mmask16 groups_with(__mmask64 blocks) {
    const __m512i set = _mm512_movm_epi8(blocks);
    return _mm512_test_epi32_mask(set, set);
}

LANES int least_byte(__m512i bytes) {
    const __m256i half =
        _mm256_min_epu8(_mm512_castsi512_si256(bytes), _mm512_extracti64x4_epi64(bytes, 1));
    const __m128i quarter =
        _mm_min_epu8(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    const __m128i words = _mm_min_epu8(quarter, _mm_srli_epi16(quarter, 8));
    return _mm_extract_epi8(_mm_minpos_epu16(words), 0);
}

// One pass over the blocks of a row: returns those that it takes.
LANES __mmask64 take_pass(Pass& to, int row, __m512i scales, int floor, __mmask64 left) {
    const int least = least_byte(_mm512_mask_blend_epi8(left, _mm512_set1_epi8(-1), scales));
    const __m512i over = _mm512_sub_epi8(scales, _mm512_set1_epi8(static_cast<char>(least)));
    const __mmask64 taken = _mm512_mask_cmple_epu8_mask(left, over, _mm512_set1_epi8(3));
    _mm512_storeu_si512(to.shift[row], _mm512_slli_epi16(_mm512_maskz_mov_epi8(taken, over), 4));
    _mm512_storeu_si512(to.mask[row], _mm512_maskz_set1_epi8(taken, 15));
    to.base[row] = least - floor;
    return taken;
}

// Plans the passes over one stretch of a strip.
void plan_stretch(const WeightRows& w, int first, int groups, Passes& to) {
    const std::ptrdiff_t blocks = w.inner / 32;
    const std::ptrdiff_t count = blocks - 4 * first;
    const __mmask64 present = count >= 64 ? ~__mmask64{0} : (__mmask64{1} << count) - 1;
    const __m512i floor = _mm512_set1_epi8(static_cast<char>(w.floor));
    __mmask64 left[kStripRows];
    for (int i = 0; i < kStripRows; ++i)
        left[i] = _mm512_mask_cmpge_epu8_mask(
            present, _mm512_maskz_loadu_epi8(present, w.scales + i * blocks + 4 * first), floor);
    for (int number = 0; number < kMostPasses; ++number) {
        Pass& pass = to.pass[to.runs];
        __mmask64 any = 0, out = 0, more = 0;
        for (int i = 0; i < kStripRows; ++i) {
            const __m512i scales =
                _mm512_maskz_loadu_epi8(present, w.scales + i * blocks + 4 * first);
            const __mmask64 taken = take_pass(pass, i, scales, w.floor, left[i]);
            left[i] &= ~taken;
            any |= taken;
            out |= ~taken;
            more |= left[i];
        }
        const unsigned some = groups_with(any), mixed = groups_with(out);
        for (int g = 0; g < kStretch && first + g < groups; ++g)
            if ((some >> g & 1) != 0)
                to.item[to.items++] = {&pass, first + g, (mixed >> g & 1) != 0};
        if (some != 0) to.end[to.runs++] = to.items;
        if (more == 0) return;
    }
}

void plan_passes(const WeightRows& w, int groups, Passes& to) {
    to.items = to.runs = 0;
    for (int first = 0; first < groups; first += kStretch) plan_stretch(w, first, groups, to);
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

// Which of four blocks each byte of a group belongs to.
LANES __m512i block_of_byte() {
    const __m512i block = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return _mm512_mullo_epi32(block, _mm512_set1_epi32(0x01010101));
}

// A constant that stays in its register: the compiler would make it anew for every row.
LANES __m512i kept(__m512i constant) {
    asm("" : "+v"(constant));
    return constant;
}

// The bytes of rows [kBegin, kEnd) of one group of a strip, as a pass takes them.
template <bool kSome, int kBegin, int kEnd>
LANES void decode_rows(const WeightRows& w, int group, const Pass& pass, std::int8_t* out) {
    const std::ptrdiff_t stride = w.inner / 2;
    const __m512i table = kept(shifted_weights()), nibble = kept(_mm512_set1_epi8(15));
    const __m512i blocks = kept(block_of_byte());
    const int left = static_cast<int>(stride) - group * 64, column = group % kStretch;
    const __mmask64 present = left >= 64 ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
    const std::uint8_t* codes = w.codes + group * 64 + kBegin * stride;
    // Of the next strip's scales, which are planned all at once, 64 bytes for 16 rows of a group.
    const std::uint8_t* const scales = w.scales + kStripRows * (stride / 16) + group * 128;
    _mm_prefetch(reinterpret_cast<const char*>(scales + kBegin * 4), _MM_HINT_T1);
#pragma GCC unroll 16
    for (int i = kBegin; i < kEnd; ++i, codes += stride) {
        const __m512i code =
            kSome ? _mm512_maskz_loadu_epi8(present, codes) : _mm512_loadu_si512(codes);
        // Strips lie one after the other: the next one into the second cache.
        _mm_prefetch(reinterpret_cast<const char*>(codes + kStripRows * stride), _MM_HINT_T1);
        const auto spread = [&](const std::uint32_t (&of)[kStripRows][kStretch]) {
            return _mm512_shuffle_epi8(_mm512_set1_epi32(static_cast<int>(of[i][column])), blocks);
        };
        const __m512i shift = spread(pass.shift), mask = kSome ? spread(pass.mask) : nibble;
        const __m512i even = _mm512_ternarylogic_epi32(code, mask, shift, 0xea);
        const __m512i odd =
            _mm512_ternarylogic_epi32(_mm512_srli_epi16(code, 4), mask, shift, 0xea);
        _mm512_store_si512(out + i * 64, _mm512_permutexvar_epi8(even, table));
        _mm512_store_si512(out + kHalfBytes + i * 64, _mm512_permutexvar_epi8(odd, table));
    }
}

template <int kBegin, int kEnd>
LANES void decode_item(const WeightRows& w, const Item& item, std::int8_t* out) {
    if (item.mixed)
        decode_rows<true, kBegin, kEnd>(w, item.group, *item.pass, out);
    else
        decode_rows<false, kBegin, kEnd>(w, item.group, *item.pass, out);
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
