#include "ashlar/data/chat_files.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "ashlar/core/error.h"
#include "ashlar/core/text.h"
#include "ashlar/data/hf/json_tokenizer.h"
#include "ashlar/data/hf/pre_tokenizer.h"
#include "ashlar/data/jinja/syntax.h"

namespace ashlar::data {
namespace {

constexpr std::string_view kConfigName = "tokenizer_config.json",
                           kTemplateName = "chat_template.jinja";
constexpr std::array<const char*, 7> kTokenNames = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};
constexpr int64_t kMaxConfigBytes = int64_t(64) << 20;

bool is_file(FileSystem& files, const std::string& path) {
  const auto info = files.stat(path, LinkPolicy::kFollow);
  return info && info->type == FileInfo::Type::kFile;
}

Json config_at(FileSystem& files, const std::string& path) {
  Json config = parse_json(read_text(files, path, kMaxConfigBytes), path, ErrorKind::kData);
  ASHLAR_REQUIRE(config.is_object(), kData, "{}: it is no JSON object", path);
  return config;
}

// "" if there is none.
std::string template_in(const Json& config, const std::string& path) {
  const Json found = config.value("chat_template", Json());
  if (found.is_null()) return "";
  if (found.is_string()) return found.get<std::string>();
  ASHLAR_REQUIRE(found.is_array(), kData, "{}: chat_template is {}; expected a string or a list",
                 path, found.type_name());
  for (const Json& named : found)
    if (named.is_object() && named.value("name", Json()) == "default" &&
        named.value("template", Json()).is_string())
      return named.at("template").get<std::string>();
  ASHLAR_FAIL(kData, "{}: none of its chat templates is named default", path);
}

// Whether a normalizer or pre-tokenizer puts a space in front of every section of a text.
bool prepends(const Json& step, const std::string& path) {
  if (!step.is_object()) return false;
  const Json type = step.value("type", Json());
  if (type == "Prepend") return true;
  if (type == "Metaspace")
    return parse_metaspace(step, path).prepend == Metaspace::Prepend::kAlways;
  for (const char* name : {"normalizers", "pretokenizers"})
    if (const Json steps = step.value(name, Json()); type == "Sequence" && steps.is_array())
      return std::ranges::any_of(steps, [&](const Json& one) { return prepends(one, path); });
  return false;
}

// A name as files give it: a string, or an object with "content".
std::string name_in(const Json& value) {
  if (value.is_object()) return name_in(value.value("content", Json()));
  return value.is_string() ? value.get<std::string>() : "";
}

}  // namespace

ChatTemplate load_chat_template(FileSystem& files, const std::string& path) {
  if (is_file(files, path))
    return {read_text(files, path, int64_t(jinja::kMaxTemplateBytes)), path};
  const std::string alone = join(path, kTemplateName), config = join(path, kConfigName);
  if (is_file(files, alone))
    return {read_text(files, alone, int64_t(jinja::kMaxTemplateBytes)), alone};
  std::string source;
  if (is_file(files, config)) source = template_in(config_at(files, config), config);
  ASHLAR_REQUIRE(!source.empty(), kData,
                 "{}: there is no chat template ({}, or chat_template in {}); name one with "
                 "--chat-template",
                 path, kTemplateName, kConfigName);
  return {source, config + " chat_template"};
}

Ordered special_token_names(FileSystem& files, const std::string& directory,
                            const Tokenizer& tokenizer) {
  Ordered names = Ordered::object();
  const std::string config = join(directory, kConfigName);
  const auto take = [&](const Json& json) {
    for (const char* name : kTokenNames)
      if (const std::string text = name_in(json.value(name, Json())); !text.empty())
        names[name] = text;
  };
  if (!directory.empty() && is_file(files, config)) {
    take(config_at(files, config));
    return names;
  }
  if (tokenizer.kind() == "tokenizer.json")
    take(parse_json(json_tokenizer_files(tokenizer).at(std::string(kConfigName)), tokenizer.name(),
                    ErrorKind::kData));
  const auto usual = [&](const char* name, const char* text, int32_t id) {
    if (id >= 0 && !names.contains(name) && tokenizer.id_of(text) == id) names[name] = text;
  };
  usual("bos_token", "<s>", tokenizer.bos_id());
  usual("eos_token", "</s>", tokenizer.eos_id());
  return names;
}

bool puts_space_behind_special_tokens(FileSystem& files, const std::string& directory) {
  const std::string path = join(directory, "tokenizer.json");
  if (directory.empty() || !is_file(files, path)) return false;
  const Json json = parse_json(read_text(files, path, kMaxConfigBytes), path, ErrorKind::kData);
  return json.is_object() && (prepends(json.value("normalizer", Json()), path) ||
                              prepends(json.value("pre_tokenizer", Json()), path));
}

SpecialTokens::SpecialTokens(const Tokenizer& tokenizer, const Ordered& names,
                             const std::vector<AddedToken>& added, bool space_behind)
    : tokenizer_(tokenizer), num_ids_(tokenizer.vocab_size()), space_behind_(space_behind) {
  // tokenizer.json names its own, and encode() reads them.
  if (tokenizer.reads_added_tokens()) return;
  const auto add = [&](const std::string& name, int32_t id) {
    const bool known =
        std::ranges::find(tokens_, name, &std::pair<std::string, int32_t>::first) != tokens_.end();
    if (name.empty() || id < 0 || known) return;
    tokens_.emplace_back(name, id);
    num_ids_ = std::max<int64_t>(num_ids_, int64_t(id) + 1);
  };
  for (const AddedToken& token : added) add(token.content, token.id);
  for (const auto& [unused, name] : names.items()) {
    const auto& text = name.get_ref<const std::string&>();
    add(text, tokenizer.id_of(text));
  }
  std::ranges::stable_sort(
      tokens_, [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
}

// Whether the tokenizer may put a space in front of the text that follows.
bool SpecialTokens::begins_section(const std::vector<int32_t>& ids) const {
  if (ids.empty() || !space_behind_) return ids.empty();
  return std::ranges::find(tokens_, ids.back(), &std::pair<std::string, int32_t>::second) !=
         tokens_.end();
}

void SpecialTokens::append(std::string_view text, std::vector<int32_t>& ids) const {
  const auto encode = [&](std::string_view part) {
    if (part.empty()) return;
    const auto more =
        begins_section(ids) ? tokenizer_.encode(part) : tokenizer_.encode_behind(ids.back(), part);
    ids.insert(ids.end(), more.begin(), more.end());
  };
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const auto token = std::ranges::find_if(
        tokens_, [&](const auto& known) { return text.substr(at).starts_with(known.first); });
    if (token == tokens_.end()) {
      ++at;
      continue;
    }
    encode(text.substr(done, at - done));
    ids.push_back(token->second);
    done = at += token->first.size();
  }
  encode(text.substr(done));
}

}  // namespace ashlar::data
