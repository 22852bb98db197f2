// What the tests of the C ABI share: an engine on the tiny model, requests with the fields every
// one has, streams polled to their end.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kdtree/kdtree.h"
#include "support/engine_support.h"

namespace kd {

struct FreeAbi {
    void operator()(kdtree_engine* engine) const { kdtree_engine_free(engine); }
    void operator()(kdtree_delta* delta) const { kdtree_delta_free(delta); }
    void operator()(kdtree_result* result) const { kdtree_result_free(result); }
};
using AbiEngine = std::unique_ptr<kdtree_engine, FreeAbi>;
using AbiDelta = std::unique_ptr<kdtree_delta, FreeAbi>;
using AbiResult = std::unique_ptr<kdtree_result, FreeAbi>;

template <class Struct>
Struct zeroed() {
    Struct value{};
    value.struct_bytes = sizeof(Struct);
    return value;
}

inline kdtree_options tiny_options() {
    auto options = zeroed<kdtree_options>();
    options.model = tiny_model_path().c_str();
    options.threads = 1;
    options.max_running_requests = 2;
    options.max_draft_tokens = 8;
    return options;
}

inline AbiEngine create(const kdtree_options& options) {
    kdtree_engine* engine = nullptr;
    EXPECT_EQ(kdtree_engine_create(&options, &engine), KDTREE_OK) << kdtree_last_error();
    return AbiEngine(engine);
}

/// Points into `prompt`.
inline kdtree_request request_of(const std::vector<int32_t>& prompt, int32_t max_tokens) {
    auto request = zeroed<kdtree_request>();
    request.sampling.struct_bytes = sizeof request.sampling;
    request.prompt_ids = prompt.data();
    request.prompt_id_count = static_cast<int64_t>(prompt.size());
    request.max_tokens = max_tokens;
    request.draft_tokens = 4;
    return request;
}

inline kdtree_request_id submit(kdtree_engine* engine, const kdtree_request& request) {
    kdtree_request_id id = 0;
    EXPECT_EQ(kdtree_submit(engine, &request, &id, 1), KDTREE_OK) << kdtree_last_error();
    return id;
}

/// Steps until nothing is left and returns the request's only delta.
inline AbiDelta run_to_end(kdtree_engine* engine, kdtree_request_id id) {
    for (int32_t ran = 1; ran != 0;) {
        EXPECT_EQ(kdtree_step(engine, &ran), KDTREE_OK) << kdtree_last_error();
    }
    kdtree_delta* delta = nullptr;
    EXPECT_EQ(kdtree_poll(engine, id, 0, &delta), KDTREE_OK) << kdtree_last_error();
    return AbiDelta(delta);
}

inline std::vector<int32_t> ids_of(const kdtree_delta& delta) {
    return {delta.ids, delta.ids + delta.id_count};
}

}  // namespace kd
