#include "ashlar/data/hf/pre_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "ashlar/core/fields.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/hf/bytes.h"
#include "ashlar/data/hf/pattern.h"
#include "ashlar/data/hf/unicode.h"

namespace ashlar::data {
namespace {

enum class SplitBehavior : uint8_t {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous
};

constexpr std::string_view kGpt2Words =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
// Expressions of published models that begin a word with its space: of GPT-2, Llama 3 and Qwen.
constexpr std::string_view kWordPatterns[] = {
    kGpt2Words,
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    kQwenWords};

SplitBehavior behavior_of(const Fields& fields) {
  static constexpr std::string_view kNames[] = {"Removed", "Isolated", "MergedWithPrevious",
                                                "MergedWithNext", "Contiguous"};
  const auto* found = std::ranges::find(kNames, fields.text("behavior"));
  if (found == std::end(kNames))
    fields.fail("behavior is {}; expected {}", fields.text("behavior"), fmt::join(kNames, ", "));
  return SplitBehavior(found - kNames);
}

// Joins segments as the behavior wants; those that remain marked as matches are dropped.
std::vector<TextSegment> merge_segments(std::vector<TextSegment> segments, SplitBehavior behavior) {
  if (behavior == SplitBehavior::kRemoved) return segments;
  std::vector<TextSegment> merged;
  bool before = false;
  const bool backwards = behavior == SplitBehavior::kMergedWithNext;
  if (backwards) std::ranges::reverse(segments);
  for (const TextSegment& segment : segments) {
    const bool joins = behavior == SplitBehavior::kIsolated     ? false
                       : behavior == SplitBehavior::kContiguous ? segment.match == before
                                                                : segment.match && !before;
    before = segment.match;
    if (!joins || merged.empty())
      merged.push_back({segment.begin, segment.end, false});
    else if (backwards)
      merged.back().begin = segment.begin;
    else
      merged.back().end = segment.end;
  }
  if (backwards) std::ranges::reverse(merged);
  return merged;
}

void give_parts(std::string_view text, bool begins, std::vector<TextSegment> segments,
                SplitBehavior behavior, PreTokenizer::Part found) {
  for (const TextSegment& part : merge_segments(std::move(segments), behavior))
    if (!part.match && part.begin < part.end)
      found(text.substr(part.begin, part.end - part.begin), begins && part.begin == 0);
}

// Every character of the classes is a match of its own.
std::vector<TextSegment> character_segments(std::string_view text, uint8_t classes) {
  std::vector<TextSegment> segments;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    if (has_class(point.value, classes)) {
      if (at > done) segments.push_back({done, at, false});
      segments.push_back({at, at + point.length, true});
      done = at + point.length;
    }
    at += point.length;
  }
  if (done < text.size()) segments.push_back({done, text.size(), false});
  return segments;
}

class ClassSplit : public PreTokenizer {
 public:
  ClassSplit(uint8_t classes, SplitBehavior behavior) : classes_(classes), behavior_(behavior) {}
  void split(std::string_view text, bool begins, Part found) const override {
    give_parts(text, begins, character_segments(text, classes_), behavior_, found);
  }
  bool splits_words() const override {
    return classes_ == kSpaceChar && behavior_ == SplitBehavior::kRemoved;
  }

 private:
  uint8_t classes_;
  SplitBehavior behavior_;
};

// Runs of word characters, and of others that are no spaces.
class WhitespacePreTokenizer : public PreTokenizer {
 public:
  void split(std::string_view text, bool begins, Part found) const override {
    size_t begin = 0;
    uint8_t kind = kSpaceChar;
    const auto end_run = [&](size_t end) {
      if (kind != kSpaceChar && end > begin)
        found(text.substr(begin, end - begin), begins && begin == 0);
    };
    for (size_t at = 0; at < text.size();) {
      const CodePoint point = code_point_at(text, at);
      const uint8_t now = has_class(point.value, kWordChar)    ? kWordChar
                          : has_class(point.value, kSpaceChar) ? kSpaceChar
                                                               : 0;
      if (now != kind) {
        end_run(at);
        begin = at;
        kind = now;
      }
      at += point.length;
    }
    end_run(text.size());
  }
  bool splits_words() const override { return true; }
};

class PatternSplit : public PreTokenizer {
 public:
  PatternSplit(TextPattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void split(std::string_view text, bool begins, Part found) const override {
    std::vector<TextSegment> segments = pattern_.segments(text);
    if (invert_)
      for (TextSegment& segment : segments) segment.match = !segment.match;
    give_parts(text, begins, std::move(segments), behavior_, found);
  }
  bool splits_words() const override {
    return behavior_ == SplitBehavior::kIsolated && !invert_ &&
           std::ranges::find(kWordPatterns, pattern_.expression()) != std::end(kWordPatterns);
  }

 private:
  TextPattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

class ByteLevelPreTokenizer : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(bool add_space, bool use_regex, const std::string& place)
      : add_space_(add_space) {
    if (use_regex) words_.push_back(TextPattern::regex(std::string(kGpt2Words), place));
  }
  void split(std::string_view text, bool begins, Part found) const override {
    std::string spaced, characters;
    if (add_space_ && !text.starts_with(' ')) text = spaced.append(" ").append(text);
    const auto give = [&](std::string_view part, bool first) {
      characters.clear();
      append_byte_level(characters, part);
      found(characters, first);
    };
    if (words_.empty()) return give(text, begins);
    for (const TextSegment& part : words_[0].segments(text))
      give(text.substr(part.begin, part.end - part.begin), begins && part.begin == 0);
  }
  bool splits_words() const override { return !words_.empty(); }

 private:
  bool add_space_;
  std::vector<TextPattern> words_;  // at most one
};

class MetaspacePreTokenizer : public PreTokenizer {
 public:
  explicit MetaspacePreTokenizer(Metaspace spec) : spec_(std::move(spec)) {}
  void split(std::string_view text, bool begins, Part found) const override {
    std::string spaced;
    for (const char c : text)
      if (c == ' ')
        spaced += spec_.replacement;
      else
        spaced += c;
    const bool wanted = spec_.prepend == Metaspace::Prepend::kAlways ||
                        (spec_.prepend == Metaspace::Prepend::kFirst && begins);
    if (wanted && !spaced.starts_with(spec_.replacement)) spaced.insert(0, spec_.replacement);
    if (!spec_.splits) return found(spaced, begins);
    std::vector<TextSegment> segments;
    size_t done = 0;
    for (size_t at = spaced.find(spec_.replacement); at != std::string::npos;
         at = spaced.find(spec_.replacement, done)) {
      if (at > done) segments.push_back({done, at, false});
      done = at + spec_.replacement.size();
      segments.push_back({at, done, true});
    }
    if (done < spaced.size()) segments.push_back({done, spaced.size(), false});
    give_parts(spaced, begins, std::move(segments), SplitBehavior::kMergedWithNext, found);
  }
  bool splits_words() const override { return spec_.splits; }

 private:
  Metaspace spec_;
};

class PreTokenizerSequence : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(std::vector<std::unique_ptr<PreTokenizer>> steps)
      : steps_(std::move(steps)) {}
  void split(std::string_view text, bool begins, Part found) const override {
    split_from(0, text, begins, found);
  }
  // Later steps see only the parts of the first.
  bool splits_words() const override { return !steps_.empty() && steps_[0]->splits_words(); }

 private:
  void split_from(size_t step, std::string_view text, bool begins, Part found) const {
    if (step == steps_.size()) return found(text, begins);
    require_text_size(text.size());
    steps_[step]->split(text, begins, [&](std::string_view part, bool first) {
      split_from(step + 1, part, first, found);
    });
  }
  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

std::unique_ptr<PreTokenizer> parse_steps(const Fields& fields, const std::string& place) {
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  for (const Json& step : fields.array("pretokenizers"))
    if (auto parsed = parse_pre_tokenizer(step, place)) steps.push_back(std::move(parsed));
  return std::make_unique<PreTokenizerSequence>(std::move(steps));
}

std::unique_ptr<PreTokenizer> bert_steps() {
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  steps.push_back(std::make_unique<ClassSplit>(kSpaceChar, SplitBehavior::kRemoved));
  steps.push_back(std::make_unique<ClassSplit>(kPunctuationChar, SplitBehavior::kIsolated));
  return std::make_unique<PreTokenizerSequence>(std::move(steps));
}

bool has_one_character(const std::string& text) {
  return !text.empty() && code_point_at(text, 0).length == text.size();
}

TextPattern delimiter_of(const Fields& fields, const std::string& place) {
  if (!has_one_character(fields.text("delimiter"))) fields.fail("delimiter is not one character");
  return TextPattern(Json{{"String", fields.text("delimiter")}}, place);
}

}  // namespace

Metaspace parse_metaspace(const Json& json, const std::string& place) {
  const Fields fields(json, place, ErrorKind::kData);
  Metaspace spec{.replacement = fields.text("replacement")};
  if (!has_one_character(spec.replacement)) fields.fail("replacement is not one character");
  const std::string scheme =
      fields.has("prepend_scheme") ? fields.text("prepend_scheme") : "always";
  static constexpr std::string_view kSchemes[] = {"first", "never", "always"};
  const auto* found = std::ranges::find(kSchemes, scheme);
  if (found == std::end(kSchemes))
    fields.fail("prepend_scheme is {}; expected {}", scheme, fmt::join(kSchemes, ", "));
  spec.prepend = Metaspace::Prepend(found - kSchemes);
  const auto stated = [&](const char* key) { return fields.has(key) && !fields.at(key).is_null(); };
  if (stated("add_prefix_space") && !fields.boolean("add_prefix_space")) {
    if (fields.has("prepend_scheme") && scheme != "never")
      fields.fail("add_prefix_space is false but prepend_scheme {}", scheme);
    spec.prepend = Metaspace::Prepend::kNever;
  }
  spec.splits = !stated("split") || fields.boolean("split");
  return spec;
}

std::unique_ptr<PreTokenizer> parse_pre_tokenizer(const Json& json, const std::string& place) {
  if (json.is_null()) return nullptr;
  const Fields fields(json, place, ErrorKind::kData);
  const std::string& type = fields.text("type");
  if (type == "Sequence") return parse_steps(fields, place);
  if (type == "ByteLevel")
    return std::make_unique<ByteLevelPreTokenizer>(
        fields.boolean("add_prefix_space"), !fields.has("use_regex") || fields.boolean("use_regex"),
        place);
  if (type == "Split")
    return std::make_unique<PatternSplit>(TextPattern(fields.at("pattern"), place + ": Split"),
                                          behavior_of(fields), fields.boolean("invert"));
  if (type == "Metaspace")
    return std::make_unique<MetaspacePreTokenizer>(parse_metaspace(json, place));
  if (type == "Digits")
    return std::make_unique<ClassSplit>(kNumberChar, fields.boolean("individual_digits")
                                                         ? SplitBehavior::kIsolated
                                                         : SplitBehavior::kContiguous);
  if (type == "Whitespace") return std::make_unique<WhitespacePreTokenizer>();
  if (type == "WhitespaceSplit")
    return std::make_unique<ClassSplit>(kSpaceChar, SplitBehavior::kRemoved);
  if (type == "Punctuation")
    return std::make_unique<ClassSplit>(
        kPunctuationChar, fields.has("behavior") ? behavior_of(fields) : SplitBehavior::kIsolated);
  if (type == "BertPreTokenizer") return bert_steps();
  if (type == "CharDelimiterSplit")
    return std::make_unique<PatternSplit>(delimiter_of(fields, place), SplitBehavior::kRemoved,
                                          false);
  fields.fail("the type {} of a pre-tokenizer is not known", type);
}

}  // namespace ashlar::data
