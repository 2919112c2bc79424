// How it works.  The library takes text from an iterator, Lines, and trains on a thread that
// std::async starts, while this thread shows progress:
//
//   library's thread   Lines::Next() -> TextSource -> one line of at most kMaxLineBytes at a time
//   this thread        show_progress() reads done() and stored_bytes() of Lines, which are atomic,
//                      and asks the future whether training has ended
//
// The rest of Lines is read after that.  An error in Next() ends the iteration like the end of the
// text, and is thrown once the library has returned.
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <system_error>
#include <unordered_map>

#include "ashlar/core/clock.h"
#include "ashlar/core/error.h"
#include "ashlar/core/rng.h"
#include "ashlar/core/text.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/sentencepiece.h"
#include "ashlar/data/text_source.h"

namespace ashlar::data {
namespace {

// The library drops longer lines without a word, so they are cut before it sees them.
constexpr size_t kMaxLineBytes = 4096;
constexpr int64_t kNumFixedPieces = 4 + 256;  // special ids and bytes
constexpr int64_t kMaxVocab = 1 << 24;

// The number of bytes to take from a line: all, or at most `limit`, up to a space if there is one,
// else up to the end of a character.
size_t cut_of(std::string_view line, size_t limit) {
  if (line.size() <= limit) return line.size();
  const size_t space = line.rfind(' ', limit);
  if (space != std::string_view::npos && space > 0) return space;
  const size_t complete = complete_utf8(line.substr(0, limit));
  return complete > 0 ? complete : limit;
}

// An even sample, of bounded size, from an unknown number of pieces.  Each piece has a random
// number that its position decides; those below a limit are kept, and the limit is halved whenever
// they are too large together.
class Sample {
 public:
  void add(std::string_view piece) {
    const uint64_t number = splitmix64(count_++);
    if (number > limit_) return;
    pieces_.emplace_back(number, piece);
    bytes_ += static_cast<int64_t>(piece.size());
    while (bytes_ > kMaxUnspacedBytes) {
      limit_ /= 2;
      std::erase_if(pieces_, [&](const auto& p) { return p.first > limit_; });
      bytes_ = 0;
      for (const auto& p : pieces_) bytes_ += static_cast<int64_t>(p.second.size());
    }
  }
  bool take(std::string& piece) {  // false: none is left
    if (taken_ == pieces_.size()) return false;
    piece = std::move(pieces_[taken_++].second);
    return true;
  }
  uint64_t count() const { return count_; }
  uint64_t kept() const { return pieces_.size(); }

 private:
  uint64_t count_ = 0, limit_ = UINT64_MAX;
  int64_t bytes_ = 0;
  size_t taken_ = 0;
  std::vector<std::pair<uint64_t, std::string>> pieces_;
};

// The lines of all inputs, as the library wants them.  An exception must not cross its frames (it
// was built without them in mind), so that an error is kept and ends the iteration.
class Lines : public sentencepiece::SentenceIterator {
 public:
  Lines(FileSystem& files, std::span<const std::string> inputs, const TextOptions& options,
        Log& log)
      : files_(files), inputs_(inputs), options_(options), log_(log) {
    Next();
  }
  bool done() const override { return done_; }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }
  void Next() override {
    try {
      done_ = !advance();
    } catch (...) {
      failure_ = std::current_exception();
      done_ = true;
    }
  }
  std::exception_ptr failure() const { return failure_; }
  int64_t count() const { return count_; }
  const Sample& unspaced() const { return unspaced_; }
  const Skipped& skipped() const { return skipped_; }
  int64_t stored_bytes() const { return stored_bytes_; }  // read so far; any thread may ask

 private:
  bool advance() {
    for (;;) {
      while (rest_.find_first_not_of('\n') == std::string_view::npos)
        if (!next_text()) return unspaced_.take(line_);
      rest_.remove_prefix(rest_.find_first_not_of('\n'));
      const std::string_view line = rest_.substr(0, rest_.find('\n'));
      const size_t cut = cut_of(line, kMaxLineBytes);
      rest_.remove_prefix(cut);
      ++count_;
      const std::string_view taken = line.substr(0, cut);
      if (cut < line.size() && taken.find(' ') == taken.npos) {  // they come last
        unspaced_.add(readable(taken));
        continue;
      }
      line_ = readable(taken);
      return true;
    }
  }

  // The library drops lines with its own sign for unknown characters, or NUL, without a word.
  static std::string readable(std::string_view line) {
    std::string text(line);
    for (const std::string_view mark :
         {std::string_view("\xE2\x96\x85"), std::string_view("\0", 1)})
      for (size_t at = 0; (at = text.find(mark, at)) != text.npos;)
        text.replace(at, mark.size(), 1, ' ');
    return text;
  }

  // Appends the next document, or its next part, to the rest of the one before.
  bool next_text() {
    while (!source_ || !source_->next(document_)) {
      if (source_) stored_before_ += source_->stored_done();
      if (source_) skipped_.add(source_->skipped());
      if (source_) warn_of_repairs(*source_, inputs_[input_ - 1], log_);
      source_.reset();
      if (input_ == inputs_.size()) return false;
      source_ = std::make_unique<TextSource>(files_, inputs_[input_++], options_);
    }
    stored_bytes_ = stored_before_ + source_->stored_done();
    text_ = carry_ + document_.text;
    carry_.clear();
    if (!document_.ends) {  // a line or a word that goes on waits for its end
      const size_t line = text_.rfind('\n'), word = text_.rfind(' ');
      const size_t end = line != text_.npos ? line : word;
      if (end != text_.npos) {
        carry_ = text_.substr(end);
        text_.resize(end);
      }
    }
    rest_ = text_;
    return true;
  }

  FileSystem& files_;
  std::span<const std::string> inputs_;
  TextOptions options_;
  Log& log_;
  size_t input_ = 0;
  std::unique_ptr<TextSource> source_;
  int64_t stored_before_ = 0, count_ = 0;
  Skipped skipped_;
  Sample unspaced_;
  TextDocument document_;
  std::string text_, carry_;
  std::string_view rest_;  // of text_
  std::string line_;
  std::atomic<int64_t> stored_bytes_{0};
  std::atomic<bool> done_{false};
  std::exception_ptr failure_;
};

std::unordered_map<std::string, std::string> settings(const TokenizerTraining& training) {
  return {{"model_type", training.kind == TokenizerTraining::Kind::kBpe ? "bpe" : "unigram"},
          {"vocab_size", std::to_string(training.vocab_size)},
          {"character_coverage", fmt::format("{}", training.character_coverage)},
          {"pad_id", "0"},
          {"eos_id", "1"},
          {"bos_id", "2"},
          {"unk_id", "3"},
          {"byte_fallback", "true"},
          {"normalization_rule_name", "identity"},
          {"remove_extra_whitespaces", "false"},
          {"allow_whitespace_only_pieces", "true"},
          {"split_digits", "true"},
          {"max_sentence_length", std::to_string(2 * kMaxLineBytes)},  // above any line that comes
          {"input_sentence_size", std::to_string(training.max_lines)},
          {"shuffle_input_sentence", "true"},
          {"num_threads", "8"},  // part of the result: sums are cut by it
          {"minloglevel", "3"}};
}

std::string_view number_after(std::string_view text, std::string_view mark) {
  const size_t at = text.find(mark);
  if (at == text.npos) return "";
  text.remove_prefix(at + mark.size());
  return text.substr(0, text.find_first_not_of("0123456789"));
}

// The library's message, in terms of our flags where it is known.  It names its own:
// "Internal: src/x.cc(664) [(a) == (b)] Vocabulary size too high (8000). Please set it to a value
// <= 984."
std::string reason_of(std::string_view message) {
  if (const auto most = number_after(message, "value <= "); !most.empty())
    return fmt::format("it has pieces for {} ids only; give --vocab {} or less, or more text", most,
                       most);
  if (const auto least = number_after(message, " vs "); !least.empty())
    return fmt::format("{} ids are special, bytes and single characters; give --vocab {} or more",
                       least, least);
  if (const size_t end = message.rfind("] "); end != std::string_view::npos)
    message.remove_prefix(end + 2);
  std::string reason(message);
  std::replace(reason.begin(), reason.end(), '\n', ' ');
  return fmt::format("{}; choose another --vocab or more text",
                     reason.empty() ? "sentencepiece gives no reason" : reason);
}

using Trained = std::future<sentencepiece::util::Status>;

// Returns when training has ended.  The library does not report its progress, so after reading only
// the seconds are shown.
void show_progress(const Lines& lines, const Trained& trained, int64_t total_bytes, Log& log) {
  constexpr auto kTick = std::chrono::milliseconds(100);
  const auto ended = [&] { return trained.wait_for(kTick) == std::future_status::ready; };
  {
    Progress reading(log, "reading text", total_bytes, "B");
    while (!lines.done() && !ended()) reading.set(lines.stored_bytes());
  }
  const auto start = Clock::now();
  Progress progress(log, "training the tokenizer", 0, "s");
  while (!ended()) progress.set(int64_t(seconds_since(start)));
}

void tell(const Lines& lines, Log& log) {
  if (const Sample& unspaced = lines.unspaced(); unspaced.kept() < unspaced.count())
    log.warn(
        "{} pieces of {} bytes have no space in them: {} of them, evenly chosen, were learned "
        "from",
        unspaced.count(), kMaxLineBytes, unspaced.kept());
  if (lines.skipped().count > 0)
    log.warn("{} lines were learned from{}", lines.count(), tell_skipped(lines.skipped()));
}

void check(const TokenizerTraining& training) {
  ASHLAR_REQUIRE(training.vocab_size > kNumFixedPieces && training.vocab_size <= kMaxVocab, kConfig,
                 "the vocabulary size is {}; expected {} to {} (4 special ids, 256 bytes and at "
                 "least one learned piece)",
                 training.vocab_size, kNumFixedPieces + 1, kMaxVocab);
  ASHLAR_REQUIRE(training.character_coverage > 0 && training.character_coverage <= 1, kConfig,
                 "the character coverage is {}; expected above 0 and at most 1",
                 training.character_coverage);
  ASHLAR_REQUIRE(training.max_lines > 0, kConfig, "max_lines is {}; expected at least 1",
                 training.max_lines);
}

// Runs the library.  Its threads, or the one that runs it, may be refused: std::system_error.
sentencepiece::util::Status train(const std::unordered_map<std::string, std::string>& settings,
                                  Lines& lines, std::string& model, int64_t total_bytes, Log& log) {
  try {
    auto trained = std::async(std::launch::async, [&] {
      return sentencepiece::SentencePieceTrainer::Train(settings, &lines, &model);
    });
    show_progress(lines, trained, total_bytes, log);
    return trained.get();
  } catch (const std::system_error& error) {
    ASHLAR_FAIL(kDevice,
                "training a tokenizer: {}; raise the limit of processes or of memory (ulimit -u, "
                "ulimit -v)",
                error.code().message());
  }
}

}  // namespace

std::string train_sentencepiece(FileSystem& files, std::span<const std::string> inputs,
                                const TokenizerTraining& training, Log& log) {
  check(training);
  const int64_t total_bytes = check_inputs(files, inputs, log);
  Lines lines(files, inputs, training.text, log);
  if (lines.failure()) std::rethrow_exception(lines.failure());
  ASHLAR_REQUIRE(!lines.done(), kData, "{}{}: no text in it; expected at least one line{}",
                 inputs.front(), inputs.size() > 1 ? " and the other inputs" : "",
                 tell_skipped(lines.skipped()));

  sentencepiece::SetRandomGeneratorSeed(1);
  std::string model;
  const auto status = train(settings(training), lines, model, total_bytes, log);
  if (lines.failure()) std::rethrow_exception(lines.failure());
  tell(lines, log);
  ASHLAR_REQUIRE(status.ok(), kConfig,
                 "no tokenizer of {} ids can be learned from this text of {} lines: {}",
                 training.vocab_size, lines.count(), reason_of(status.message()));
  return model;
}

}  // namespace ashlar::data
