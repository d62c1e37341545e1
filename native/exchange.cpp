#include "exchange.hpp"

#include <cstring>

#include "signals.hpp"

namespace deskside::exchange {
namespace {

using signals::Word;

Word* written(const Room& room, int rank) {
    return reinterpret_cast<Word*>(room.memory + 2 * room.line * rank);
}

Word* begun(const Room& room, int rank) {
    return reinterpret_cast<Word*>(room.memory + 2 * room.line * rank + room.line);
}

unsigned char* place(const Room& room, int rank, std::uint32_t turn) {
    return room.memory + 2 * room.line * room.ranks + (2 * rank + turn % 2) * room.place;
}

template <class Number>
[[gnu::always_inline]] inline void add(const Number* const* parts, int ranks, std::size_t count,
                                       Number* out) {
    for (std::size_t i = 0; i < count; ++i) {
        Number sums[kMostRanks];
        for (int rank = 0; rank < ranks; ++rank) sums[rank] = parts[rank][i];
        for (int left = ranks; left > 1; left = (left + 1) / 2) {
            for (int j = 0; j < left / 2; ++j) sums[j] = sums[2 * j] + sums[2 * j + 1];
            if (left % 2 != 0) sums[left / 2] = sums[left - 1];
        }
        out[i] = sums[0];
    }
}

template <class Number>
void add_term(const Room& room, std::uint32_t turn, const Term& term) {
    const Number* parts[kMostRanks];
    for (int rank = 0; rank < room.ranks; ++rank)
        parts[rank] = reinterpret_cast<const Number*>(place(room, rank, turn) + term.part.offset);
    const std::size_t count = term.part.count / sizeof(Number);
    Number* const out = reinterpret_cast<Number*>(term.sum);
    switch (room.ranks) {  // constants, for loops that unroll
        case 2:
            return add(parts, 2, count, out);
        case 4:
            return add(parts, 4, count, out);
        default:
            return add(parts, room.ranks, count, out);
    }
}

}  // namespace

bool pass(const Room& room, const Turn& turn, double spin_seconds, double seconds) {
    signals::post(begun(room, turn.rank), turn.number);
    if (turn.writes) {
        for (int rank = 0; rank < room.ranks; ++rank)
            if (!signals::wait(begun(room, rank), turn.number - 1, spin_seconds, seconds))
                return false;
        unsigned char* const own = place(room, turn.rank, turn.number);
        for (int i = 0; i < turn.count; ++i)
            std::memcpy(own + turn.parts[i].offset, turn.parts[i].bytes, turn.parts[i].count);
        signals::post(written(room, turn.rank), turn.number);
    }
    for (int rank = turn.first; rank < turn.last; ++rank)
        if (!signals::wait(written(room, rank), turn.number, spin_seconds, seconds)) return false;
    return true;
}

bool total(const Room& room, int rank, std::uint32_t number, const Term* terms, int count,
           double spin_seconds, double seconds) {
    Part parts[kMostParts];
    for (int i = 0; i < count; ++i) parts[i] = terms[i].part;
    if (!pass(room, {rank, number, true, 0, room.ranks, parts, count}, spin_seconds, seconds))
        return false;
    for (int i = 0; i < count; ++i) {
        if (terms[i].size == sizeof(float))
            add_term<float>(room, number, terms[i]);
        else  // unsigned, as a sum that is too large wraps like torch's
            add_term<std::uint64_t>(room, number, terms[i]);
    }
    return true;
}

}  // namespace deskside::exchange
