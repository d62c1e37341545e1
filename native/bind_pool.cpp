// The worker pool's part of the Python module.

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "bind.hpp"
#include "pool.hpp"

namespace deskside::bind {
namespace {

std::vector<int> set_crew(const std::vector<pool::Cpus>& workers, bool caller_works, bool spin) {
    return pool::set_crew({workers, caller_works, spin});
}

void touch(Address memory, std::size_t bytes) { pool::touch(at<unsigned char>(memory), bytes); }

std::pair<std::uint64_t, std::uint64_t> waits() {
    const pool::Waits all = pool::waits();
    return {all.rounds, all.sleeps};
}

}  // namespace

void bind_pool(nb::module_& module) {
    const auto free = nb::call_guard<nb::gil_scoped_release>();
    translate<pool::WorkerLost>("LostWorkerError");
    module.def("set_threads", pool::set_threads, free,
               "Threads that share a kernel, with the caller.");
    module.def("set_crew", set_crew, free, "CPUs of each worker, whether the caller works, spin.");
    module.def("threads", pool::threads, free);
    module.def("touch", touch, free);
    module.def("scratch_growths", pool::scratch_growths);
    module.def("waits", waits, "Rounds that threads kept their core for, and times they slept.");
    module.def("set_patience", pool::set_patience, "For tests.");
    module.def("set_fault", pool::set_fault, free, "For tests.");
}

}  // namespace deskside::bind
