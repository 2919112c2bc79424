// How it works.  tokenizer.json describes a pipeline of the tokenizers library.  This file writes
// steps that together do what Tokenizer does:
//
//   encode     normalizer, pre_tokenizer, model (a vocabulary with merges or scores)
//   decode     decoder: it undoes the normalizer's steps
//   begin      post_processor: the piece before every text, if training had one
//
//   byte       pre_tokenizer ByteLevel makes a character of every byte; the model is a BPE without
//              merges, so that each character is a token
//   bpe        the normalizer maps characters and spaces; merges_of() makes rules of the scores
//   unigram    the same normalizer; hides_names() keeps "<s>" in a text plain text
//
// unstated_settings() names the settings that the library cannot reproduce.
#include "ashlar/data/hf_tokenizer.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_map>

#include "ashlar/core/error.h"
#include "ashlar/core/json.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/hf/bytes.h"
#include "ashlar/data/hf/pre_tokenizer.h"
#include "ashlar/data/sentencepiece_model.h"

namespace ashlar::data {
namespace {

using Model = SentencePieceModel;
using Algorithm = Model::Algorithm;
using Type = Model::Type;

std::string dump(const Ordered& json) {
  return json.dump(2, ' ', false, Ordered::error_handler_t::replace) + "\n";
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  while (true) {
    const size_t at = text.find(from);
    out.append(text.substr(0, at));
    if (at == std::string_view::npos) return out;
    out.append(to);
    text.remove_prefix(at + from.size());
  }
}

Ordered sequence(const char* member, Ordered parts) {
  if (parts.empty()) return nullptr;
  return {{"type", "Sequence"}, {member, std::move(parts)}};
}

Ordered replace(const char* kind, std::string_view pattern, std::string_view content) {
  return {{"type", "Replace"}, {"pattern", {{kind, pattern}}}, {"content", content}};
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t bits = 0;
    for (size_t i = 0; i < 3; ++i)
      bits = bits << 8 | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    for (size_t i = 0; i < 4; ++i)
      out += at + i <= bytes.size() ? kDigits[bits >> (18 - 6 * i) & 63] : '=';
  }
  return out;
}

// ---- the byte tokenizer

Ordered bpe_model(Ordered vocab, Ordered merges, const Ordered& unk, bool byte_fallback) {
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", unk},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", true},
          {"byte_fallback", byte_fallback},
          {"ignore_merges", false},
          {"vocab", std::move(vocab)},
          {"merges", std::move(merges)}};
}

struct Parts {
  Ordered normalizer, pre_tokenizer, decoder, model;
  std::vector<std::pair<int32_t, std::string>> special;  // ids and names
};

Ordered byte_level() {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", false}};
}

Parts byte_parts(const Tokenizer& tokenizer) {
  Parts parts;
  parts.special = {{tokenizer.pad_id(), "<pad>"},
                   {tokenizer.eos_id(), "</s>"},
                   {tokenizer.bos_id(), "<s>"},
                   {tokenizer.unk_id(), "<unk>"}};
  parts.pre_tokenizer = parts.decoder = byte_level();
  Ordered vocab = Ordered::object();
  for (const auto& [id, name] : parts.special) vocab[name] = id;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text(1, static_cast<char>(byte));
    vocab[byte_level_text(text)] = tokenizer.encode(text).front();
  }
  parts.model = bpe_model(std::move(vocab), Ordered::array(), "<unk>", false);
  return parts;
}

// ---- sentencepiece: text to pieces

// The library's unigram model finds every entry of its vocabulary in a text, even "<s>" and
// "<0x41>", where sentencepiece finds only pieces.  Normalized text has no spaces, so a space
// replaces '<' in text and pieces, and no name with a '<' is ever found.
bool hides_names(const Model& model) {
  return model.algorithm == Algorithm::kUnigram && model.escape_whitespaces;
}

Ordered normalizer_of(const Model& model) {
  Ordered steps = Ordered::array();
  if (!model.precompiled_charsmap.empty())
    steps.push_back(
        {{"type", "Precompiled"}, {"precompiled_charsmap", base64(model.precompiled_charsmap)}});
  const std::string_view space = model.escape_whitespaces ? kPieceSpace : " ";
  if (model.remove_extra_whitespaces) {
    steps.push_back(replace("Regex", "\\A +", ""));
    steps.push_back(replace("Regex", " {2,}", " "));
  }
  if (model.escape_whitespaces) steps.push_back(replace("String", " ", kPieceSpace));
  if (model.remove_extra_whitespaces)
    steps.push_back(replace("Regex", fmt::format("({})+\\z", space), ""));
  if (model.add_dummy_prefix) steps.push_back({{"type", "Prepend"}, {"prepend", space}});
  if (hides_names(model)) steps.push_back(replace("String", "<", " "));
  return sequence("normalizers", std::move(steps));
}

Ordered decoder_of(const Model& model, const Tokenizer& tokenizer) {
  Ordered steps = Ordered::array();
  // The unknown piece is shown as sentencepiece shows it.
  if (!model.byte_fallback) {
    const std::string sign = tokenizer.piece(tokenizer.unk_id());
    steps.push_back(replace("String", model.pieces[static_cast<size_t>(tokenizer.unk_id())].text,
                            model.escape_whitespaces ? replaced(sign, " ", kPieceSpace) : sign));
  }
  if (hides_names(model)) steps.push_back(replace("String", " ", "<"));
  if (model.escape_whitespaces) steps.push_back(replace("String", kPieceSpace, " "));
  if (model.byte_fallback) steps.push_back({{"type", "ByteFallback"}});
  steps.push_back({{"type", "Fuse"}});
  if (model.add_dummy_prefix)
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return sequence("decoders", std::move(steps));
}

// ---- sentencepiece: the vocabulary

bool is_piece(const Model::Piece& piece) {
  return piece.type == Type::kNormal || piece.type == Type::kUserDefined ||
         piece.type == Type::kUnused;
}

using Pieces = std::unordered_map<std::string_view, size_t>;

Pieces pieces_of(const Model& model) {
  Pieces pieces;
  for (size_t id = 0; id < model.pieces.size(); ++id)
    if (is_piece(model.pieces[id])) pieces.emplace(model.pieces[id].text, id);
  return pieces;
}

// sentencepiece joins the neighbours whose union has the highest score, the library those with the
// first rule.  So every way of cutting a piece in two is a rule, in the order of the pieces'
// scores.
Ordered merges_of(const Model& model) {
  const Pieces pieces = pieces_of(model);
  std::vector<size_t> order(model.pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](size_t id) { return model.pieces[id].score; });
  Ordered merges = Ordered::array();
  for (const size_t id : order) {
    const std::string_view text = model.pieces[id].text;
    if (!is_piece(model.pieces[id])) continue;
    for (size_t at = 0; at < text.size();) {
      at += utf8_step(text, at).length;
      const std::string_view left = text.substr(0, at), right = text.substr(at);
      if (pieces.contains(left) && pieces.contains(right)) merges.push_back({left, right});
    }
  }
  return merges;
}

Ordered bpe_of(const Model& model, const std::string& unk) {
  Ordered vocab = Ordered::object();
  // Appended: a lookup by key would go through all entries before it.
  auto& entries = vocab.get_ref<Ordered::object_t&>();
  for (size_t id = 0; id < model.pieces.size(); ++id)
    entries.emplace_back(model.pieces[id].text, id);
  Ordered merges = model.algorithm == Algorithm::kBpe ? merges_of(model) : Ordered::array();
  return bpe_model(std::move(vocab), std::move(merges), unk, model.byte_fallback);
}

Ordered unigram_of(const Model& model, int32_t unk_id) {
  double least = std::numeric_limits<double>::max();
  for (const Model::Piece& piece : model.pieces)
    if (piece.type == Type::kNormal) least = std::min<double>(least, piece.score);
  const bool hide = hides_names(model), has_angle = pieces_of(model).contains("<");
  Ordered vocab = Ordered::array();
  for (const Model::Piece& piece : model.pieces) {
    // A '<' that has no piece is spelled as its byte, and the normalizer has made it a space.
    const bool angle_byte = piece.type == Type::kByte && piece.text == "<0x3C>" && !has_angle;
    if (hide && angle_byte)
      vocab.push_back({" ", least});
    else if (hide && is_piece(piece))
      vocab.push_back({replaced(piece.text, "<", " "), piece.score});
    else
      vocab.push_back({piece.text, piece.score});
  }
  return {{"type", "Unigram"},
          {"unk_id", unk_id},
          {"vocab", std::move(vocab)},
          {"byte_fallback", model.byte_fallback}};
}

// ---- sentencepiece: what the library cannot follow

// Whether the library finds entries in a text that are not pieces.
bool finds_names(const Model& model) {
  return std::ranges::any_of(model.pieces, [&](const Model::Piece& piece) {
    if (is_piece(piece)) return false;
    if (model.algorithm == Algorithm::kUnigram) return piece.text.find('<') == std::string::npos;
    return piece.text.empty() || utf8_step(piece.text, 0).length == piece.text.size();
  });
}

// Whether pieces have characters that are not pieces themselves, from which the library cannot
// build them.
bool has_rare_characters(const Model& model) {
  const Pieces pieces = pieces_of(model);
  return std::ranges::any_of(model.pieces, [&](const Model::Piece& piece) {
    const std::string_view text = piece.text;
    for (size_t at = 0, length = 0; piece.type == Type::kNormal && at < text.size(); at += length) {
      length = utf8_step(text, at).length;
      if (!pieces.contains(text.substr(at, length))) return true;
    }
    return false;
  });
}

bool has_equal_scores(const Model& model) {
  std::vector<float> scores;
  for (const Model::Piece& piece : model.pieces)
    if (piece.type == Type::kNormal && utf8_step(piece.text, 0).length < piece.text.size())
      scores.push_back(piece.score);
  std::ranges::sort(scores);
  return std::ranges::adjacent_find(scores) != scores.end();
}

std::vector<std::string> unstated_settings(const Model& model) {
  std::vector<std::string> unstated;
  const auto add = [&](bool holds, std::string name) {
    if (holds) unstated.push_back(std::move(name));
  };
  const auto has = [&](Type type) {
    return std::ranges::any_of(model.pieces, [&](const auto& piece) { return piece.type == type; });
  };
  const bool bpe = model.algorithm == Algorithm::kBpe;
  add(model.algorithm == Algorithm::kUnigram,
      "model_type=unigram where two cuts of a text score alike but for rounding, as in runs of "
      "spaces");
  add(model.algorithm == Algorithm::kWord, "model_type=word");
  add(!model.precompiled_charsmap.empty(),
      fmt::format("normalization_rule_name={}", model.normalization_rule_name));
  add(!model.escape_whitespaces, "escape_whitespaces=false");
  add(model.treat_whitespace_as_suffix, "treat_whitespace_as_suffix=true");
  add(has(Type::kUserDefined), "user_defined_symbols");
  add(has(Type::kUnused), "unused pieces");
  add(finds_names(model), "control_symbols that a text can hold");
  add(has_rare_characters(model), "pieces with characters that are no pieces");
  add(bpe && has_equal_scores(model), "pieces with equal scores");
  return unstated;
}

Parts sentencepiece_parts(const Model& model, const Tokenizer& tokenizer) {
  Parts parts;
  for (size_t id = 0; id < model.pieces.size(); ++id)
    if (model.pieces[id].type == Type::kControl || model.pieces[id].type == Type::kUnknown)
      parts.special.emplace_back(static_cast<int32_t>(id), model.pieces[id].text);
  parts.normalizer = normalizer_of(model);
  parts.decoder = decoder_of(model, tokenizer);
  parts.model = model.algorithm == Algorithm::kUnigram
                    ? unigram_of(model, tokenizer.unk_id())
                    : bpe_of(model, model.pieces[static_cast<size_t>(tokenizer.unk_id())].text);
  return parts;
}

// ---- the files

Ordered special_tokens(const Parts& parts, const Tokenizer& tokenizer) {
  Ordered map = Ordered::object();
  const std::pair<const char*, int32_t> roles[] = {{"bos_token", tokenizer.bos_id()},
                                                   {"eos_token", tokenizer.eos_id()},
                                                   {"unk_token", tokenizer.unk_id()},
                                                   {"pad_token", tokenizer.pad_id()}};
  for (const auto& [role, role_id] : roles)
    for (const auto& [id, name] : parts.special)
      if (id == role_id) map[role] = name;
  return map;
}

Ordered added_tokens(const Parts& parts) {
  Ordered tokens = Ordered::array();
  for (const auto& [id, name] : parts.special)
    tokens.push_back({{"id", id},
                      {"content", name},
                      {"single_word", false},
                      {"lstrip", false},
                      {"rstrip", false},
                      {"normalized", false},
                      {"special", true}});
  return tokens;
}

// Adds a special piece before every text.
Ordered post_processor(const Parts& parts, int32_t bos_id) {
  const auto found =
      std::ranges::find(parts.special, bos_id, &std::pair<int32_t, std::string>::first);
  if (found == parts.special.end()) return nullptr;
  const std::string& bos = found->second;
  const auto token = [&](int type) -> Ordered {
    return {{"SpecialToken", {{"id", bos}, {"type_id", type}}}};
  };
  const auto text = [](const char* name, int type) -> Ordered {
    return {{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  return {
      {"type", "TemplateProcessing"},
      {"single", Ordered::array({token(0), text("A", 0)})},
      {"pair", Ordered::array({token(0), text("A", 0), token(1), text("B", 1)})},
      {"special_tokens",
       {{bos,
         {{"id", bos}, {"ids", Ordered::array({bos_id})}, {"tokens", Ordered::array({bos})}}}}}};
}

std::string tokenizer_json(const Parts& parts, int32_t bos_id) {
  return dump({{"version", "1.0"},
               {"truncation", nullptr},
               {"padding", nullptr},
               {"added_tokens", added_tokens(parts)},
               {"normalizer", parts.normalizer},
               {"pre_tokenizer", parts.pre_tokenizer},
               {"post_processor", post_processor(parts, bos_id)},
               {"decoder", parts.decoder},
               {"model", parts.model}});
}

std::string config_json(const Ordered& special, bool adds_bos) {
  Ordered config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                    {"add_bos_token", adds_bos},
                    {"add_eos_token", false},
                    {"clean_up_tokenization_spaces", false},
                    {"split_special_tokens", true}};  // "<s>" in a text is three characters
  config.update(special);
  return dump(config);
}

}  // namespace

Ordered word_steps() {
  const Ordered words = {{"type", "Split"},
                         {"pattern", {{"Regex", kQwenWords}}},
                         {"behavior", "Isolated"},
                         {"invert", false}};
  return sequence("pretokenizers", Ordered::array({words, byte_level()}));
}

std::string byte_level_json(const LearnedBpe& learned, int32_t num_special) {
  Parts parts;
  Ordered vocab = Ordered::object(), merges = Ordered::array();
  auto& entries = vocab.get_ref<Ordered::object_t&>();
  for (const std::string& token : learned.tokens) {
    const auto id = int32_t(entries.size());
    entries.emplace_back(token, id);
    if (id < num_special) parts.special.emplace_back(id, token);
  }
  for (const auto& [left, right] : learned.merges)
    merges.push_back({learned.tokens[size_t(left)], learned.tokens[size_t(right)]});
  parts.pre_tokenizer = word_steps();
  parts.decoder = byte_level();
  parts.model = bpe_model(std::move(vocab), std::move(merges), nullptr, false);
  return tokenizer_json(parts, -1);
}

HfTokenizer to_hf_tokenizer(const Tokenizer& tokenizer, int32_t bos_id) {
  HfTokenizer out;
  Parts parts;
  if (tokenizer.kind() == "byte") {
    parts = byte_parts(tokenizer);
  } else {
    const Model model = read_sentencepiece_model(tokenizer.bytes(), "the tokenizer");
    ASHLAR_ASSERT(static_cast<int64_t>(model.pieces.size()) == tokenizer.vocab_size());
    parts = sentencepiece_parts(model, tokenizer);
    out.unstated = unstated_settings(model);
  }
  const Ordered special = special_tokens(parts, tokenizer);
  const bool begins = !post_processor(parts, bos_id).is_null();
  if (bos_id >= 0 && !begins)
    out.unstated.push_back(
        fmt::format("the id {} in front of every text, which is no control piece", bos_id));
  out.files = {{"tokenizer.json", tokenizer_json(parts, bos_id)},
               {"tokenizer_config.json", config_json(special, begins)},
               {"special_tokens_map.json", dump(special)}};
  return out;
}

}  // namespace ashlar::data
