#include "ashlar/serve/request.h"

#include <algorithm>
#include <cmath>

#include "ashlar/core/fields.h"
#include "ashlar/data/chat_row.h"

namespace ashlar::serve {
namespace {

const std::string kPlace = "the request";

bool is_given(const Json& body, std::string_view key) {
  const auto found = body.find(key);
  return found != body.end() && !found->is_null();
}

// Members that both kinds of requests have, and those of each.
constexpr std::string_view kShared[] = {"model",
                                        "max_tokens",
                                        "temperature",
                                        "top_p",
                                        "top_k",
                                        "min_p",
                                        "repetition_penalty",
                                        "n",
                                        "stop",
                                        "seed",
                                        "logprobs",
                                        "stream",
                                        "stream_options",
                                        "user",
                                        "presence_penalty",
                                        "frequency_penalty",
                                        "logit_bias",
                                        "store",
                                        "metadata"};
constexpr std::string_view kOfCompletion[] = {"prompt", "echo", "best_of", "suffix"};
constexpr std::string_view kOfChat[] = {
    "messages",     "tools",           "tool_choice",        "max_completion_tokens",
    "top_logprobs", "response_format", "parallel_tool_calls"};

class RequestReader {
 public:
  RequestReader(const Json& body, RequestKind kind)
      : body_(body), fields_(body, kPlace, ErrorKind::kData), chat_(kind == RequestKind::kChat) {}

  TextRequest read() {
    check_names();
    check_not_done();
    TextRequest request;
    request.max_tokens = integer("max_tokens", 0, INT32_MAX);
    if (const auto more = integer("max_completion_tokens", 0, INT32_MAX)) request.max_tokens = more;
    request.top_k = integer("top_k", -1, INT32_MAX);
    if (request.top_k == -1) request.top_k = 0;
    request.seed = integer("seed", INT64_MIN, INT64_MAX);
    request.temperature = number("temperature", 0, 100);
    request.top_p = number("top_p", 0, 1);
    request.min_p = number("min_p", 0, 1);
    request.repetition_penalty = number("repetition_penalty", 0, 100);
    if (request.top_p == 0) fields_.fail("top_p is 0; expected above 0, at most 1");
    if (request.repetition_penalty == 0)
      fields_.fail("repetition_penalty is 0; expected above 0, at most 100");
    request.num_answers = integer("n", 1, kMaxChoices).value_or(1);
    request.stream = flag("stream");
    read_stream_options(request);
    read_stops(request);
    read_logprobs(request);
    if (!chat_) {
      request.echo = flag("echo");
      read_prompts(request);
    }
    const int64_t num_prompts = std::max<int64_t>(1, int64_t(request.prompts.size()));
    if (num_prompts * request.num_answers > kMaxChoices)
      fields_.fail("it asks for {} answers; expected at most {}", num_prompts * request.num_answers,
                   kMaxChoices);
    return request;
  }

 private:
  void check_names() const {
    std::vector<std::string> known(std::begin(kShared), std::end(kShared));
    if (chat_)
      known.insert(known.end(), std::begin(kOfChat), std::end(kOfChat));
    else
      known.insert(known.end(), std::begin(kOfCompletion), std::end(kOfCompletion));
    for (const auto& item : body_.items())
      if (std::ranges::find(known, item.key()) == known.end())
        fields_.fail("unknown member '{}'{}", printable(item.key()), suggestion(item.key(), known));
  }
  // Members that are read only to refuse what is not done here.
  void check_not_done() const {
    for (const char* name : {"presence_penalty", "frequency_penalty"})
      if (number(name, -2, 2).value_or(0) != 0)
        fields_.fail("{} is {}; expected 0: repetition_penalty is what is done here", name,
                     shown(body_.at(name)));
    if (is_given(body_, "logit_bias") && !body_.at("logit_bias").empty())
      fields_.fail("logit_bias is not done here");
    if (is_given(body_, "suffix") && body_.at("suffix") != "")
      fields_.fail("suffix is not done here");
    if (integer("best_of", 1, kMaxChoices).value_or(1) > integer("n", 1, kMaxChoices).value_or(1))
      fields_.fail("best_of is above n, which is not done here");
    if (is_given(body_, "response_format") && body_.at("response_format") != Json{{"type", "text"}})
      fields_.fail("response_format is {}; expected {{\"type\": \"text\"}}",
                   shown(body_.at("response_format")));
    if (is_given(body_, "tool_choice") && body_.at("tool_choice") != "auto" &&
        body_.at("tool_choice") != "none")
      fields_.fail("tool_choice is {}; expected auto or none", shown(body_.at("tool_choice")));
    if (is_given(body_, "parallel_tool_calls") && !fields_.boolean("parallel_tool_calls"))
      fields_.fail("parallel_tool_calls is false, which is not done here");
  }

  std::optional<int64_t> integer(const char* name, int64_t min, int64_t max) const {
    if (!is_given(body_, name)) return std::nullopt;
    return fields_.integer(name, min, max);
  }
  std::optional<double> number(const char* name, double min, double max) const {
    if (!is_given(body_, name)) return std::nullopt;
    const double value = fields_.number(name);
    if (!(value >= min && value <= max))
      fields_.fail("{} is {}; expected {} to {}", name, shown(body_.at(name)), min, max);
    return value;
  }
  bool flag(const char* name) const { return is_given(body_, name) && fields_.boolean(name); }

  void read_stream_options(TextRequest& request) const {
    if (!is_given(body_, "stream_options")) return;
    const Fields options = fields_.object("stream_options");
    options.only({"include_usage"});
    request.include_usage = options.has("include_usage") && options.boolean("include_usage");
    if (!request.stream) fields_.fail("stream_options goes with stream");
  }

  void read_stops(TextRequest& request) const {
    if (!is_given(body_, "stop")) return;
    const Json& stop = body_.at("stop");
    for (const Json& each : stop.is_array() ? stop : Json::array({stop})) {
      if (!each.is_string()) fields_.fail("stop holds {}; expected strings", shown(each));
      const auto& text = each.get_ref<const std::string&>();
      if (text.empty() || text.size() > kMaxStopBytes)
        fields_.fail("a stop string has {} bytes; expected 1 to {}", text.size(), kMaxStopBytes);
      request.stops.push_back(text);
    }
    if (request.stops.size() > kMaxStops)
      fields_.fail("{} stop strings; expected at most {}", request.stops.size(), kMaxStops);
  }

  // A number of tokens for completions; a flag and another number for chats.
  void read_logprobs(TextRequest& request) const {
    if (!chat_) {
      request.num_likely = integer("logprobs", 0, kMaxLikely).value_or(-1);
      return;
    }
    const auto likely = integer("top_logprobs", 0, kMaxLikely);
    if (flag("logprobs"))
      request.num_likely = likely.value_or(0);
    else if (likely)
      fields_.fail("top_logprobs goes with logprobs");
  }

  std::vector<int32_t> ids_in(const Json& list) const {
    std::vector<int32_t> ids;
    for (const Json& item : list) {
      const auto id = integer_of(item);
      if (!id || *id < 0 || *id > INT32_MAX)
        fields_.fail("prompt holds {}; expected ids of tokens", shown(item));
      ids.push_back(int32_t(*id));
    }
    if (ids.empty()) fields_.fail("prompt holds no ids; expected at least one");
    return ids;
  }

  void read_prompts(TextRequest& request) const {
    const Json& prompt = fields_.at("prompt");
    if (prompt.is_string()) {
      request.prompts.emplace_back(prompt.get<std::string>());
      return;
    }
    if (!prompt.is_array() || prompt.empty())
      fields_.fail("prompt is {}; expected a string, a list of ids, or a list of either",
                   shown(prompt));
    if (prompt.front().is_number()) {
      request.prompts.emplace_back(ids_in(prompt));
      return;
    }
    for (const Json& each : prompt) {
      if (each.is_string())
        request.prompts.emplace_back(each.get<std::string>());
      else if (each.is_array())
        request.prompts.emplace_back(ids_in(each));
      else
        fields_.fail("prompt holds {}; expected strings, or lists of ids", shown(each));
    }
  }

  const Json& body_;
  Fields fields_;
  bool chat_;
};

// The text of a content that comes in parts.
std::string joined_parts(const Ordered& parts, size_t message) {
  std::string text;
  for (const Ordered& part : parts) {
    const bool is_text = part.is_object() && part.value("type", Ordered()) == "text" &&
                         part.value("text", Ordered()).is_string();
    ASHLAR_REQUIRE(is_text, kData,
                   "{}: messages[{}] has a part of content that is no text; expected "
                   "{{\"type\": \"text\", \"text\": ...}}",
                   kPlace, message);
    text += part.at("text").get<std::string>();
  }
  return text;
}

void read_messages(std::string_view body, TextRequest& request) {
  Ordered chat = data::chat_of_row(body, kPlace);
  Ordered& messages = chat.at("messages");
  ASHLAR_REQUIRE(!messages.empty(), kData, "{}: messages is empty", kPlace);
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto content = messages[i].find("content");
    if (content != messages[i].end() && content->is_array()) *content = joined_parts(*content, i);
  }
  request.messages = std::make_shared<const Ordered>(std::move(messages));
  request.tools = std::make_shared<const Ordered>(std::move(chat.at("tools")));
}

}  // namespace

TextRequest parse_request(std::string_view body, RequestKind kind) {
  const Json json = parse_json(body, kPlace, ErrorKind::kData, kMaxBodyValues);
  TextRequest request = RequestReader(json, kind).read();
  if (kind != RequestKind::kChat) return request;
  const bool list = json.contains("messages") && json.at("messages").is_array();
  ASHLAR_REQUIRE(list, kData, "{}: messages is missing; expected a list of messages", kPlace);
  read_messages(body, request);
  if (json.contains("tool_choice") && json.at("tool_choice") == "none")
    request.tools = std::make_shared<const Ordered>(nullptr);
  return request;
}

}  // namespace ashlar::serve
