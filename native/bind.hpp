// What the parts of the Python module share.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <exception>

namespace nb = nanobind;

namespace deskside::bind {

using Address = std::uintptr_t;

template <class T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

// Lets an exception reach Python as one of the package's own errors.
template <class Thrown>
void translate(const char* error) {
    nb::object type = nb::module_::import_("deskside.errors").attr(error);
    nb::register_exception_translator(
        [](const std::exception_ptr& thrown, void* type) {
            try {
                std::rethrow_exception(thrown);
            } catch (const Thrown& one) {
                PyErr_SetString(static_cast<PyObject*>(type), one.what());
            }
        },
        type.release().ptr());
}

void bind_pool(nb::module_& module);
void bind_exchange(nb::module_& module);

}  // namespace deskside::bind
