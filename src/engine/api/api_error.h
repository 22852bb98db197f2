// Statuses and messages of the C ABI: no exception leaves, and the message of a thread's last
// failed call is kept for it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/error.h"
#include "kdtree/kdtree.h"

namespace kd::api {

/// Remembers the message, in one line, and returns `status`.
kdtree_status fail(kdtree_status status, const char* message) noexcept;
/// The status of the exception being handled; its message is remembered.
kdtree_status fail_with_exception() noexcept;
const char* last_error();

/// Runs the body of a call, which returns a status.
template <class Body>
kdtree_status guarded(Body&& body) noexcept {
    try {
        return std::forward<Body>(body)();
    } catch (...) {
        return fail_with_exception();
    }
}

// Preconditions: each throws kd::Error with the name and the value.
void expect_pointer(const char* name, const void* value);
void expect_struct_bytes(const char* name, uint32_t value, size_t expected);
void expect_range(const char* name, int64_t value, int64_t least, int64_t most);
/// `count` values behind `pointer`; none: the pointer may be null.
void expect_array(const char* name, const void* pointer, int64_t count, int64_t most);

/// The struct behind a pointer whose struct_bytes fit.
template <class Struct>
const Struct& expect_struct(const char* name, const Struct* value) {
    expect_pointer(name, value);
    expect_struct_bytes(name, value->struct_bytes, sizeof(Struct));
    return *value;
}

}  // namespace kd::api
