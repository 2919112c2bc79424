// Requests for text as clients of OpenAI's API send them: the body of /v1/completions and of
// /v1/chat/completions.
//
// Source   the API's reference: https://platform.openai.com/docs/api-reference/completions and
//          .../chat; top_k, min_p and repetition_penalty are spelled as in vLLM.
// Errors   kData, one line that names the member: not JSON, a member of another type or out of
//          range, an unknown member, or one that asks for what is not done here.
// Limits   the body is bounded by the caller (kMaxBodyBytes); at most kMaxBodyValues values,
//          kMaxChoices answers, kMaxStops stop strings.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ashlar/core/json.h"

namespace ashlar::serve {

inline constexpr size_t kMaxBodyBytes = size_t{8} << 20;
inline constexpr int64_t kMaxBodyValues = int64_t{1} << 20;
inline constexpr int64_t kMaxChoices = 128;  // prompts times answers to each
inline constexpr size_t kMaxStops = 16, kMaxStopBytes = 4096;
inline constexpr int64_t kMaxLikely = 20;  // likeliest tokens of each position

enum class RequestKind : uint8_t { kCompletion, kChat };

using PromptInput = std::variant<std::string, std::vector<int32_t>>;  // text, or ids

struct TextRequest {
  std::vector<PromptInput> prompts;         // of a completion, at least one
  std::shared_ptr<const Ordered> messages;  // of a chat: an array
  std::shared_ptr<const Ordered> tools;     // an array or null
  // Absent members follow the model's files.
  std::optional<int64_t> max_tokens, top_k, seed;
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  int64_t num_answers = 1;  // to each prompt
  std::vector<std::string> stops;
  int64_t num_likely = -1;  // log-probabilities, and so many likeliest tokens; -1: none
  bool echo = false;        // the prompt is part of the answer
  bool stream = false, include_usage = false;
};

TextRequest parse_request(std::string_view body, RequestKind kind);

}  // namespace ashlar::serve
