// Bodies of requests, as OpenAI's reference and its clients write them.
#include "ashlar/serve/request.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/errors.h"

namespace ashlar::serve {
namespace {

using nlohmann::json;
using testing_support::message_of;

TextRequest completion(const json& body) {
  return parse_request(body.dump(), RequestKind::kCompletion);
}

TEST(Request, PromptsAreTextsOrIdsOrListsOfEither) {
  const std::vector<int32_t> ids{3, 0, 7};
  EXPECT_EQ(completion({{"prompt", "a"}}).prompts, (std::vector<PromptInput>{"a"}));
  EXPECT_EQ(completion({{"prompt", {"a", ""}}}).prompts, (std::vector<PromptInput>{"a", ""}));
  EXPECT_EQ(completion({{"prompt", ids}}).prompts, (std::vector<PromptInput>{ids}));
  EXPECT_EQ(completion({{"prompt", {ids, {5}}}}).prompts,
            (std::vector<PromptInput>{ids, std::vector<int32_t>{5}}));
}

TEST(Request, AbsentAndNullMembersAreTheModelsAffair) {
  const TextRequest request =
      completion({{"prompt", "a"}, {"temperature", nullptr}, {"stop", nullptr}});
  EXPECT_FALSE(request.max_tokens || request.temperature || request.top_p || request.top_k ||
               request.min_p || request.repetition_penalty || request.seed);
  EXPECT_EQ(request.num_answers, 1);
  EXPECT_EQ(request.num_likely, -1);
  EXPECT_FALSE(request.echo || request.stream || request.include_usage);
  EXPECT_TRUE(request.stops.empty());
}

TEST(Request, WhatLmEvalSends) {
  const TextRequest request = completion({{"model", "m"},
                                          {"prompt", {{1, 2}}},
                                          {"temperature", 0},
                                          {"max_tokens", 1},
                                          {"logprobs", 1},
                                          {"seed", 1234},
                                          {"echo", true}});
  EXPECT_EQ(request.max_tokens, 1);
  EXPECT_EQ(request.temperature, 0);
  EXPECT_EQ(request.seed, 1234);
  EXPECT_EQ(request.num_likely, 1);
  EXPECT_TRUE(request.echo);
}

TEST(Request, AChatHasMessagesInTheirOrder) {
  const TextRequest request = parse_request(
      R"({"model": "m", "messages": [{"role": "system", "content": "Be brief."},
          {"role": "user", "content": [{"type": "text", "text": "Hi "},
                                       {"type": "text", "text": "there"}]},
          {"role": "assistant", "content": null, "tool_calls": [{"b": 1, "a": 2}]}],
          "tools": [{"function": {"name": "f"}}], "max_tokens": 5, "max_completion_tokens": 7,
          "logprobs": true, "top_logprobs": 2, "stop": ["x", "y"], "n": 3, "stream": true,
          "stream_options": {"include_usage": true}})",
      RequestKind::kChat);
  ASSERT_EQ(request.messages->size(), 3u);
  EXPECT_EQ((*request.messages)[1].at("content"), "Hi there");
  EXPECT_EQ((*request.messages)[2].at("tool_calls").dump(), R"([{"b":1,"a":2}])");
  EXPECT_EQ(request.tools->size(), 1u);
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_EQ(request.num_likely, 2);
  EXPECT_EQ(request.stops, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(request.num_answers, 3);
  EXPECT_TRUE(request.stream && request.include_usage);
}

TEST(Request, ToolsThatAreNotToBeChosenAreNotShown) {
  const auto tools = [](const std::string& choice) {
    const std::string body = R"({"messages": [{"role": "user", "content": "a"}],
        "tools": [{"function": {"name": "f"}}], "tool_choice": ")";
    return *parse_request(body + choice + "\"}", RequestKind::kChat).tools;
  };
  EXPECT_EQ(tools("auto").size(), 1u);
  EXPECT_TRUE(tools("none").is_null());
}

TEST(Request, FaultsAreNamed) {
  const std::string deep(100, '[');
  const struct {
    RequestKind kind;
    std::string body, named;
  } cases[] = {
      {RequestKind::kCompletion, "", "not valid JSON"},
      {RequestKind::kCompletion, "{", "not valid JSON"},
      {RequestKind::kCompletion, "[]", "expected an object"},
      {RequestKind::kCompletion, deep, "not valid JSON"},
      {RequestKind::kCompletion, "{\"prompt\": \"\xff\"}", "not valid JSON"},
      {RequestKind::kCompletion, R"({"prompt": "a", "prompt": "b"})", "not valid JSON"},
      {RequestKind::kCompletion, "{}", "key 'prompt' is missing"},
      {RequestKind::kCompletion, R"({"prompt": 3})", "prompt is 3"},
      {RequestKind::kCompletion, R"({"prompt": []})", "prompt is []"},
      {RequestKind::kCompletion, R"({"prompt": [[]]})", "prompt holds no ids"},
      {RequestKind::kCompletion, R"({"prompt": [1, -2]})", "prompt holds -2"},
      {RequestKind::kCompletion, R"({"prompt": [1, "a"]})", "prompt holds \"a\""},
      {RequestKind::kCompletion, R"({"prompt": ["a", 1]})", "prompt holds 1"},
      {RequestKind::kCompletion, R"({"prompt": [1.5]})", "prompt holds 1.5"},
      {RequestKind::kCompletion, R"({"prompt": "a", "max_token": 3})",
       "did you mean 'max_tokens'?"},
      {RequestKind::kCompletion, R"({"prompt": "a", "max_tokens": -1})", "max_tokens is -1"},
      {RequestKind::kCompletion, R"({"prompt": "a", "max_tokens": 1e30})", "max_tokens is 1e+30"},
      {RequestKind::kCompletion, R"({"prompt": "a", "temperature": "hot"})",
       "temperature is \"hot\""},
      {RequestKind::kCompletion, R"({"prompt": "a", "top_p": 0})", "top_p is 0"},
      {RequestKind::kCompletion, R"({"prompt": "a", "repetition_penalty": 0})",
       "repetition_penalty is 0"},
      {RequestKind::kCompletion, R"({"prompt": "a", "n": 129})", "n is 129"},
      {RequestKind::kCompletion, R"({"prompt": ["a", "b"], "n": 65})", "asks for 130 answers"},
      {RequestKind::kCompletion, R"({"prompt": "a", "logprobs": 21})", "logprobs is 21"},
      {RequestKind::kCompletion, R"({"prompt": "a", "logprobs": true})", "logprobs is true"},
      {RequestKind::kCompletion, R"({"prompt": "a", "stop": ""})", "a stop string has 0 bytes"},
      {RequestKind::kCompletion, R"({"prompt": "a", "stop": [1]})", "stop holds 1"},
      {RequestKind::kCompletion, R"({"prompt": "a", "presence_penalty": 0.5})",
       "presence_penalty is 0.5"},
      {RequestKind::kCompletion, R"({"prompt": "a", "logit_bias": {"5": 1}})", "logit_bias"},
      {RequestKind::kCompletion, R"({"prompt": "a", "suffix": "b"})", "suffix"},
      {RequestKind::kCompletion, R"({"prompt": "a", "best_of": 2})", "best_of"},
      {RequestKind::kCompletion, R"({"prompt": "a", "stream_options": {}})", "goes with stream"},
      {RequestKind::kCompletion, R"({"prompt": "a", "messages": []})", "unknown member 'messages'"},
      {RequestKind::kChat, R"({"prompt": "a"})", "unknown member 'prompt'"},
      {RequestKind::kChat, "{}", "messages is missing"},
      {RequestKind::kChat, R"({"messages": "a"})", "messages is missing"},
      {RequestKind::kChat, R"({"messages": []})", "messages is empty"},
      {RequestKind::kChat, R"({"messages": [3]})", "messages[0]"},
      {RequestKind::kChat, R"({"messages": [{"content": "a"}]})", "\"role\" is missing"},
      {RequestKind::kChat,
       R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
       "messages[0] has a part of content that is no text"},
      {RequestKind::kChat, R"({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2})",
       "goes with logprobs"},
      {RequestKind::kChat,
       R"({"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json"}})",
       "response_format"},
      {RequestKind::kChat,
       R"({"messages": [{"role": "user", "content": "a"}], "tool_choice": "required"})",
       "tool_choice"},
      {RequestKind::kChat,
       R"({"messages": [{"role": "user", "content": "a"}], "parallel_tool_calls": false})",
       "parallel_tool_calls"},
  };
  for (const auto& each : cases) {
    const std::string message =
        message_of(ErrorKind::kData, [&] { parse_request(each.body, each.kind); });
    EXPECT_TRUE(message.starts_with("the request")) << message;
    EXPECT_NE(message.find(each.named), std::string::npos) << message << "\nof " << each.body;
  }
}

}  // namespace
}  // namespace ashlar::serve
