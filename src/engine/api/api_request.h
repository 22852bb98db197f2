// From the structs of the C ABI to the engine's own, every value checked.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/sampling_params.h"
#include "engine/engine.h"
#include "kdtree/kdtree.h"

namespace kd::api {

/// Longest text that is taken, in bytes.
inline constexpr int64_t kMaxTextBytes = int64_t{1} << 30;

/// The text behind a pointer: `bytes` of it, or -1: up to the zero byte.
std::string_view text_of(const char* name, const char* text, int64_t bytes);

Config config_of(const kdtree_options& options);

/// min_tokens and ignore_eos are the request's.
SamplingParams sampling_of(const kdtree_sampling& sampling);

/// Owns the user pointer of a logit mask together with all samples that use it.
class MaskOwner {
  public:
    explicit MaskOwner(const kdtree_request& request)
        : mask_(request.logit_mask),
          user_(request.logit_mask_user),
          release_(request.logit_mask_release) {}
    ~MaskOwner() {
        if (armed && release_ != nullptr) release_(user_);
    }
    MaskOwner(const MaskOwner&) = delete;
    MaskOwner& operator=(const MaskOwner&) = delete;

    /// Throws kd::Error if the callback refuses.
    void call(std::span<const int32_t> answer, std::span<uint32_t> allowed) const;

    bool armed = false;  // whether submit succeeded, so that the pointer is ours

  private:
    kdtree_logit_mask mask_;
    void* user_;
    void (*release_)(void*);
};

struct RequestCopies {
    std::vector<Request> samples;
    std::shared_ptr<MaskOwner> mask;  // null: there is none
};

/// The samples of a request, ready to be submitted and at most id_capacity. `engine` gives the
/// tokenizer; what it can serve is checked by Engine::check.
RequestCopies requests_of(const kdtree_request& request, const Engine& engine, int32_t id_capacity);

}  // namespace kd::api
