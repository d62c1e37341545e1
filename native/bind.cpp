// The Python module: checks nothing but the tier's name, owns nothing, releases the GIL.
//
// Tensors arrive as addresses from data_ptr(); kernels/native.py asserts shapes and types.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "dispatch.hpp"
#include "pool.hpp"

namespace nb = nanobind;
using namespace deskside;

namespace {

using Address = std::uintptr_t;

template <class T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

void linear(int kind, Address x, int rows, int inner, std::ptrdiff_t x_stride, Address codes,
            Address scales, int columns, int leaves, Address out, std::ptrdiff_t out_stride) {
    kernels().linear({static_cast<Kind>(kind), at<const float>(x), rows, inner, x_stride,
                      at<const std::uint8_t>(codes), at<const std::uint8_t>(scales), columns,
                      leaves, at<float>(out), out_stride});
}

}  // namespace

NB_MODULE(_native, module) {
    module.doc() = "Compiled CPU kernels over raw addresses; kernels/native.py is their face.";
    const auto free = nb::call_guard<nb::gil_scoped_release>();

    module.def("tiers", usable_tiers, "Instruction-set tiers that run here, widest first.");
    module.def("tier", [] { return kernels().name; }, "The tier in use.");
    module.def(
        "force_tier",
        [](const std::string& name) {
            if (!use_tier(name)) throw nb::value_error(("no such tier here: " + name).c_str());
        },
        "Use one of tiers(); the bits of every result stay the same.");
    module.def("set_threads", pool::set_threads, free, "Threads that share a kernel, with the caller.");
    module.def("threads", pool::threads);
    module.def("linear", linear, free);

    // Workers must be gone before the interpreter unloads this library.
    nb::module_::import_("atexit").attr("register")(
        nb::cpp_function([] { pool::set_threads(1); }, free));
}
