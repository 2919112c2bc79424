#include "ashlar/data/hf/text_template.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ashlar/core/fields.h"
#include "ashlar/data/hf/vocabulary.h"

namespace ashlar::data {
namespace {

// The id of ["[SEP]", 102].
int32_t id_of_pair(const Fields& fields, const char* key) {
  const Json& pair = fields.array(key);
  const auto id = pair.size() == 2 ? integer_of(pair[1]) : std::nullopt;
  if (!id || *id < 0 || *id >= kMostTokens)
    fields.fail("{} is {}; expected a token and its id", key, shown(pair));
  return int32_t(*id);
}

}  // namespace

void TextTemplate::add(const Json& json, const std::string& place) {
  if (json.is_null()) return;
  const Fields fields(json, place, ErrorKind::kData);
  const std::string& type = fields.text("type");
  if (type == "ByteLevel") return;
  if (type == "Sequence") {
    for (const Json& part : fields.array("processors")) add(part, place);
    return;
  }
  if (stated_) fields.fail("two parts of a Sequence add tokens; expected one");
  stated_ = true;
  if (type == "TemplateProcessing")
    add_template(json, place);
  else if (type == "BertProcessing" || type == "RobertaProcessing")
    items_ = {id_of_pair(fields, "cls"), kText, id_of_pair(fields, "sep")};
  else
    fields.fail("the type {} of a post-processor is not known", type);
}

void TextTemplate::add_template(const Json& json, const std::string& place) {
  const Fields fields(json, place, ErrorKind::kData);
  items_.clear();
  for (const Json& item : fields.array("single")) {
    const Fields one(item, place, ErrorKind::kData);
    one.only({"SpecialToken", "Sequence"});
    if (one.has("Sequence")) {
      if (one.object("Sequence").text("id") != "A")
        fields.fail("single holds the sequence {}; expected A", one.object("Sequence").text("id"));
      if (std::ranges::count(items_, kText) > 0) fields.fail("single holds the text twice");
      items_.push_back(kText);
      continue;
    }
    const Fields token =
        fields.object("special_tokens").object(one.object("SpecialToken").text("id"));
    for (const int64_t id : token.counts("ids")) {
      if (id >= kMostTokens) fields.fail("single adds the id {}; expected less", id);
      items_.push_back(int32_t(id));
    }
  }
}

std::vector<int32_t> TextTemplate::apply(std::span<const int32_t> ids) const {
  std::vector<int32_t> all;
  for (const int32_t item : items_)
    if (item == kText)
      all.insert(all.end(), ids.begin(), ids.end());
    else
      all.push_back(item);
  return all;
}

}  // namespace ashlar::data
