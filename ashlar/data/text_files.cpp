#include "ashlar/data/text_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "ashlar/core/error.h"
#include "ashlar/core/fields.h"
#include "ashlar/core/json.h"
#include "ashlar/core/text.h"
#include "ashlar/data/tokenizer_members.h"

namespace ashlar::data {
namespace {

constexpr const char* kTokenizerJson = "tokenizer.json";
constexpr const char* kConfigJson = "tokenizer_config.json";
constexpr const char* kSpecialJson = "special_tokens_map.json";
constexpr const char* kAddedJson = "added_tokens.json";
constexpr int64_t kMostIds = INT32_MAX;

// tokenizer.json without its model, of which only the largest id is kept.
struct TokenizerJson {
  Json rest;
  int64_t model_ids = 0;
};

TokenizerJson parse_tokenizer_json(const std::string& text, const std::string& what) {
  using Event = Json::parse_event_t;
  TokenizerJson out;
  bool in_model = false, in_vocab = false;
  int64_t rows = 0;  // of a vocabulary that is a list: [piece, score] each
  const auto keep = [&](int depth, Event event, Json& value) {
    if (event == Event::key && depth == 1) in_model = value == "model";
    if (event == Event::key && depth == 2) in_vocab = in_model && value == "vocab";
    if (!in_model || depth < 2) return true;
    if (in_vocab && depth == 2) return true;  // else the parser would not show what is in it
    if (in_vocab && depth == 3 && event == Event::array_start) ++rows;
    if (in_vocab && depth == 3 && event == Event::value)
      if (const auto id = integer_of(value); id && *id < kMostIds)
        out.model_ids = std::max(out.model_ids, *id + 1);
    return false;
  };
  try {
    out.rest = Json::parse(text, keep);
  } catch (const Json::exception& error) {
    ASHLAR_FAIL(kData, "{}: not valid JSON: {}", what, printable(error.what()));
  }
  out.model_ids = std::max(out.model_ids, rows);
  return out;
}

class Reader {
 public:
  Reader(const NamedFiles& files, const Tokenizer* tokenizer, const std::string& place)
      : files_(files), tokenizer_(tokenizer), place_(place) {}

  TextFiles read() {
    if (tokenizer_) out_.num_ids = tokenizer_->vocab_size();
    const Json config = parsed(kConfigJson);
    const bool has_json = files_.contains(kTokenizerJson);
    Json post_processor;
    if (has_json) {
      TokenizerJson json = parse_tokenizer_json(files_.at(kTokenizerJson), path(kTokenizerJson));
      Fields(json.rest, path(kTokenizerJson), ErrorKind::kData);  // an object
      out_.num_ids = std::max(out_.num_ids, json.model_ids);
      read_added(json.rest.value("added_tokens", Json::array()));
      post_processor = json.rest.value("post_processor", Json());
    }
    read_added_by_id(config);
    read_added_by_name(parsed(kAddedJson));
    out_.splits_added = config.value("split_special_tokens", Json()) == true;
    out_.bos_id = named_bos(config, parsed(kSpecialJson));
    has_json ? follow_post_processor(post_processor) : follow_config(config);
    name_what_differs(config, has_json);
    if (const auto names = unfollowed_members(config); !names.empty())
      out_.notes.push_back(
          fmt::format("{}: not followed: {}", path(kConfigJson), fmt::join(names, ", ")));
    for (const auto& [id, content] : added_) out_.added.push_back({id, content});
    return std::move(out_);
  }

 private:
  std::string path(const char* name) const { return join(place_, name); }

  Json parsed(const char* name) const {
    const auto file = files_.find(name);
    if (file == files_.end()) return Json::object();
    Json json = parse_json(file->second, path(name), ErrorKind::kData);
    Fields(json, path(name), ErrorKind::kData);  // an object
    return json;
  }

  void add(const char* file, const Json& id, const Json& content) {
    const auto number = integer_of(id);
    ASHLAR_REQUIRE(number && *number >= 0 && *number < kMostIds && content.is_string(), kData,
                   "{}: the added token {} has the id {}; expected a text and a number", path(file),
                   shown(content), shown(id));
    added_[int32_t(*number)] = content.get<std::string>();
    out_.num_ids = std::max(out_.num_ids, *number + 1);
  }

  // [{"id": 2, "content": "</s>", ...}, ...]
  void read_added(const Json& tokens) {
    for (const Json& token : tokens) {
      const Fields fields(token, path(kTokenizerJson) + ": added_tokens", ErrorKind::kData);
      add(kTokenizerJson, fields.at("id"), fields.at("content"));
    }
  }

  // {"added_tokens_decoder": {"2": {"content": "</s>", ...}, ...}}
  void read_added_by_id(const Json& config) {
    const Json tokens = config.value("added_tokens_decoder", Json());
    if (tokens.is_null()) return;
    Fields(tokens, path(kConfigJson) + ": added_tokens_decoder", ErrorKind::kData);  // an object
    for (const auto& [id, token] : tokens.items())
      add(kConfigJson, Json::parse(id, nullptr, false),
          token.is_object() ? token.value("content", Json()) : token);
  }

  // {"<|im_end|>": 32000, ...}
  void read_added_by_name(const Json& tokens) {
    for (const auto& [content, id] : tokens.items()) add(kAddedJson, id, content);
  }

  // The text of a token: "<s>" or {"content": "<s>", ...}; nullopt: none is stated.
  std::optional<std::string> text_of(const Json& json, const char* member, const char* file) const {
    Json token = json.value(member, Json());
    if (token.is_object()) token = token.value("content", Json());
    if (token.is_null()) return std::nullopt;
    ASHLAR_REQUIRE(token.is_string(), kData, "{}: {} is {}; expected the text of a token",
                   path(file), member, shown(token));
    return token.get<std::string>();
  }

  int32_t id_of(const std::string& content) const {
    for (const auto& [id, added] : added_)
      if (added == content) return id;
    return tokenizer_ ? tokenizer_->id_of(content) : -1;
  }

  int32_t named_bos(const Json& config, const Json& special) const {
    auto text = text_of(config, "bos_token", kConfigJson);
    if (!text && !config.contains("bos_token")) text = text_of(special, "bos_token", kSpecialJson);
    if (text) return id_of(*text);
    const bool none = config.contains("bos_token");
    return none || !tokenizer_ ? -1 : tokenizer_->bos_id();
  }

  void follow_config(const Json& config) {
    const Json add = config.value("add_bos_token", Json());
    if (add.is_null()) return;
    ASHLAR_REQUIRE(add.is_boolean(), kData, "{}: add_bos_token is {}; expected true or false",
                   path(kConfigJson), shown(add));
    out_.said_by = path(kConfigJson) + ": add_bos_token";
    out_.adds_bos = add.get<bool>();
    if (!out_.adds_bos) return;
    const auto text = text_of(config, "bos_token", kConfigJson);
    ASHLAR_REQUIRE(
        out_.bos_id >= 0 || !text, kData,
        "{}: add_bos_token is true but bos_token {} is neither in tokenizer.model nor an added "
        "token; take the files of one tokenizer",
        path(kConfigJson), shown(Json(*text)));
    out_.adds_bos = out_.bos_id >= 0;  // transformers adds none where none is named
  }

  // {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": ...}],
  // "special_tokens": {"<s>": {"ids": [1]}}}, or a Sequence of processors with one of these.
  void follow_post_processor(const Json& processor) {
    if (processor.is_null()) return;
    const std::string place = path(kTokenizerJson) + ": post_processor";
    const Fields fields(processor, place, ErrorKind::kData);
    const std::string& type = fields.text("type");
    if (type == "Sequence") {
      for (const Json& each : fields.array("processors")) follow_post_processor(each);
    } else if (type == "TemplateProcessing") {
      follow_template(fields, place);
    } else if (type != "ByteLevel") {  // which moves offsets alone
      out_.notes.push_back(fmt::format("{} of type {} is not followed", place, printable(type)));
    }
  }

  void follow_template(const Fields& fields, const std::string& place) {
    std::vector<int32_t> before, after;
    bool text = false;
    for (const Json& item : fields.array("single")) {
      text = text || item.contains("Sequence");
      if (!item.contains("SpecialToken")) continue;
      const Fields token = Fields(item, place, ErrorKind::kData).object("SpecialToken");
      const Fields special = fields.object("special_tokens").object(token.text("id"));
      for (const int64_t id : special.counts("ids"))
        (text ? after : before).push_back(int32_t(std::min(id, kMostIds)));
    }
    if (!after.empty())
      out_.notes.push_back(
          fmt::format("{} puts the ids {} behind a text, which is not followed", place, after));
    if (before.size() > 1)
      out_.notes.push_back(fmt::format(
          "{} puts the ids {} in front of a text; only the first is followed", place, before));
    if (before.empty()) return;
    out_.said_by = place;
    out_.adds_bos = true;
    out_.bos_id = before[0];
  }

  // Other programs, and transformers before 5, go by add_bos_token.
  void name_what_differs(const Json& config, bool has_json) {
    const Json add = config.value("add_bos_token", Json());
    if (has_json && out_.said_by.empty()) out_.said_by = path(kTokenizerJson) + ": post_processor";
    if (has_json && add.is_boolean() && add.get<bool>() != out_.adds_bos)
      out_.notes.push_back(
          fmt::format("{}: add_bos_token is {}, but the post_processor of {} puts {} in front of a "
                      "text; the latter is followed, as by transformers 5",
                      path(kConfigJson), shown(add), kTokenizerJson,
                      out_.adds_bos ? fmt::format("id {}", out_.bos_id) : "nothing"));
  }

  const NamedFiles& files_;
  const Tokenizer* tokenizer_;
  const std::string& place_;
  std::map<int32_t, std::string> added_;
  TextFiles out_;
};

}  // namespace

TextFiles read_text_files(const NamedFiles& files, const Tokenizer* tokenizer,
                          const std::string& place, std::optional<int32_t> trained_bos) {
  TextFiles said = Reader(files, tokenizer, place).read();
  if (!said.said_by.empty() || !trained_bos) return said;
  said.said_by = "the data that trained it";
  said.adds_bos = *trained_bos >= 0;
  if (said.adds_bos) said.bos_id = *trained_bos;
  return said;
}

std::string other_beginning(const Sidecar& sidecar, const TextFiles& model) {
  const int32_t wanted = model.adds_bos ? model.bos_id : -1;
  if (model.said_by.empty() || wanted == sidecar.bos_id) return "";
  const auto shown = [](int32_t id) { return id < 0 ? "nothing" : fmt::format("id {}", id); };
  return fmt::format(
      "its documents begin with {}, but texts of the model with {} ({}); prepare it again with {}",
      shown(sidecar.bos_id), shown(wanted), model.said_by, wanted < 0 ? "--no-bos" : "--bos");
}

std::map<std::string, std::string> text_file_paths(const Tokenizer& tokenizer) {
  std::map<std::string, std::string> paths;
  for (const char* name : {kTokenizerJson, kConfigJson, kSpecialJson, kAddedJson})
    paths[name] = join(parent_of(tokenizer.name()), name);
  return paths;
}

TextFiles text_files_beside(FileSystem& files, const Tokenizer& tokenizer) {
  constexpr int64_t kMaxBytes = int64_t(256) << 20;
  NamedFiles found;
  for (const auto& [name, path] : text_file_paths(tokenizer)) {
    const auto info = files.stat(path, LinkPolicy::kFollow);
    if (info && info->type == FileInfo::Type::kFile)
      found[name] = read_text(files, path, kMaxBytes);
  }
  return read_text_files(found, &tokenizer, parent_of(tokenizer.name()));
}

}  // namespace ashlar::data
