// Numbers and texts as the bytes of a message, little-endian.  A reader trusts nothing: a message
// that is too short, or longer than was read, is kComm.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "ashlar/core/error.h"

namespace ashlar::control {

static_assert(std::endian::native == std::endian::little);

class WireWriter {
 public:
  template <typename T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T>);
    put_bytes(std::as_bytes(std::span(&value, 1)));
  }
  void put(double value) { put(std::bit_cast<uint64_t>(value)); }
  void put_text(std::string_view text) { put_block(std::as_bytes(std::span(text))); }
  void put_block(std::span<const std::byte> bytes) {  // preceded by its length
    put(uint32_t(bytes.size()));
    put_bytes(bytes);
  }
  void put_bytes(std::span<const std::byte> bytes);
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, get_bytes(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string get_text() {
    const auto block = get_block();
    return {reinterpret_cast<const char*>(block.data()), block.size()};
  }
  std::span<const std::byte> get_block() { return get_bytes(get<uint32_t>()); }
  std::span<const std::byte> get_bytes(size_t count) {
    ASHLAR_REQUIRE(count <= bytes_.size(), kComm,
                   "a message ends early: {} bytes are left where {} are expected", bytes_.size(),
                   count);
    const auto taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }
  std::span<const std::byte> rest() const { return bytes_; }
  void end() const {
    ASHLAR_REQUIRE(bytes_.empty(), kComm, "a message has {} bytes too many", bytes_.size());
  }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace ashlar::control
