// Post-processors of tokenizer.json, which put special tokens around a text: TemplateProcessing,
// BertProcessing, RobertaProcessing, ByteLevel (which changes no ids), and a Sequence of them.
//
// Source  tokenizers 0.23.
// Errors  kData, "PLACE: ...", for any other type, and for two of them that add tokens.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ashlar/core/json.h"

namespace ashlar::data {

class TextTemplate {
 public:
  TextTemplate(const Json& json, const std::string& place) { add(json, place); }
  std::vector<int32_t> apply(std::span<const int32_t> ids) const;

 private:
  void add(const Json& json, const std::string& place);
  void add_template(const Json& json, const std::string& place);
  static constexpr int32_t kText = -1;
  std::vector<int32_t> items_ = {kText};  // ids, and where the text stands
  bool stated_ = false;
};

}  // namespace ashlar::data
