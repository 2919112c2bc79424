#include "ashlar/eval/judge.h"

#include <algorithm>
#include <cmath>

#include "ashlar/core/checksum.h"
#include "ashlar/eval/answer_text.h"

namespace ashlar::eval {
namespace {

struct Likelihood {
  double logprob = 0.0;
  bool is_greedy = true;  // every token is the likeliest
};

Likelihood likelihood_of(const TokenScores& scores) {
  Likelihood found;
  for (const TokenScore& token : scores.tokens) {
    found.logprob += token.logprob;
    found.is_greedy = found.is_greedy && token.is_likeliest;
  }
  return found;
}

// Reads ids [begin, end), which all texts have, and scores what comes after each of them.
void read_and_score(Decoder& decoder, int64_t place, size_t begin, size_t end,
                    std::span<const ScoredIds> texts, std::span<TokenScores> scores) {
  if (begin == end) return;
  size_t first = end;
  for (const ScoredIds& text : texts) first = std::min(first, text.first_scored() - 1);
  size_t next = std::max(first, begin) + 1;
  const auto ids = std::span(texts[0].ids).subspan(begin, end - begin);
  decoder.feed(ids, place, next - 1 - begin, [&](std::span<const float> logits) {
    for (size_t i = 0; i < texts.size(); ++i)
      if (next >= texts[i].first_scored()) scores[i].add(logits, texts[i].ids[next]);
    ++next;
  });
}

// The number of ids with which all texts begin; the last id of a text is scored, but not read.
size_t num_shared(std::span<const ScoredIds> texts) {
  const std::vector<int32_t>& first = texts[0].ids;
  size_t shared = first.size() - 1;
  for (const ScoredIds& text : texts) {
    const size_t most = std::min(shared, text.ids.size() - 1);
    const auto differs = std::mismatch(first.begin(), first.begin() + long(most), text.ids.begin());
    shared = size_t(differs.first - first.begin());
  }
  return shared;
}

// Place 0 has the shared ids, and place 1 then each text in turn.
std::vector<Likelihood> likelihoods_of(Decoder& decoder, std::span<const ScoredIds> texts) {
  const size_t shared = num_shared(texts);
  std::vector<TokenScores> scores(texts.size());
  decoder.clear(0);
  read_and_score(decoder, 0, 0, shared, texts, scores);
  std::vector<Likelihood> found;
  for (size_t i = 0; i < texts.size(); ++i) {
    const size_t end = texts[i].ids.size() - 1;
    if (shared < end) {
      decoder.duplicate(0, 1);
      read_and_score(decoder, 1, shared, end, texts.subspan(i, 1), std::span(scores).subspan(i, 1));
    }
    found.push_back(likelihood_of(scores[i]));
  }
  return found;
}

std::string key_of(std::string_view text) {
  return fmt::format("{:016x}", xxh3_64(std::as_bytes(std::span(text.data(), text.size()))));
}

std::string key_of(const Question& question) {
  std::string text = question.context;
  const auto add = [&](const std::string& part) {
    text.push_back('\0');
    text.append(part);
  };
  for (const std::string& each : question.continuations) add(each);
  add(question.target);
  return key_of(text);
}

// The index of the largest, of equal ones the first.
int64_t first_largest(const std::vector<double>& values) {
  return std::max_element(values.begin(), values.end()) - values.begin();
}

void judge_choices(const Question& question, JudgedRow& row) {
  std::vector<double> normed = row.logprobs;
  for (size_t i = 0; i < normed.size(); ++i) normed[i] /= double(question.lengths[i]);
  row.metrics["acc"] = first_largest(row.logprobs) == question.answer;
  row.metrics["acc_norm"] = first_largest(normed) == question.answer;
}

JudgedRow judge_question(Decoder& decoder, const TextEncoding& encoding, TaskKind kind,
                         const Question& question) {
  std::vector<ScoredIds> texts;
  for (const std::string& continuation : question.continuations)
    texts.push_back(encoding.pair(question.context, continuation));
  const std::vector<Likelihood> found = likelihoods_of(decoder, texts);
  JudgedRow row;
  for (const Likelihood& each : found) row.logprobs.push_back(each.logprob);
  if (kind == TaskKind::kLambada)
    row.metrics["acc"] = found[0].is_greedy;
  else
    judge_choices(question, row);
  return row;
}

// Answers many prompts at a time.
class Answering {
 public:
  Answering(const TextEncoding& encoding, const Task& task)
      : encoding_(encoding), task_(task), texts_(task.questions.size()) {}

  std::vector<JudgedRow> answer(PromptSlots& slots, std::span<const int32_t> stop_ids,
                                Progress& progress) {
    stop_ids_ = ids_of_stops(stops_of_gsm8k(), encoding_.tokenizer);
    stop_ids_.insert(stop_ids_.end(), stop_ids.begin(), stop_ids.end());
    for (const Question& question : task_.questions) {
      std::vector<int32_t> ids = encoding_.prompt(question.context, kAnswerTokens);
      streams_.emplace_back(encoding_.tokenizer, encoding_.files.added, stops_of_gsm8k());
      streams_.back().follow(ids);
      const int64_t number = slots.submit(
          std::move(ids), {.max_tokens = kAnswerTokens, .sampling = {}, .stop_ids = stop_ids_});
      if (streams_.size() == 1) first_ = number;
    }
    while (slots.num_left() > 0) {
      // Cancelling does not touch the results of a step.
      for (const auto& token : slots.step()) take(slots, token);
      progress.set(int64_t(texts_.size()) - slots.num_left());
    }
    return rows();
  }

 private:
  void take(PromptSlots& slots, const PromptSlots::NewToken& token) {
    const auto at = size_t(token.request - first_);
    const bool ends = token.last;
    const bool ends_text = std::ranges::find(stop_ids_, token.id) != stop_ids_.end();
    if (!ends_text) texts_[at] += streams_[at].push(token.id);
    if (ends) texts_[at] += streams_[at].finish();
    if (!ends && streams_[at].stopped()) slots.cancel(token.request);
  }

  std::vector<JudgedRow> rows() const {
    std::vector<JudgedRow> rows(texts_.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::string& target = task_.questions[i].target;
      rows[i].text = texts_[i];
      rows[i].metrics["exact_match_strict"] = is_exact_match(strict_number(texts_[i]), target);
      rows[i].metrics["exact_match_flexible"] = is_exact_match(last_number(texts_[i]), target);
    }
    return rows;
  }

  const TextEncoding& encoding_;
  const Task& task_;
  std::vector<std::string> texts_;
  std::deque<AnswerText> streams_;
  std::vector<int32_t> stop_ids_;
  int64_t first_ = 0;
};

// The mean over rows with its standard error, as lm-eval has it.
JudgedTask::Result mean_of(const std::vector<JudgedRow>& rows, const std::string& metric) {
  double sum = 0.0, squares = 0.0;
  for (const JudgedRow& row : rows) sum += row.metrics.at(metric);
  const double mean = sum / double(rows.size());
  for (const JudgedRow& row : rows) squares += std::pow(row.metrics.at(metric) - mean, 2);
  const auto count = double(rows.size());
  return {mean, rows.size() < 2 ? -1.0 : std::sqrt(squares / (count - 1) / count)};
}

JudgedTask result_of(const Task& task, std::vector<JudgedRow> rows) {
  JudgedTask judged{
      .task = std::string(name_of(task.kind)), .rows = std::move(rows), .results = {}};
  for (size_t i = 0; i < judged.rows.size(); ++i) judged.rows[i].key = key_of(task.questions[i]);
  for (const auto& [metric, value] : judged.rows.front().metrics)
    judged.results[metric] = mean_of(judged.rows, metric);
  return judged;
}

Progress judging(const Task& task, Log& log) {
  return {log, "judging", int64_t(task.questions.size()), "questions"};
}

int64_t num_words(const std::string& text) {  // Python: re.split(r"\s+", text)
  int64_t words = 1;
  bool in_space = false;
  for (const char c : text) {
    const bool space = std::isspace(static_cast<unsigned char>(c)) != 0;
    words += space && !in_space;
    in_space = space;
  }
  return words;
}

}  // namespace

ScoredIds TextEncoding::pair(const std::string& context, const std::string& continuation) const {
  const size_t end = context.find_last_not_of(" \t\n\r\v\f") + 1;
  std::vector<int32_t> ids = encode_text(context + continuation, tokenizer, files);
  check_ids(ids, source);
  const size_t num_context = encode_text(context.substr(0, end), tokenizer, files).size();
  ASHLAR_REQUIRE(ids.size() > num_context, kData,
                 "\"{}\" adds no token to \"{}\", so that it cannot be scored", continuation,
                 context.substr(0, 60));
  ScoredIds scored{std::move(ids), 0};
  scored.num_scored = int64_t(scored.ids.size() - num_context);
  // One more than the model reads, since nothing follows the last.
  if (const int64_t extra = int64_t(scored.ids.size()) - max_length - 1; extra > 0)
    scored.ids.erase(scored.ids.begin(), scored.ids.begin() + extra);
  scored.num_scored = std::min(scored.num_scored, int64_t(scored.ids.size()) - 1);
  return scored;
}

std::vector<int32_t> TextEncoding::prompt(const std::string& text, int64_t num_new) const {
  std::vector<int32_t> ids = encode_text(text, tokenizer, files);
  check_ids(ids, source);
  const int64_t room = std::max<int64_t>(1, max_length - num_new);
  if (int64_t(ids.size()) > room) ids.erase(ids.begin(), ids.end() - room);
  return ids;
}

std::vector<ScoredIds> TextEncoding::windows(const std::string& text, int64_t length) const {
  const int32_t begin_id = files.bos_id >= 0 ? files.bos_id : data::first_id(tokenizer);
  std::vector<int32_t> ids{begin_id};
  const std::vector<int32_t> of_text = tokenizer.encode(text);
  ids.insert(ids.end(), of_text.begin(), of_text.end());
  check_ids(ids, source);
  std::vector<ScoredIds> windows;
  const auto count = int64_t(ids.size());
  for (int64_t scored = 1; scored < count;) {
    const int64_t end = std::min(scored + length, count);
    // The first window begins with the id before the text; the last is filled from before it.
    const int64_t begin = scored == 1 ? 0 : std::max<int64_t>(1, end - length - 1);
    windows.push_back({{ids.begin() + begin, ids.begin() + end}, end - scored});
    scored = end;
  }
  return windows;
}

int64_t longest_of(const TextEncoding& encoding, const Task& task) {
  int64_t longest = 1;
  for (const Question& question : task.questions) {
    if (task.kind == TaskKind::kGsm8k) {
      const auto prompt = encoding.prompt(question.context, kAnswerTokens);
      longest = std::max(longest, int64_t(prompt.size()) + kAnswerTokens);
    }
    for (const std::string& continuation : question.continuations)
      longest =
          std::max(longest, int64_t(encoding.pair(question.context, continuation).ids.size()) - 1);
  }
  return longest;
}

int64_t places_for(const Task& task) {
  return task.kind == TaskKind::kLambada ? 1 : 2;
}

JudgedTask judge_answers(PromptSlots& slots, const TextEncoding& encoding, const Task& task,
                         std::span<const int32_t> stop_ids, Log& log) {
  Progress progress = judging(task, log);
  return result_of(task, Answering(encoding, task).answer(slots, stop_ids, progress));
}

JudgedTask judge_likelihoods(Decoder& decoder, const TextEncoding& encoding, const Task& task,
                             Log& log) {
  Progress progress = judging(task, log);
  std::vector<JudgedRow> rows;
  for (const Question& question : task.questions) {
    rows.push_back(judge_question(decoder, encoding, task.kind, question));
    progress.advance(1);
  }
  JudgedTask judged = result_of(task, std::move(rows));
  if (task.kind == TaskKind::kLambada) {
    double sum = 0.0;
    for (const JudgedRow& row : judged.rows) sum += row.logprobs[0];
    judged.results["perplexity"] = {std::exp(-sum / double(judged.rows.size()))};
  }
  return judged;
}

JudgedTask judge_text(Decoder& decoder, const TextEncoding& encoding, const std::string& text,
                      int64_t length, Log& log) {
  JudgedTask judged{.task = "text", .rows = {}, .results = {}};
  const std::vector<ScoredIds> windows = encoding.windows(text, length);
  ASHLAR_REQUIRE(!windows.empty(), kData, "the text is empty; expected at least one token");
  Progress progress(log, "evaluating", int64_t(windows.size()), "windows");
  double sum = 0.0;
  int64_t num_tokens = 0;
  for (const ScoredIds& window : windows) {
    const double logprob = likelihoods_of(decoder, std::span(&window, 1))[0].logprob;
    const auto* ids = reinterpret_cast<const char*>(window.ids.data());
    judged.rows.push_back({.key = key_of({ids, window.ids.size() * sizeof(int32_t)}),
                           .metrics = {{"loss", -logprob / double(window.num_scored)}},
                           .logprobs = {logprob},
                           .text = {},
                           .num_scored = window.num_scored});
    sum -= logprob;
    num_tokens += window.num_scored;
    progress.advance(1);
  }
  judged.results["loss"] = {sum / double(num_tokens)};
  judged.results["perplexity"] = {std::exp(sum / double(num_tokens))};
  judged.results["word_perplexity"] = {std::exp(sum / double(num_words(text)))};
  judged.results["byte_perplexity"] = {std::exp(sum / double(text.size()))};
  judged.results["bits_per_byte"] = {sum / double(text.size()) / std::log(2.0)};
  judged.results["tokens"] = {double(num_tokens)};
  return judged;
}

}  // namespace ashlar::eval
