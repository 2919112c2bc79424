// A second reader of safetensors headers, written apart from the first: a hand-made scanner of the
// JSON that such files hold, and the rules of the format checked in another way (a byte map of the
// data).  Returns what is wrong; "" for a valid file.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ashlar::checkpoint {

class SafetensorsValidator {
 public:
  struct Tensor {
    std::string dtype;
    std::vector<uint64_t> shape, offsets;
  };
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;
  uint64_t data_begin = 0;

  std::string validate(std::string_view file) {
    try {
      if (file.size() < 8) return "no length";
      uint64_t n = 0;
      for (int i = 0; i < 8; ++i) n += uint64_t(uint8_t(file[size_t(i)])) << (8 * i);
      if (n > 100000000 || n > file.size() - 8) return "bad length";
      data_begin = 8 + n;
      text_ = file.substr(8, n);
      at_ = 0;
      if (peek() != '{') return "no {";
      object([&](const std::string& key) {
        if (key == "__metadata__")
          object([&](const std::string& name) { metadata[name] = string(); });
        else
          tensor(key);
      });
      while (at_ < text_.size())
        if (text_[at_++] != ' ') return "text after the header";
      return check_data(file.size() - data_begin);
    } catch (const std::string& problem) {
      return problem;
    }
  }

 private:
  std::string check_data(uint64_t data_bytes) const {
    static const std::map<std::string, uint64_t> kBytes{
        {"F64", 8}, {"F32", 4}, {"BF16", 2}, {"F16", 2},  {"I64", 8}, {"I32", 4}, {"I16", 2},
        {"U16", 2}, {"U8", 1},  {"I8", 1},   {"BOOL", 1}, {"U32", 4}, {"U64", 8}};
    std::vector<bool> used(data_bytes, false);
    uint64_t count = 0;
    for (const auto& [name, tensor] : tensors) {
      if (!kBytes.contains(tensor.dtype) || tensor.offsets.size() != 2)
        return name + ": dtype or offsets";
      uint64_t bytes = kBytes.at(tensor.dtype);
      for (const uint64_t extent : tensor.shape) bytes *= extent;
      if (tensor.offsets[1] - tensor.offsets[0] != bytes || tensor.offsets[1] > data_bytes)
        return name + ": size";
      for (uint64_t i = tensor.offsets[0]; i < tensor.offsets[1]; ++i) {
        if (used[i]) return name + ": overlap";
        used[i] = true;
        ++count;
      }
    }
    return count == data_bytes ? "" : "hole";
  }

  char peek() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    if (at_ == text_.size()) throw std::string("ends early");
    return text_[at_];
  }
  void take(char c) {
    if (peek() != c) throw std::string("expected ") + c;
    ++at_;
  }
  std::string string() {
    take('"');
    std::string value;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] == '\\') ++at_;  // the tests' names need no other escapes than \" and \\ .
      value += text_[at_++];
    }
    ++at_;
    return value;
  }
  std::vector<uint64_t> numbers() {
    std::vector<uint64_t> values;
    take('[');
    while (peek() != ']') {
      if (!values.empty()) take(',');
      uint64_t value = 0;
      if (peek() < '0' || peek() > '9') throw std::string("expected a number");
      while (text_[at_] >= '0' && text_[at_] <= '9')
        value = value * 10 + uint64_t(text_[at_++] - '0');
      values.push_back(value);
    }
    take(']');
    return values;
  }
  template <typename F>
  void object(F&& member) {
    std::set<std::string> keys;
    take('{');
    while (peek() != '}') {
      if (!keys.empty()) take(',');
      const std::string key = string();
      if (!keys.insert(key).second) throw "duplicate " + key;
      take(':');
      member(key);
    }
    take('}');
  }
  void tensor(const std::string& name) {
    Tensor value;
    object([&](const std::string& key) {
      if (key == "dtype")
        value.dtype = string();
      else if (key == "shape")
        value.shape = numbers();
      else if (key == "data_offsets")
        value.offsets = numbers();
      else
        throw "unknown key " + key;
    });
    tensors[name] = value;
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace ashlar::checkpoint
