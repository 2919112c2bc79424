#include "ashlar/data/hf/token_decoder.h"

#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "ashlar/core/fields.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/hf/bytes.h"
#include "ashlar/data/hf/pattern.h"
#include "ashlar/data/hf/pre_tokenizer.h"

namespace ashlar::data {
namespace {

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// A step of a stream: takes tokens one by one, and hands tokens on.
class DecodeStep {
 public:
  virtual ~DecodeStep() = default;
  virtual void push(std::string token) = 0;
  virtual void finish() { next_->finish(); }
  void set_next(DecodeStep* next) { next_ = next; }

 protected:
  DecodeStep* next_ = nullptr;
};

// Makes the same of every token, except for its place.
class MapStep : public DecodeStep {
 public:
  using Map = std::function<std::string(std::string token, bool first)>;
  explicit MapStep(Map map) : map_(std::move(map)) {}
  void push(std::string token) override {
    next_->push(map_(std::move(token), std::exchange(first_, false)));
  }

 private:
  Map map_;
  bool first_ = true;
};

// All tokens as one.
class WholeStep : public DecodeStep {
 public:
  void push(std::string token) override { text_ += token; }
  void finish() override {
    next_->push(std::exchange(text_, ""));
    next_->finish();
  }

 private:
  std::string text_;
};

class ByteLevelStep : public DecodeStep {
 public:
  void push(std::string token) override {
    held_ += bytes_of_byte_level(token).value_or(token);
    const size_t complete = complete_utf8(held_);
    if (complete == 0) return;
    next_->push(replace_invalid_utf8(std::string_view(held_).substr(0, complete)));
    held_.erase(0, complete);
  }
  void finish() override {
    if (!held_.empty()) next_->push(replace_invalid_utf8(std::exchange(held_, "")));
    next_->finish();
  }

 private:
  std::string held_;  // the bytes of an unfinished character
};

// Bytes in a row are text, or, if they are not UTF-8, each becomes U+FFFD.
class ByteFallbackStep : public DecodeStep {
 public:
  void push(std::string token) override {
    if (const int byte = byte_of(token); byte >= 0) {
      held_ += char(byte);
      return;
    }
    give();
    next_->push(std::move(token));
  }
  void finish() override {
    give();
    next_->finish();
  }
  static int byte_of(std::string_view token) {  // -1: none
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
    int byte = 0;
    for (const char c : token.substr(3, 2)) {
      const char low = char(c >= 'A' && c <= 'F' ? c + 32 : c);
      const size_t digit = std::string_view("0123456789abcdef").find(low);
      if (digit == std::string::npos) return -1;
      byte = byte * 16 + int(digit);
    }
    return byte;
  }

 private:
  void give() {
    const std::string bytes = std::exchange(held_, "");
    if (bytes.empty()) return;
    if (check_utf8(bytes).num_invalid == 0) return next_->push(bytes);
    for (size_t i = 0; i < bytes.size(); ++i) next_->push(std::string(kReplacementCharacter));
  }
  std::string held_;
};

// Drops a character at most `count` times from the beginning of the text that its tokens are
// together.
class StripBeginningStep : public DecodeStep {
 public:
  StripBeginningStep(std::string character, int64_t count)
      : character_(std::move(character)), left_(count) {}
  void push(std::string token) override {
    size_t begin = 0;
    while (left_ > 0 && begin < token.size()) {
      if (!std::string_view(token).substr(begin).starts_with(character_)) {
        left_ = 0;
        break;
      }
      begin += character_.size();
      --left_;
    }
    next_->push(token.substr(begin));
  }

 private:
  std::string character_;
  int64_t left_;
};

// Original BPE marks the end of a word: a space, except after the last token.
class SuffixStep : public DecodeStep {
 public:
  explicit SuffixStep(const TextPattern& suffix) : suffix_(suffix) {}
  void push(std::string token) override {
    if (has_held_) next_->push(suffix_.replace(held_, " "));
    held_ = std::move(token);
    has_held_ = true;
  }
  void finish() override {
    if (has_held_) next_->push(suffix_.replace(held_, ""));
    has_held_ = false;
    next_->finish();
  }

 private:
  const TextPattern& suffix_;
  std::string held_;
  bool has_held_ = false;
};

class EndStep : public DecodeStep {
 public:
  explicit EndStep(std::string_view between) : between_(between) {}
  void push(std::string token) override {
    if (!std::exchange(first_, false)) text_ += between_;
    text_ += token;
  }
  void finish() override {}
  std::string take() { return std::exchange(text_, ""); }

 private:
  std::string_view between_;
  std::string text_;
  bool first_ = true;
};

class StepStream : public TokenStream {
 public:
  StepStream(std::vector<std::unique_ptr<DecodeStep>> steps, std::string_view between)
      : steps_(std::move(steps)), end_(between) {
    for (size_t i = 0; i < steps_.size(); ++i)
      steps_[i]->set_next(i + 1 < steps_.size() ? steps_[i + 1].get() : &end_);
  }
  std::string push(std::string token) override {
    first()->push(std::move(token));
    return end_.take();
  }
  std::string finish() override {
    first()->finish();
    return end_.take();
  }

 private:
  DecodeStep* first() { return steps_.empty() ? &end_ : steps_[0].get(); }
  std::vector<std::unique_ptr<DecodeStep>> steps_;
  EndStep end_;
};

// ---- what a tokenizer.json says

using MakeStep = std::function<std::unique_ptr<DecodeStep>()>;

// Drops `character` up to `start` times at the beginning of a token and `stop` times at its end.
std::string stripped(std::string token, const std::string& character, int64_t start, int64_t stop) {
  for (; start > 0 && token.starts_with(character); --start) token.erase(0, character.size());
  for (; stop > 0 && token.ends_with(character); --stop)
    token.resize(token.size() - character.size());
  return token;
}

std::string replaced_all(std::string text, std::string_view from, std::string_view to) {
  std::string out;
  size_t done = 0;
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, done)) {
    out.append(text, done, at - done).append(to);
    done = at + from.size();
  }
  return out.append(text, done);
}

// Spaces of tokenized English that are not in the text.
std::string without_english_spaces(std::string text) {
  static constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules) text = replaced_all(std::move(text), from, to);
  return text;
}

class DecoderChain : public TokenDecoder {
 public:
  DecoderChain(const Json& json, const std::string& place) {
    if (json.is_null()) between_ = " ";
    if (!json.is_null()) add(json, place);
  }
  std::unique_ptr<TokenStream> stream() const override {
    std::vector<std::unique_ptr<DecodeStep>> steps;
    for (const MakeStep& make : steps_) steps.push_back(make());
    return std::make_unique<StepStream>(std::move(steps), between_);
  }
  // Steps treat the first token and the last one in a way of their own, so that the text is that of
  // three tokens without what the outer ones add.
  std::string piece(const std::string& token) const override {
    if (byte_level_) return bytes_of_byte_level(token).value_or(token);
    if (const int byte = ByteFallbackStep::byte_of(token); byte_fallback_ && byte >= 0)
      return std::string(1, char(byte));
    const std::string other = "a", first = text_of({other});
    const size_t around = text_of({other, other}).size();
    const std::string text = text_of({other, token, other});
    return text.size() > around ? text.substr(first.size(), text.size() - around) : "";
  }

 private:
  std::string text_of(const std::vector<std::string>& tokens) const {
    const auto tokens_in = stream();
    std::string text;
    for (const std::string& token : tokens) text += tokens_in->push(token);
    return text + tokens_in->finish();
  }

  void add(const Json& json, const std::string& place) {
    const Fields fields(json, place, ErrorKind::kData);
    const std::string& type = fields.text("type");
    if (type == "Sequence") {
      for (const Json& part : fields.array("decoders")) add(part, place);
    } else if (type == "Fuse") {
      fused_ = true;
    } else if (type == "ByteLevel") {
      byte_level_ = steps_.empty();
      steps_.push_back([] { return std::make_unique<ByteLevelStep>(); });
      fused_ = true;
    } else if (type == "Strip") {
      add_strip(fields);
    } else {
      // The other steps look at whole tokens, and fused tokens are one.
      if (fused_) steps_.push_back([] { return std::make_unique<WholeStep>(); });
      add_mapping(type, json, fields, place);
    }
  }

  void add_strip(const Fields& fields) {
    const std::string character = fields.text("content");
    const int64_t start = fields.count("start"), stop = fields.count("stop");
    if (character.empty() || code_point_at(character, 0).length != character.size())
      fields.fail("content is not one character");
    if (fused_ && stop == 0) {
      steps_.push_back([=] { return std::make_unique<StripBeginningStep>(character, start); });
      return;
    }
    if (fused_) steps_.push_back([] { return std::make_unique<WholeStep>(); });
    add_map([=](std::string token, bool) {
      return stripped(std::move(token), character, start, stop);
    });
  }

  void add_map(MapStep::Map map) {
    steps_.push_back([map = std::move(map)] { return std::make_unique<MapStep>(map); });
  }

  void add_mapping(const std::string& type, const Json& json, const Fields& fields,
                   const std::string& place) {
    if (type == "ByteFallback") {
      byte_fallback_ = true;
      steps_.push_back([] { return std::make_unique<ByteFallbackStep>(); });
    } else if (type == "Replace") {
      auto pattern = std::make_shared<const TextPattern>(fields.at("pattern"), place + ": Replace");
      add_map([pattern, content = fields.text("content")](std::string token, bool) {
        return pattern->replace(token, content);
      });
    } else if (type == "Metaspace") {
      add_map([spec = parse_metaspace(json, place)](std::string token, bool first) {
        const bool drops = first && spec.prepend != Metaspace::Prepend::kNever;
        return replaced_all(std::move(token), spec.replacement, drops ? "" : " ");
      });
    } else if (type == "WordPiece") {
      add_map([prefix = fields.text("prefix"), cleans = fields.boolean("cleanup")](
                  std::string token, bool first) {
        if (!first && token.starts_with(prefix))
          token.erase(0, prefix.size());
        else if (!first)
          token.insert(0, " ");
        return cleans ? without_english_spaces(std::move(token)) : token;
      });
    } else if (type == "BPEDecoder") {
      auto suffix =
          std::make_shared<const TextPattern>(Json{{"String", fields.text("suffix")}}, place);
      steps_.push_back([suffix] { return std::make_unique<SuffixStep>(*suffix); });
    } else {
      fields.fail("the type {} of a decoder is not known", type);
    }
  }

  std::vector<MakeStep> steps_;
  std::string_view between_;
  bool fused_ = false, byte_level_ = false, byte_fallback_ = false;
};

}  // namespace

std::unique_ptr<TokenDecoder> parse_token_decoder(const Json& json, const std::string& place) {
  return std::make_unique<DecoderChain>(json, place);
}

}  // namespace ashlar::data
