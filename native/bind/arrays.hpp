// Arrays that cross from Python and back, and how what does not fit is refused.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <limits>
#include <memory>
#include <stdexcept>
#include <string>

namespace tiltyard {

namespace nb = nanobind;

template <class T, size_t Dimensions>
using Array = nb::ndarray<nb::numpy, T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;
using Ids = Array<const int32_t, 1>;
using Floats = Array<const float, 1>;
using Bytes = Array<const uint8_t, 1>;

[[noreturn]] inline void refuse(const std::string& message) { throw std::invalid_argument(message); }

inline int size_of(size_t size, const char* what) {
    if (size > (size_t)std::numeric_limits<int>::max()) refuse(std::string(what) + " is too large");
    return (int)size;
}

inline void check_length(const char* name, size_t size, size_t expected) {
    if (size != expected)
        refuse(std::string(name) + " has " + std::to_string(size) + " elements; expected " +
               std::to_string(expected));
}

template <class T>
Array<T, 1> owned(std::unique_ptr<T[]> data, size_t n) {
    T* raw = data.release();
    nb::capsule owner(raw, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return Array<T, 1>(raw, {n}, owner);
}

template <class T>
Array<T, 2> owned(std::unique_ptr<T[]> data, size_t rows, size_t columns) {
    T* raw = data.release();
    nb::capsule owner(raw, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return Array<T, 2>(raw, {rows, columns}, owner);
}

}  // namespace tiltyard
