#include "engine/api/api_error.h"

#include <cstdio>
#include <exception>
#include <new>

namespace kd::api {

namespace {

// A buffer of fixed size: remembering a message must not fail.
thread_local char t_message[1024] = "";

kdtree_status status_of(ErrorCode code) {
    switch (code) {
        case ErrorCode::invalid_argument:
            return KDTREE_INVALID;
        case ErrorCode::not_found:
            return KDTREE_NOT_FOUND;
        case ErrorCode::io:
            return KDTREE_IO;
        case ErrorCode::corrupt:
            return KDTREE_CORRUPT;
        case ErrorCode::unsupported:
            return KDTREE_UNSUPPORTED;
        case ErrorCode::out_of_resources:
            return KDTREE_OUT_OF_RESOURCES;
    }
    return KDTREE_INTERNAL;
}

}  // namespace

kdtree_status fail(kdtree_status status, const char* message) noexcept {
    std::snprintf(t_message, sizeof t_message, "%s", message);
    for (char& each : t_message) {
        if (each == '\0') break;
        if (each == '\n' || each == '\r') each = ' ';  // of a path, for example
    }
    return status;
}

kdtree_status fail_with_exception() noexcept {
    try {
        throw;
    } catch (const Error& error) {
        return fail(status_of(error.code), error.what());
    } catch (const std::bad_alloc&) {
        return fail(KDTREE_OUT_OF_RESOURCES, "out of memory");
    } catch (const std::exception& error) {
        return fail(KDTREE_INTERNAL, error.what());
    } catch (...) {
        return fail(KDTREE_INTERNAL, "an exception of unknown type");
    }
}

const char* last_error() {
    return t_message;
}

void expect_pointer(const char* name, const void* value) {
    if (value == nullptr) KD_THROW(invalid_argument, "{} is NULL", name);
}

void expect_struct_bytes(const char* name, uint32_t value, size_t expected) {
    if (value != expected) {
        KD_THROW(invalid_argument, "{}.struct_bytes is {}, this library's is {}", name, value,
                 expected);
    }
}

void expect_range(const char* name, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most) {
        KD_THROW(invalid_argument, "{} is {}, must be {}..{}", name, value, least, most);
    }
}

void expect_array(const char* name, const void* pointer, int64_t count, int64_t most) {
    if (count < 0 || count > most) {
        KD_THROW(invalid_argument, "{}: a count of {}, must be 0..{}", name, count, most);
    }
    if (count > 0) expect_pointer(name, pointer);
}

}  // namespace kd::api

const char* kdtree_last_error(void) {
    return kd::api::last_error();
}

int32_t kdtree_abi(void) {
    return KDTREE_ABI;
}
