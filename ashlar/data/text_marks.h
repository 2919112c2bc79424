// Counts characters that are usually mistakes, or mean less than they seem to, and reports them in
// one line for each kind.  Texts keep them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "ashlar/data/text_source.h"

namespace ashlar::data {

class TextMarks {
 public:
  static constexpr size_t kNumKinds = 5;

  // marks_spaces: the tokenizer's pieces use U+2581 for a space, so that it decodes as one.
  // reads_names: names of its special tokens become their ids.
  TextMarks(bool marks_spaces, bool reads_names)
      : marks_spaces_(marks_spaces), reads_names_(reads_names) {}
  // plain: plain text; otherwise a JSON string, where a carriage return is intended.
  void look_at(const TextDocument& document, bool plain, const std::string& path);
  std::vector<std::string> told() const;  // one line for each kind that was found

 private:
  struct Found {
    int64_t count = 0;
    std::string first;  // where
  };
  bool marks_spaces_, reads_names_;
  std::array<Found, kNumKinds> found_;
};

}  // namespace ashlar::data
