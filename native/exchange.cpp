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

}  // namespace deskside::exchange
