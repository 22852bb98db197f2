// Memory that is reserved at load and becomes resident as it is touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace kd {

/// Zeroed anonymous pages straight from the operating system, page-aligned. Throws kd::Error
/// (out_of_resources) naming the bytes when refused.
std::byte* reserve_pages(size_t bytes);
void release_pages(std::byte* pages, size_t bytes);

/// `count` zero-initialised values of a trivial type, never moved or grown.
template <class T>
class LazyArray {
  public:
    explicit LazyArray(int64_t count)
        : bytes_(static_cast<size_t>(count) * sizeof(T)),
          data_(reinterpret_cast<T*>(reserve_pages(bytes_))) {}
    ~LazyArray() { release_pages(reinterpret_cast<std::byte*>(data_), bytes_); }
    LazyArray(const LazyArray&) = delete;
    LazyArray& operator=(const LazyArray&) = delete;

    T* data() const { return data_; }
    int64_t count() const { return static_cast<int64_t>(bytes_ / sizeof(T)); }
    std::span<T> span() const { return {data_, static_cast<size_t>(count())}; }

  private:
    size_t bytes_;
    T* data_;
};

}  // namespace kd
