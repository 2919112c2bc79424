#include "ashlar/serve/text_answers.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "ashlar/core/utf8.h"
#include "ashlar/data/stream_decoder.h"

namespace ashlar::serve {
namespace {

constexpr int64_t kUsualCompletion = 16;  // new tokens, as OpenAI's API
// Log-probabilities of a request, which are kept until it ends.
constexpr int64_t kMaxLogprobs = int64_t{1} << 20;
constexpr const char* kStop = "stop";
constexpr const char* kLength = "length";

uint64_t random_seed() {
  std::random_device device;
  return uint64_t(device()) << 31 | device();
}

std::string event_line(const Ordered& event) {
  return fmt::format("data: {}\n\n", one_line(event));
}

}  // namespace

TextAnswers::TextAnswers(const ServedModel& model, SlotEngine& engine, TextRequest request,
                         RequestKind kind, int64_t number, int64_t created)
    : model_(model),
      engine_(engine),
      request_(std::move(request)),
      kind_(kind),
      id_(fmt::format("{}-{}-{}", kind == RequestKind::kChat ? "chatcmpl" : "cmpl", created,
                      number)),
      created_(created),
      seed_(request_.seed ? uint64_t(*request_.seed) : random_seed()),
      stop_ids_(model.texts.config.stop_ids) {
  ASHLAR_REQUIRE(model.texts.tokenizer || request_.stops.empty(), kData,
                 "{} has no tokenizer, so that no stop string can come", model.name);
  if (model.texts.tokenizer)
    for (const int32_t id : eval::ids_of_stops(request_.stops, *model.texts.tokenizer))
      stop_ids_.push_back(id);
  encode_prompts();
  ticket_ = engine_.submit(make_jobs());
}

TextAnswers::~TextAnswers() {
  if (ticket_ && !ended()) engine_.cancel(ticket_);
}

std::vector<int32_t> TextAnswers::encode(const PromptInput& prompt) const {
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) return *ids;
  ASHLAR_REQUIRE(model_.texts.tokenizer, kData,
                 "{} has no tokenizer; expected prompts as lists of ids", model_.name);
  return eval::encode_text(std::get<std::string>(prompt), *model_.texts.tokenizer,
                           model_.texts.files);
}

void TextAnswers::encode_prompts() {
  if (kind_ == RequestKind::kChat) {
    ASHLAR_REQUIRE(model_.chats, kData, "{} has no chat template; use /v1/completions",
                   model_.name);
    prompts_.push_back(model_.chats->ids_of(*request_.messages, *request_.tools));
  }
  for (const PromptInput& prompt : request_.prompts) prompts_.push_back(encode(prompt));
  for (const std::vector<int32_t>& ids : prompts_) eval::check_ids(ids, model_.source);
}

eval::GenerateSpec TextAnswers::spec_for(const std::vector<int32_t>& ids, uint64_t number) const {
  const eval::GenerationConfig& config = model_.texts.config;
  const int64_t room = model_.context - int64_t(ids.size());
  // As a chat has it where the request leaves it open.
  const int64_t usual =
      config.max_length ? std::max<int64_t>(1, *config.max_length - int64_t(ids.size())) : room;
  eval::GenerateSpec spec;
  spec.max_tokens = kind_ == RequestKind::kCompletion
                        ? kUsualCompletion
                        : std::min(room, config.max_new_tokens.value_or(usual));
  if (request_.max_tokens) spec.max_tokens = *request_.max_tokens;
  ASHLAR_REQUIRE(spec.max_tokens <= room && room >= 0 && spec.max_tokens >= 0, kData,
                 "the prompt has {} tokens and max_tokens is {}; {} holds {} together", ids.size(),
                 spec.max_tokens, model_.name, model_.context);
  // Without settings of its own a model draws from all it gives, as OpenAI's API.
  eval::SamplingSpec sampling = config.sampling;
  if (config.path.empty()) sampling.temperature = 1.0;
  sampling.temperature = request_.temperature.value_or(sampling.temperature);
  sampling.top_k = request_.top_k.value_or(sampling.top_k);
  sampling.top_p = request_.top_p.value_or(sampling.top_p);
  sampling.min_p = request_.min_p.value_or(sampling.min_p);
  sampling.repetition_penalty = request_.repetition_penalty.value_or(sampling.repetition_penalty);
  sampling.seed = seed_, sampling.prompt = number;
  spec.sampling = sampling;
  spec.stop_ids = stop_ids_;
  return spec;
}

std::vector<PromptJob> TextAnswers::make_jobs() {
  std::vector<PromptJob> jobs;
  int64_t num_logprobs = 0;
  for (size_t prompt = 0; prompt < prompts_.size(); ++prompt)
    for (int64_t answer = 0; answer < request_.num_answers; ++answer) {
      const std::vector<int32_t>& ids = prompts_[prompt];
      PromptJob job{ids, spec_for(ids, jobs.size()), request_.num_likely,
                    request_.echo && request_.num_likely >= 0};
      if (job.spec.max_tokens == 0) job.num_likely = std::max<int64_t>(0, job.num_likely);
      num_logprobs += (job.spec.max_tokens + (job.scores_prompt ? int64_t(ids.size()) : 0)) *
                      (job.num_likely + 1);
      ASHLAR_REQUIRE(num_logprobs <= kMaxLogprobs, kData,
                     "more than {} log-probabilities; ask for fewer answers, tokens or likeliest",
                     kMaxLogprobs);
      jobs.push_back(std::move(job));
      add_choice(prompt);
    }
  return jobs;
}

void TextAnswers::add_choice(size_t prompt) {
  const std::vector<int32_t>& ids = prompts_[prompt];
  Choice& choice = choices_.emplace_back();
  choice.prompt = prompt;
  if (!model_.texts.tokenizer) {
    if (request_.echo) choice.offsets.resize(ids.size());
    return;
  }
  choice.stream.emplace(*model_.texts.tokenizer, model_.texts.files.added, request_.stops);
  std::string text;
  for (const int32_t id : ids) {
    const int64_t before = choice.stream->num_characters();
    if (request_.echo) choice.offsets.push_back(before);
    text += choice.stream->follow(std::span(&id, 1));
    if (request_.echo) find_opening(choice, id, before);
  }
  if (request_.echo) {
    const auto* given = std::get_if<std::string>(&request_.prompts[prompt]);
    choice.text = choice.fresh = given ? *given : text;
  } else {
    choice.num_before = choice.stream->num_characters();
  }
}

void TextAnswers::advance(std::chrono::milliseconds most) {
  if (ended()) return;
  for (const TokenEvent& event : ticket_->wait(most)) take(event);
}

void TextAnswers::take(const TokenEvent& event) {
  Choice& choice = choices_[event.choice];
  if (!choice.finish.empty()) return;  // tokens behind a stop string
  choice.scores.insert(choice.scores.end(), event.scores.begin(), event.scores.end());
  if (event.id < 0) return end(choice, kLength);
  ++choice.num_made;
  choice.offsets.push_back(choice.stream ? choice.stream->num_characters() - choice.num_before : 0);
  const bool ends_text = std::ranges::find(stop_ids_, event.id) != stop_ids_.end();
  if (choice.stream && !ends_text) {
    const int64_t before = choice.stream->num_characters();
    const std::string piece = choice.stream->push(event.id);
    choice.text += piece, choice.fresh += piece;
    find_opening(choice, event.id, before);
  }
  if (choice.stream && choice.stream->stopped()) {
    if (!event.last) engine_.cancel(ticket_, event.choice);
    end(choice, kStop);
  } else if (event.last) {
    end(choice, ends_text ? kStop : kLength);
  }
}

void TextAnswers::end(Choice& choice, const char* finish) {
  if (choice.stream && !choice.stream->stopped()) {
    const std::string rest = choice.stream->finish();
    choice.text += rest, choice.fresh += rest;
  }
  choice.finish = choice.stream && choice.stream->stopped() ? kStop : finish;
  ++num_ended_;
}

Ordered TextAnswers::frame(const char* object) const {
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_.name}};
}

Ordered TextAnswers::usage() const {
  int64_t prompt_tokens = 0, made = 0;
  for (const std::vector<int32_t>& ids : prompts_) prompt_tokens += int64_t(ids.size());
  for (const Choice& choice : choices_) made += choice.num_made;
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", made},
          {"total_tokens", prompt_tokens + made}};
}

// The last of the offsets is the id's; num_before: characters before it.
void TextAnswers::find_opening(Choice& choice, int32_t id, int64_t num_before) const {
  if (num_before > 0 || request_.num_likely < 0) return;
  const std::string bytes = token_bytes(id, false);
  if (bytes.starts_with(' ') &&
      choice.stream->num_characters() == ashlar::num_characters(bytes) - 1)
    choice.opening = choice.offsets.size() - 1;
}

std::string TextAnswers::token_bytes(int32_t id, bool opens) const {
  const data::Tokenizer& tokenizer = *model_.texts.tokenizer;
  std::string piece = id < tokenizer.vocab_size() ? tokenizer.piece(id) : "";
  const auto& added = model_.texts.files.added;
  const auto named = std::ranges::find(added, id, &data::AddedToken::id);
  if (piece.empty() && named != added.end()) return named->content;
  return opens && piece.starts_with(' ') ? piece.substr(1) : piece;
}

std::string TextAnswers::token_text(int32_t id, bool opens) const {
  if (!model_.texts.tokenizer) return fmt::format("token_id:{}", id);
  const std::string bytes = token_bytes(id, opens);
  if (check_utf8(bytes).num_invalid == 0) return bytes;
  std::string text = "bytes:";
  for (const char byte : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return text;
}

// Scores from `first` on.
Ordered TextAnswers::completion_logprobs(const Choice& choice, size_t first) const {
  auto tokens = Ordered::array(), logprobs = Ordered::array(), tops = Ordered::array(),
       offsets = Ordered::array();
  // Nothing comes before the first token of a prompt.
  const bool with_first = request_.echo && !choice.begun;
  const size_t begin = first + (request_.echo && !with_first ? 1 : 0);
  const auto opens = [&] { return begin + tokens.size() <= choice.opening; };
  const auto add = [&](int32_t id, Ordered logprob, Ordered top) {
    tokens.push_back(token_text(id, opens()));
    logprobs.push_back(std::move(logprob)), tops.push_back(std::move(top));
  };
  if (with_first) add(prompts_[choice.prompt].front(), nullptr, nullptr);
  for (size_t i = first; i < choice.scores.size(); ++i) {
    const eval::TokenScore& score = choice.scores[i];
    Ordered top = Ordered::object();
    // The likeliest counts where tokens are spelled alike.
    for (const auto& likely : score.likely)
      if (const std::string text = token_text(likely.id, opens()); !top.contains(text))
        top[text] = likely.logprob;
    if (const std::string text = token_text(score.id, opens()); !top.contains(text))
      top[text] = score.logprob;
    add(score.id, score.logprob, std::move(top));
  }
  for (size_t i = 0; i < tokens.size(); ++i) offsets.push_back(choice.offsets[begin + i]);
  return {{"tokens", tokens},
          {"token_logprobs", logprobs},
          {"top_logprobs", request_.num_likely > 0 ? tops : Ordered()},
          {"text_offset", offsets}};
}

Ordered TextAnswers::chat_logprobs(const Choice& choice, size_t first) const {
  const auto entry = [&](int32_t id, double logprob, bool opens) {
    auto bytes = Ordered::array();
    if (model_.texts.tokenizer)
      for (const char byte : token_bytes(id, opens))
        bytes.push_back(int(static_cast<unsigned char>(byte)));
    return Ordered{{"token", token_text(id, opens)}, {"logprob", logprob}, {"bytes", bytes}};
  };
  auto content = Ordered::array();
  for (size_t i = first; i < choice.scores.size(); ++i) {
    const eval::TokenScore& score = choice.scores[i];
    const bool opens = i <= choice.opening;
    Ordered each = entry(score.id, score.logprob, opens);
    each["top_logprobs"] = Ordered::array();
    for (const auto& likely : score.likely)
      each["top_logprobs"].push_back(entry(likely.id, likely.logprob, opens));
    content.push_back(std::move(each));
  }
  return {{"content", content}};
}

Ordered TextAnswers::logprobs_of(const Choice& choice, size_t first) const {
  if (request_.num_likely < 0) return nullptr;
  return kind_ == RequestKind::kChat ? chat_logprobs(choice, first)
                                     : completion_logprobs(choice, first);
}

std::string TextAnswers::whole() const {
  Ordered answer = frame(kind_ == RequestKind::kChat ? "chat.completion" : "text_completion");
  answer["choices"] = Ordered::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    Ordered one{{"index", i}};
    if (kind_ == RequestKind::kChat)
      one["message"] = {{"role", "assistant"}, {"content", choice.text}};
    else
      one["text"] = choice.text;
    one["logprobs"] = logprobs_of(choice, 0);
    one["finish_reason"] = choice.finish;
    answer["choices"].push_back(std::move(one));
  }
  answer["usage"] = usage();
  return one_line(answer);
}

Ordered TextAnswers::event_of(size_t index, Choice& choice) const {
  Ordered one{{"index", index}};
  if (kind_ == RequestKind::kChat) {
    one["delta"] = {{"content", choice.fresh}};
    if (!choice.begun) one["delta"]["role"] = "assistant";
  } else {
    one["text"] = choice.fresh;
  }
  one["logprobs"] = logprobs_of(choice, choice.num_sent_scores);
  one["finish_reason"] = choice.finish.empty() ? Ordered() : Ordered(choice.finish);
  choice.num_sent_scores = choice.scores.size();
  choice.begun = true, choice.finish_sent = !choice.finish.empty();
  choice.fresh.clear();
  return one;
}

std::string TextAnswers::take_events() {
  std::string events;
  const char* object = kind_ == RequestKind::kChat ? "chat.completion.chunk" : "text_completion";
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    const bool news = !choice.fresh.empty() || choice.num_sent_scores < choice.scores.size() ||
                      (!choice.finish.empty() && !choice.finish_sent);
    if (!news) continue;
    Ordered event = frame(object);
    event["choices"] = Ordered::array({event_of(i, choice)});
    events += event_line(event);
  }
  if (!ended() || end_sent_) return events;
  if (request_.include_usage) {
    Ordered event = frame(object);
    event["choices"] = Ordered::array();
    event["usage"] = usage();
    events += event_line(event);
  }
  end_sent_ = true;
  return events + "data: [DONE]\n\n";
}

}  // namespace ashlar::serve
