#include "ashlar/data/byte_level_train.h"

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "ashlar/core/error.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/bpe_learner.h"
#include "ashlar/data/hf/bytes.h"
#include "ashlar/data/hf/pre_tokenizer.h"
#include "ashlar/data/hf/vocabulary.h"
#include "ashlar/data/hf_tokenizer.h"

namespace ashlar::data {
namespace {

constexpr const char* kSpecialTokenNames[] = {"<pad>", "</s>", "<s>", "<unk>"};
constexpr size_t kMostWordBytes = 4096;       // in characters of bytes
constexpr size_t kBatchTextBytes = 16 << 20;  // of texts that wait for being counted

// The special tokens, then the characters that stand for the 256 bytes, sorted by code point.
std::vector<std::string> first_tokens() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte)
    tokens.push_back(byte_level_text(std::string(1, char(byte))));
  std::ranges::sort(tokens);
  tokens.insert(tokens.begin(), std::begin(kSpecialTokenNames), std::end(kSpecialTokenNames));
  return tokens;
}

// Where the last word of a text begins that does not depend on what precedes it: behind a line end,
// if no space follows, or at a space between letters of ASCII.  The size if there is none.
size_t last_border(std::string_view text) {
  const auto is_letter = [&](size_t at) {
    const char lower = char(text[at] | 0x20);
    return lower >= 'a' && lower <= 'z';
  };
  // No character that begins with a byte of this range is a space.
  const auto is_visible = [&](size_t at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    return (byte > ' ' && byte < 0x7F) || byte > 0xE3;
  };
  for (size_t at = text.size(); at-- > 1;) {
    if (text[at - 1] == '\n' && is_visible(at)) return at;
    if (text[at] == ' ' && at + 1 < text.size() && is_letter(at - 1) && is_letter(at + 1))
      return at;
  }
  return text.size();
}

class WordCounter {
 public:
  explicit WordCounter(Threads& threads)
      : threads_(threads),
        pre_tokenizer_(parse_pre_tokenizer(Json(word_steps()), "word steps")),
        counts_(size_t(threads.size())) {}

  void add(std::string text) {
    bytes_ += text.size();
    texts_.push_back(std::move(text));
    if (bytes_ >= kBatchTextBytes) count();
  }

  WordCounts finish() {
    count();
    WordCounts all = std::move(counts_[0]);
    for (size_t worker = 1; worker < counts_.size(); ++worker)
      for (const auto& [word, count] : counts_[worker]) all[word] += count;
    return all;
  }

 private:
  void count() {
    threads_.run(int64_t(texts_.size()), [&](int64_t task, int worker) {
      WordCounts& counts = counts_[size_t(worker)];
      std::string key;
      pre_tokenizer_->split(texts_[size_t(task)], true, [&](std::string_view word, bool) {
        while (!word.empty()) {
          const size_t size = complete_utf8(word.substr(0, kMostWordBytes));
          key = word.substr(0, size);
          ++counts[key];
          word.remove_prefix(size);
        }
      });
    });
    texts_.clear();
    bytes_ = 0;
  }

  Threads& threads_;
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  std::vector<WordCounts> counts_;  // by worker
  std::vector<std::string> texts_;
  size_t bytes_ = 0;
};

// Gives the documents of a file to the counter, large ones in parts.
void count_file(TextSource& source, WordCounter& counter, function_ref<void()> advanced) {
  TextDocument document;
  std::string rest;
  while (source.next(document)) {
    rest += document.text;
    const size_t end = document.ends ? rest.size() : last_border(rest);
    counter.add(rest.substr(0, end));
    rest.erase(0, end);
    advanced();
  }
}

WordCounts count_words(FileSystem& files, std::span<const std::string> inputs,
                       const TextOptions& text, Threads& threads, Log& log) {
  Progress progress(log, "counting words", check_inputs(files, inputs, log), "B");
  WordCounter counter(threads);
  int64_t bytes_before = 0;
  Skipped skipped;
  for (const std::string& input : inputs) {
    TextSource source(files, input, text);
    count_file(source, counter, [&] { progress.set(bytes_before + source.stored_done()); });
    warn_of_repairs(source, input, log);
    bytes_before += source.stored_done();
    skipped.add(source.skipped());
  }
  WordCounts counts = counter.finish();
  ASHLAR_REQUIRE(!counts.empty(), kData, "{}{}: no text in it; expected at least one line{}",
                 inputs.front(), inputs.size() > 1 ? " and the other inputs" : "",
                 tell_skipped(skipped));
  if (skipped.count > 0)
    log.warn("{} different words were learned from{}", counts.size(), tell_skipped(skipped));
  return counts;
}

}  // namespace

std::string train_byte_level(FileSystem& files, std::span<const std::string> inputs,
                             int64_t vocab_size, const TextOptions& text, Threads& threads,
                             Log& log) {
  const std::vector<std::string> first = first_tokens();
  ASHLAR_REQUIRE(vocab_size > int64_t(first.size()) && vocab_size <= kMostTokens, kConfig,
                 "the vocabulary size is {}; expected {} to {} (4 special ids, 256 bytes and at "
                 "least one learned token)",
                 vocab_size, first.size() + 1, kMostTokens);
  const WordCounts counts = count_words(files, inputs, text, threads, log);
  Progress progress(log, "joining pairs", vocab_size, "tokens");
  const LearnedBpe learned =
      learn_bpe(counts, first, vocab_size, [&](int64_t num_tokens) { progress.set(num_tokens); });
  ASHLAR_REQUIRE(int64_t(learned.tokens.size()) == vocab_size, kConfig,
                 "no tokenizer of {} ids can be learned from this text of {} different words: it "
                 "has tokens for {} ids only; give --vocab {} or less, or more text",
                 vocab_size, counts.size(), learned.tokens.size(), learned.tokens.size());
  return byte_level_json(learned, int32_t(std::size(kSpecialTokenNames)));
}

}  // namespace ashlar::data
