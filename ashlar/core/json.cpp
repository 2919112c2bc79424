#include "ashlar/core/json.h"

#include <fmt/core.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace ashlar {
namespace {

constexpr size_t kMaxDepth = 32;

[[noreturn]] void fail_json(const std::string& what, ErrorKind kind, size_t byte,
                            std::string_view reason) {
  throw Error(kind, fmt::format("{}: not valid JSON at byte {}: {}", what, byte, reason));
}

// The library's message without its code and position, as one short line of printable ASCII.
std::string reason_of(std::string_view words) {
  if (const size_t code = words.find("] "); words.starts_with("[") && code != words.npos)
    words.remove_prefix(code + 2);
  if (const size_t place = words.find(": ");
      words.starts_with("parse error") && place != words.npos)
    words.remove_prefix(place + 2);
  std::string reason(words.substr(0, 200));
  for (char& c : reason)
    if (c < ' ' || c > '~') c = '?';
  return reason;
}

// Walks over the text and reports how far the parser has read, which the parser does not.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;
  CountingIterator(const char* place, const char** furthest) : place_(place), furthest_(furthest) {}
  reference operator*() const { return *place_; }
  CountingIterator& operator++() {
    *furthest_ = ++place_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator old = *this;
    ++*this;
    return old;
  }
  friend bool operator==(const CountingIterator& a, const CountingIterator& b) {
    return a.place_ == b.place_;
  }

 private:
  const char* place_;
  const char** furthest_;
};

// Builds the value from the parser's events, and makes the checks that the parser does not.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Builder(const char* begin, const std::string& what, ErrorKind kind, int64_t max_values)
      : begin_(begin), read_(begin), what_(what), kind_(kind), max_values_(max_values) {}
  const char** read() { return &read_; }
  Json take() { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t&) override { return put(value); }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // not in text
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (open_.back()->contains(name))
      fail_json(what_, kind_, place(), reason_of(fmt::format("the key '{}' stands twice", name)));
    slot_ = &(*open_.back())[name];
    return true;
  }
  bool parse_error(size_t byte, const std::string&,
                   const nlohmann::detail::exception& error) override {
    fail_json(what_, kind_, byte, reason_of(error.what()));
  }

 private:
  size_t place() const { return static_cast<size_t>(read_ - begin_); }

  Json& insert(Json value) {
    if (++num_values_ > max_values_)
      fail_json(what_, kind_, place(), fmt::format("more than {} values", max_values_));
    if (open_.empty()) return root_ = std::move(value);
    if (open_.back()->is_object()) return *slot_ = std::move(value);
    open_.back()->push_back(std::move(value));
    return open_.back()->back();
  }
  bool put(Json value) {
    insert(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (open_.size() == kMaxDepth)
      fail_json(what_, kind_, place(), fmt::format("nested deeper than {} levels", kMaxDepth));
    open_.push_back(&insert(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const char* begin_;
  const char* read_;
  const std::string& what_;
  ErrorKind kind_;
  const int64_t max_values_;
  int64_t num_values_ = 0;
  Json root_;
  std::vector<Json*> open_;  // from the root inwards; outer ones do not grow meanwhile
  Json* slot_ = nullptr;     // where the value after a key goes
};

}  // namespace

Json parse_json(std::string_view text, const std::string& what, ErrorKind kind,
                int64_t max_values) {
  // The parser takes a zero byte for the end and would accept anything behind it.
  if (const size_t zero = text.find('\0'); zero != text.npos)
    fail_json(what, kind, zero + 1, "a zero byte");
  Builder builder(text.data(), what, kind, max_values);
  const CountingIterator begin(text.data(), builder.read());
  const CountingIterator end(text.data() + text.size(), builder.read());
  const bool complete = Json::sax_parse(begin, end, &builder);
  ASHLAR_ASSERT(complete);  // every error throws
  return builder.take();
}

std::optional<int64_t> integer_of(const Json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(INT64_MAX))
    return std::nullopt;
  return value.get<int64_t>();
}

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true);
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
}

std::string one_line(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace ashlar
