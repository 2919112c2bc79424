#include "ashlar/data/hf/json_tokenizer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "ashlar/core/fields.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/hf/added_tokens.h"
#include "ashlar/data/hf/bytes.h"
#include "ashlar/data/hf/normalizer.h"
#include "ashlar/data/hf/part_cache.h"
#include "ashlar/data/hf/pre_tokenizer.h"
#include "ashlar/data/hf/text_template.h"
#include "ashlar/data/hf/token_decoder.h"
#include "ashlar/data/hf/token_model.h"

namespace ashlar::data {
namespace {

constexpr std::string_view kHead = "ashlar tokenizer.json 1 ";
constexpr const char* kRoles[] = {"bos_token", "eos_token", "pad_token", "unk_token"};
constexpr size_t kBosRole = 0, kEosRole = 1, kPadRole = 2, kUnkRole = 3;
// The usual names of special tokens, by role; the last of the first two are DeepSeek's.
constexpr std::array<std::string_view, 7> kUsualNames[] = {
    {"<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>", "[BOS]", "[CLS]",
     "<\uFF5Cbegin\u2581of\u2581sentence\uFF5C>"},
    {"<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", "[EOS]", "[SEP]",
     "<\uFF5Cend\u2581of\u2581sentence\uFF5C>"},
    {"<pad>", "[PAD]", "<|pad|>", "<|finetune_right_pad_id|>"},
    {"<unk>", "[UNK]"}};

struct HeadAndJson {
  std::string_view head;  // JSON of the names; "" if there is none
  std::string_view json;
};

HeadAndJson parts_of(std::string_view bytes) {
  if (!bytes.starts_with(kHead)) return {"", bytes};
  const size_t end = std::min(bytes.find('\n'), bytes.size() - 1);
  return {bytes.substr(kHead.size(), end - kHead.size()), bytes.substr(end + 1)};
}

// The steps that make parts of a text for the model; each may be null.
struct TextSteps {
  TextSteps(const Json& normalizer_json, const Json& pre_tokenizer_json, const std::string& what)
      : normalizer(parse_normalizer(normalizer_json, what + ": normalizer")),
        pre_tokenizer(parse_pre_tokenizer(pre_tokenizer_json, what + ": pre_tokenizer")) {}
  std::unique_ptr<TextNormalizer> normalizer;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
};

// The step, or the sequence of steps, without what puts a space in front of a text.  Pre-tokenizers
// behind the first get parts of the text, and what they put in front of these stays.
Json without_prefix(Json step) {
  if (!step.is_object()) return step;
  if (const auto parts = step.find("normalizers"); parts != step.end())
    for (Json& part : *parts) part = without_prefix(std::move(part));
  if (const auto parts = step.find("pretokenizers"); parts != step.end() && !parts->empty())
    parts->front() = without_prefix(std::move(parts->front()));
  const Json type = step.at("type");
  if (type == "Prepend") return nullptr;
  if (type == "Metaspace") step["prepend_scheme"] = "never";
  if (step.contains("add_prefix_space")) step["add_prefix_space"] = false;
  return step;
}

// The members of tokenizer.json, read once.
struct TokenizerParts {
  TokenizerParts(const Json& json, const std::string& what)
      : steps(json.value("normalizer", Json()), json.value("pre_tokenizer", Json()), what),
        inside(without_prefix(json.value("normalizer", Json())),
               without_prefix(json.value("pre_tokenizer", Json())), what),
        model(parse_token_model(json.value("model", Json()), what + ": model")),
        added(json.value("added_tokens", Json()), model->vocabulary(), steps.normalizer.get(),
              what + ": added_tokens"),
        text_template(json.value("post_processor", Json()), what + ": post_processor"),
        decoder(parse_token_decoder(json.value("decoder", Json()), what + ": decoder")) {}

  // Whether the texts on the two sides of a space between letters of ASCII are encoded
  // independently.
  bool splits_words() const {
    const std::string_view border = inside.normalizer ? inside.normalizer->word_border() : " ";
    if (border.empty() || added.touch_words()) return false;
    if (inside.pre_tokenizer) return border == " " && inside.pre_tokenizer->splits_words();
    return model->borders() && model->borders()->end_words();
  }

  TextSteps steps;
  TextSteps inside;  // for text that goes on where an earlier part ended
  std::unique_ptr<TokenModel> model;
  AddedTokens added;
  TextTemplate text_template;
  std::unique_ptr<TokenDecoder> decoder;
};

Json parse_file(std::string_view text, const std::string& what) {
  Json json = parse_json(text, what, ErrorKind::kData);
  const Fields fields(json, what, ErrorKind::kData);
  fields.only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
               "post_processor", "decoder", "model"});
  if (fields.has("version") && fields.text("version") != "1.0")
    fields.fail("version is {}; this program reads 1.0", fields.text("version"));
  return json;
}

class JsonTextStream : public TextStream {
 public:
  JsonTextStream(const TokenizerParts& parts, const std::string& name, bool skip_special)
      : parts_(parts), name_(name), skip_(skip_special), tokens_(parts.decoder->stream()) {}
  std::string push(int32_t id) override {
    ASHLAR_REQUIRE(id >= 0, kData, "{}: token id {} is negative", name_, id);
    const AddedTokens::Token* added = parts_.added.find(id);
    const std::string* text = added ? &added->normalized : parts_.model->vocabulary().text_of(id);
    // The library, too, shows nothing of an id that it does not know.
    if (!text || (skip_ && parts_.added.is_special(*text))) return "";
    return tokens_->push(*text);
  }
  std::string finish() override { return tokens_->finish(); }

 private:
  const TokenizerParts& parts_;
  const std::string& name_;
  bool skip_;
  std::unique_ptr<TokenStream> tokens_;
};

class JsonTokenizer : public Tokenizer {
 public:
  JsonTokenizer(std::string bytes, const std::string& what)
      : name_(what), parts_(parse_file(parts_of(bytes).json, what), what) {
    const std::string_view head = parts_of(bytes).head;
    const Json names = head.empty() ? Json::object() : parse_json(head, what, ErrorKind::kData);
    Ordered stated = Ordered::object();
    for (size_t role = 0; role < std::size(kRoles); ++role) {
      roles_[role] = id_of_role(role, names);
      const std::string* text = token_text(roles_[role]);
      stated[kRoles[role]] = text ? Ordered(*text) : Ordered();
    }
    bytes_ = fmt::format("{}{}\n{}", kHead, one_line(stated), parts_of(bytes).json);
  }

  std::string_view kind() const override { return "tokenizer.json"; }
  const std::string& name() const override { return name_; }
  int64_t vocab_size() const override {
    return std::max(parts_.model->vocabulary().end_id(), parts_.added.end_id());
  }
  int32_t eos_id() const override { return roles_[kEosRole]; }
  int32_t bos_id() const override { return roles_[kBosRole]; }
  int32_t unk_id() const override { return roles_[kUnkRole]; }
  int32_t pad_id() const override {
    return roles_[kPadRole] >= 0 ? roles_[kPadRole] : roles_[kEosRole];
  }
  const std::string& bytes() const override { return bytes_; }
  LeadingSpace leading_space() const override { return LeadingSpace::kKeep; }
  bool starts_word(int32_t) const override { return false; }
  bool reads_added_tokens() const override { return true; }

  int32_t id_of(std::string_view name) const override {
    if (const auto* token = parts_.added.find(std::string(name))) return token->id;
    return parts_.model->vocabulary().id_of(name);
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    return encode_from(parts_.steps, text, /*begins=*/true);
  }

  size_t independent_part(std::string_view text) const override {
    if (!parts_.splits_words()) return 0;
    const auto is_letter = [&](size_t at) {
      const char lower = char(text[at] | 0x20);
      return lower >= 'a' && lower <= 'z';
    };
    for (size_t at = text.size(); at-- > 2;)
      if (text[at - 1] == ' ' && is_letter(at) && is_letter(at - 2)) return at - 1;
    return 0;
  }

  std::vector<int32_t> encode_more(std::string_view text) const override {
    return encode_from(parts_.inside, text, /*begins=*/false);
  }

  std::vector<int32_t> encode_behind(int32_t before, std::string_view text) const override {
    return encode_from(parts_.added.find(before) ? parts_.steps : parts_.inside, text,
                       /*begins=*/false);
  }

  std::vector<int32_t> encode_with_special(std::string_view text) const override {
    return parts_.text_template.apply(encode(text));
  }

  std::string piece(int32_t id) const override {
    ASHLAR_REQUIRE(id >= 0 && id < vocab_size(), kData,
                   "{}: token id {} is outside its vocabulary; expected 0 to {}", name_, id,
                   vocab_size() - 1);
    const std::string* text = token_text(id);
    if (!text || id == bos_id() || id == eos_id() || id == pad_id()) return "";
    const AddedTokens::Token* added = parts_.added.find(id);
    return parts_.decoder->piece(added ? added->normalized : *text);
  }

  std::unique_ptr<TextStream> text_stream(bool skip_special) const override {
    return std::make_unique<JsonTextStream>(parts_, name_, skip_special);
  }

 private:
  const std::string* token_text(int32_t id) const {  // null: there is no such id
    const AddedTokens::Token* added = parts_.added.find(id);
    return added ? &added->content : parts_.model->vocabulary().text_of(id);
  }

  int32_t id_of_role(size_t role, const Json& names) const {
    const Fields fields(names, name_, ErrorKind::kData);
    if (const char* key = kRoles[role]; fields.has(key)) {
      if (fields.at(key).is_null()) return -1;
      const int32_t id = id_of(fields.text(key));
      if (id < 0) fields.fail("the {} is {}, which is no token of it", key, shown(fields.at(key)));
      return id;
    }
    if (role == kUnkRole && parts_.model->unk_id() >= 0) return parts_.model->unk_id();
    for (const std::string_view name : kUsualNames[role])
      if (const auto* token = parts_.added.find(std::string(name)); token && token->special)
        return token->id;
    return -1;
  }

  // first: the steps of the text up to its first added token.
  std::vector<int32_t> encode_from(const TextSteps& first, std::string_view text,
                                   bool begins) const {
    std::string repaired;
    if (check_utf8(text).num_invalid > 0) text = repaired = replace_invalid_utf8(text);
    std::vector<int32_t> ids;
    ids.reserve(text.size() / 3);
    PartCaches::Lease cache(caches_);
    parts_.added.split(
        text, AddedTokens::Stage::kRaw, [&](std::string_view part, int32_t id, bool is_first) {
          if (id >= 0)
            ids.push_back(id);
          else
            encode_raw(is_first ? first : parts_.steps, part, begins && is_first, *cache, ids);
        });
    return ids;
  }

  // text: not empty.
  void encode_raw(const TextSteps& steps, std::string_view text, bool begins, PartCache& cache,
                  std::vector<int32_t>& ids) const {
    std::string normalized;
    if (steps.normalizer) {
      normalized = text;
      size_t origin = begins ? code_point_at(text, 0).length : 0;
      steps.normalizer->apply(normalized, origin);
      begins = origin > 0;
      text = normalized;
    }
    parts_.added.split(
        text, AddedTokens::Stage::kNormalized, [&](std::string_view part, int32_t id, bool first) {
          if (id >= 0) return ids.push_back(id);
          const TextSteps& of_part = first ? steps : parts_.steps;
          if (!of_part.pre_tokenizer) return encode_part(part, cache, ids);
          of_part.pre_tokenizer->split(part, begins && first, [&](std::string_view word, bool) {
            encode_part(word, cache, ids);
          });
        });
  }

  void encode_part(std::string_view part, PartCache& cache, std::vector<int32_t>& ids) const {
    const PieceBorders* borders = parts_.model->borders();
    if (part.size() <= PartCache::kMostBytes || !borders)
      return encode_between_borders(part, cache, ids);
    borders->for_each_part(
        part, [&](std::string_view inner) { encode_between_borders(inner, cache, ids); });
  }

  void encode_between_borders(std::string_view part, PartCache& cache,
                              std::vector<int32_t>& ids) const {
    if (part.size() > PartCache::kMostBytes) return parts_.model->encode(part, ids);
    if (const auto known = cache.find(part).ids; !known.empty()) {
      ids.insert(ids.end(), known.begin(), known.end());
      return;
    }
    const size_t before = ids.size();
    parts_.model->encode(part, ids);
    cache.add(part, std::span(ids).subspan(before));
  }

  std::string name_, bytes_;
  TokenizerParts parts_;
  int32_t roles_[std::size(kRoles)] = {};
  mutable PartCaches caches_;
};

}  // namespace

bool is_json_tokenizer(std::string_view bytes) {
  return bytes.starts_with(kHead) || bytes.starts_with('{');
}

std::unique_ptr<Tokenizer> parse_json_tokenizer(std::string bytes, const std::string& what) {
  return std::make_unique<JsonTokenizer>(std::move(bytes), what);
}

std::string with_roles(std::string tokenizer_json, const std::map<std::string, std::string>& others,
                       const std::string& place) {
  Ordered names = Ordered::object();
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const auto file = others.find(name);
    if (file == others.end()) continue;
    const std::string path = join(place, name);
    const Json json = parse_json(file->second, path, ErrorKind::kData);
    const Fields fields(json, path, ErrorKind::kData);
    for (const char* role : kRoles) {
      if (names.contains(role) || !fields.has(role)) continue;
      // "<s>" or {"content": "<s>", ...}; null says that there is none.
      const Json& token = fields.at(role);
      names[role] = token.is_object() ? token.value("content", Json()) : token;
      if (!names[role].is_null() && !names[role].is_string())
        fields.fail("{} is {}; expected the text of a token", role, shown(token));
    }
  }
  return fmt::format("{}{}\n{}", kHead, one_line(names), tokenizer_json);
}

std::string with_roles_beside(FileSystem& files, const std::string& path,
                              std::string tokenizer_json) {
  constexpr int64_t kMaxBytes = int64_t(16) << 20;
  std::map<std::string, std::string> others;
  const std::string place = parent_of(path);
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"})
    if (const auto info = files.stat(join(place, name), LinkPolicy::kFollow);
        info && info->type == FileInfo::Type::kFile)
      others[name] = read_text(files, join(place, name), kMaxBytes);
  return with_roles(std::move(tokenizer_json), others, place);
}

std::map<std::string, std::string> json_tokenizer_files(const Tokenizer& tokenizer) {
  const HeadAndJson parts = parts_of(tokenizer.bytes());
  Ordered config = Ordered::parse(parts.head);
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  return {{"tokenizer.json", std::string(parts.json)},
          {"tokenizer_config.json", config.dump(2) + "\n"}};
}

}  // namespace ashlar::data
