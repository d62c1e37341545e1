// The part of the Python module by which ranks exchange what they computed.

#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <vector>

#include "bind.hpp"
#include "exchange.hpp"

namespace deskside::bind {
namespace {

// A rank's place among others, as Python holds it: distributed/room.py says what the numbers mean.
struct Seat {
    exchange::Room room;
    int rank;
};

// How many records of `numbers` numbers each a list holds.
int records(const std::vector<std::size_t>& list, std::size_t numbers) {
    const std::size_t count = list.size() / numbers;
    if (count > exchange::kMostParts)
        throw std::invalid_argument("too many parts for one exchange");
    return static_cast<int>(count);
}

exchange::Part part(const std::size_t* numbers) {
    return {at<const unsigned char>(numbers[0]), numbers[1], numbers[2]};
}

// `parts` holds three numbers each: an address, bytes, and where in the place they go.
bool exchange_parts(const Seat& seat, std::uint64_t turn, const std::vector<std::size_t>& parts,
                    bool writes, int first, int last, double spin_seconds, double seconds) {
    exchange::Part listed[exchange::kMostParts];
    const int count = records(parts, 3);
    for (int i = 0; i < count; ++i) listed[i] = part(&parts[3 * i]);
    return exchange::pass(
        seat.room,
        {seat.rank, static_cast<std::uint32_t>(turn), writes, first, last, listed, count},
        spin_seconds, seconds);
}

// `terms` holds five numbers each: those of a part, an address for the sum, bytes of a number.
bool total_parts(const Seat& seat, std::uint64_t turn, const std::vector<std::size_t>& terms,
                 double spin_seconds, double seconds) {
    exchange::Term listed[exchange::kMostParts];
    const int count = records(terms, 5);
    for (int i = 0; i < count; ++i)
        listed[i] = {part(&terms[5 * i]), at<unsigned char>(terms[5 * i + 3]), terms[5 * i + 4]};
    return exchange::total(seat.room, seat.rank, static_cast<std::uint32_t>(turn), listed, count,
                           spin_seconds, seconds);
}

}  // namespace

void bind_exchange(nb::module_& module) {
    nb::class_<Seat>(module, "Seat")
        .def("__init__",
             [](Seat* seat, Address memory, std::size_t line, std::size_t place, int ranks,
                int rank) {
                 if (ranks > exchange::kMostRanks)
                     throw std::invalid_argument("too many ranks for one exchange");
                 new (seat) Seat{{at<unsigned char>(memory), line, place, ranks}, rank};
             })
        .def("exchange", exchange_parts, nb::call_guard<nb::gil_scoped_release>(),
             "Pass parts to other ranks and wait for theirs; false when the seconds are over.")
        .def("total", total_parts, nb::call_guard<nb::gil_scoped_release>(),
             "Add parts of all ranks, in their order; false when the seconds are over.");
}

}  // namespace deskside::bind
