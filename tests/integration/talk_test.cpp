// Judging, talking and serving by the program, with a model whose every probability is known.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/integration/chain_model.h"
#include "tests/integration/support.h"
#include "tests/support/http.h"

namespace ashlar::integration {
namespace {

using nlohmann::json;
using testing_support::http_get;
using testing_support::http_post;

constexpr const char* kTalkerTokenizer = "ashlar byte tokenizer 1\n";
constexpr int64_t kVocab = 264, kEndId = 260;
constexpr int64_t byte_id(char c) {
  return 4 + static_cast<unsigned char>(c);
}
// The logit of the token that follows: the final norm divides the 1 of the embedding by the root of
// its mean square.
const double kLogit = 1 / std::sqrt(1.0 / double(kVocab) + 1e-5);
// The log-probabilities of that token, of the others, and of all where none follows.
const double kOther = -std::log(std::exp(kLogit) + double(kVocab - 1));
const double kFollows = kLogit + kOther;
const double kUniform = -std::log(double(kVocab));

// "a" is followed by "b", "b" by the end; ":" by "7", and "7" by the end.
void write_talker(const Scratch& scratch, const std::string& name) {
  write_chain(scratch / name, kVocab,
              {{byte_id('a'), byte_id('b')},
               {byte_id('b'), kEndId},
               {byte_id(':'), byte_id('7')},
               {byte_id('7'), kEndId}},
              {{"eos_token_id", {kEndId, 1}}, {"bos_token_id", 2}});
  write_file(scratch / name / "tokenizer.model", kTalkerTokenizer);
  write_file(scratch / name / "tokenizer_config.json",
             R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": true, "bos_token": "<s>",
                 "added_tokens_decoder": {"260": {"content": "<|im_end|>", "special": true},
                                          "261": {"content": "<|im_start|>", "special": true}}})");
  write_file(scratch / name / "added_tokens.json", R"({"<|im_end|>": 260, "<|im_start|>": 261})");
  write_file(scratch / name / "chat_template.jinja",
             "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}");
}

Result run_with_stdin(const Scratch& scratch, const std::vector<std::string>& args,
                      const std::string& text) {
  write_file(scratch / "stdin.txt", text);
  const std::string path = scratch / "stdin.txt";
  return run(scratch, args, [path] { dup2(open(path.c_str(), O_RDONLY), 0); });
}

TEST(Talk, ChatAnswersEachLine) {
  const Scratch scratch;
  write_talker(scratch, "m");
  const Result result = run_with_stdin(scratch, {"chat", "m", "--dtype", "fp32"},
                                       "xa\r\n\n  \n/clear\na\n/exit\na\n");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "b\nb\n");
  const Result longer =
      run_with_stdin(scratch, {"chat", "--model", "m", "--context", "9"}, "xxxxxxxxx\na");
  EXPECT_EQ(longer.code, 0) << longer.err;
  EXPECT_TRUE(contains(longer.err, "/clear begins a new one")) << longer.err;
  EXPECT_EQ(longer.out, "b\n") << "the message without room was taken back";
  std::filesystem::remove(scratch / "m/chat_template.jinja");
  const Result bare = run_with_stdin(scratch, {"chat", "m"}, "a\n");
  EXPECT_EQ(bare.code, 24) << bare.err;
  EXPECT_TRUE(contains(bare.err, "there is no chat template")) << bare.err;
}

// A byte of another encoding becomes U+FFFD.
TEST(Talk, ChatReadsASystemMessageOfAnyBytes) {
  const Scratch scratch;
  write_talker(scratch, "m");
  write_file(scratch / "m/chat_template.jinja",
             "{% for m in messages %}{{ m.content | trim }}{% endfor %}");
  const Result result = run_with_stdin(scratch, {"chat", "m", "--system", "\xe9"}, "a\n");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "b\n");
}

TEST(Talk, GenerateAnswersChatsAndStdin) {
  const Scratch scratch;
  write_talker(scratch, "m");
  const std::vector<std::string> base{"generate", "--model", "m", "--dtype", "fp32"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), base.begin(), base.end());
    return more;
  };
  const std::string chat = R"([{"role": "user", "content": "xa"}])";
  write_file(scratch / "list.json", chat);
  write_file(scratch / "object.json", "{\n\"messages\": " + chat + "}");
  write_file(scratch / "many.jsonl", "{\"messages\": " + chat + "}\n" + chat + "\n");
  EXPECT_EQ(run_ok(scratch, with({"--chat", "list.json"})), "b\n");
  EXPECT_EQ(run_ok(scratch, with({"--chat", "object.json"})), "b\n");
  EXPECT_EQ(run_ok(scratch, with({"--chat", "many.jsonl"})),
            "==> 1 of 2 <==\nb\n\n==> 2 of 2 <==\nb\n");
  EXPECT_EQ(run_with_stdin(scratch, with({"--chat", "-"}), chat).out, "b\n");
  EXPECT_EQ(run_with_stdin(scratch, with({"--prompt-file", "-"}), "xa").out, "xab\n");
  EXPECT_EQ(run_ok(scratch, with({"-p", "xa"})), "xab\n");
  const Result bad = run_with_stdin(scratch, with({"--chat", "-"}), "{}");
  EXPECT_EQ(bad.code, 24);
  EXPECT_TRUE(contains(bad.err, "stdin: ")) << bad.err;
}

TEST(Talk, SamplesAndStopStrings) {
  const Scratch scratch;
  write_chain(scratch / "m", kVocab, {{byte_id('a'), byte_id('b')}, {byte_id('b'), byte_id('a')}});
  write_file(scratch / "m/tokenizer.model", kTalkerTokenizer);
  const std::vector<std::string> base{"generate", "--model", "m", "-p", "a", "--max-tokens", "9"};
  const auto out = [&](std::vector<std::string> more) {
    more.insert(more.begin(), base.begin(), base.end());
    return run_ok(scratch, more);
  };
  EXPECT_EQ(out({}), "ababababab\n");
  EXPECT_EQ(out({"--stop", "ab"}), "ab\n");
  EXPECT_EQ(out({"--stop", "x", "--stop", "abab"}), "ab\n");
  EXPECT_EQ(out({"--stop", "b"}), "a\n");
  EXPECT_EQ(json::parse(out({"--stop", "ab", "--json"}))["text"], "ab");

  std::istringstream lines(out({"--num-samples", "3", "--temperature", "5", "--json"}));
  std::vector<json> samples;
  for (std::string line; std::getline(lines, line);) samples.push_back(json::parse(line));
  ASSERT_EQ(samples.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(samples[i]["index"], 0);
    EXPECT_EQ(samples[i]["sample"], i);
  }
  EXPECT_NE(samples[0]["ids"], samples[1]["ids"]);
  EXPECT_EQ(samples[0]["ids"], json::parse(out({"--temperature", "5", "--json"}))["ids"]);
}

json judged(const Scratch& scratch, const std::string& lines, std::vector<std::string> more = {}) {
  write_file(scratch / "task.jsonl", lines);
  std::vector<std::string> args{"eval", "--model", "m",     "--tasks",    "task.jsonl", "--dtype",
                                "fp32", "--json",  "--out", "rows.jsonl", "--force"};
  args.insert(args.end(), more.begin(), more.end());
  return json::parse(run_ok(scratch, args));
}

std::vector<json> rows_of(const Scratch& scratch) {
  std::istringstream lines(read_file(scratch / "rows.jsonl"));
  std::vector<json> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(json::parse(line));
  rows.erase(rows.begin());  // the header
  return rows;
}

TEST(Talk, TasksAreJudgedByProbabilities) {
  const Scratch scratch;
  write_talker(scratch, "m");
  // " ab" is likelier than " xx"; of equals the first is taken.
  const std::string arc =
      R"({"question": "q", "choices": {"text": ["xx", "ab"], "label": ["A", "B"]}, "answerKey": )";
  const std::string equals =
      R"({"question": "q", "choices": {"text": ["c", "d"], "label": ["1", "2"]}, "answerKey": "1"})";
  const json choice = judged(scratch, arc + "\"B\"}\n" + arc + "\"A\"}\n" + equals);
  EXPECT_EQ(choice["task"], "arc");
  EXPECT_NEAR(choice["acc"].get<double>(), 2.0 / 3, 1e-12);
  EXPECT_NEAR(choice["acc_norm_stderr"].get<double>(), 1.0 / 3, 1e-12);
  const std::vector<json> rows = rows_of(scratch);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_NEAR(rows[0]["logprobs"][0].get<double>(), kOther + 2 * kUniform, 1e-4);
  EXPECT_NEAR(rows[0]["logprobs"][1].get<double>(), kOther + kUniform + kFollows, 1e-4);
  const json same =
      json::parse(run_ok(scratch, {"eval", "--compare", "rows.jsonl", "rows.jsonl", "--json"}));
  EXPECT_EQ(same["metrics"][0]["difference"], 0);
  EXPECT_EQ(same["metrics"][0]["p"], 1);
  EXPECT_EQ(judged(scratch, arc + "\"B\"}\n" + arc + "\"A\"}\n", {"--limit", "1"})["acc"], 1);

  const json word = judged(scratch, R"({"text": "x ab"})");
  EXPECT_EQ(word["acc"], 0) << "nothing makes the space likely";
  EXPECT_NEAR(std::log(word["perplexity"].get<double>()), -2 * kUniform - kFollows, 1e-4);

  const json number = judged(scratch, R"({"question": "q", "answer": "#### 7"})");
  EXPECT_EQ(number["exact_match_flexible"], 1);
  EXPECT_EQ(number["exact_match_strict"], 0);
  EXPECT_EQ(rows_of(scratch)[0]["text"], "7");
}

TEST(Talk, PerplexityOfATextIsThatOfItsTokens) {
  const Scratch scratch;
  write_talker(scratch, "m");
  write_file(scratch / "t.txt", "aba");
  const double sum = kUniform + kFollows + kOther;
  for (const std::string length : {"1", "2", "3", "200"}) {
    const json found =
        json::parse(run_ok(scratch, {"eval", "--model", "m", "--text", "t.txt", "--length", length,
                                     "--dtype", "fp32", "--json"}));
    EXPECT_NEAR(found["loss"].get<double>(), -sum / 3, 1e-4) << length;
    EXPECT_NEAR(found["bits_per_byte"].get<double>(), -sum / 3 / std::log(2.0), 1e-4);
    EXPECT_NEAR(std::log(found["word_perplexity"].get<double>()), -sum, 3e-4);
    EXPECT_EQ(found["tokens"], 3);
  }
  const Result both = run(scratch, {"eval", "--model", "m", "--text", "t.txt", "--data", "x"});
  EXPECT_EQ(both.code, 2);
  EXPECT_TRUE(contains(both.err, "give one of --data, --tasks and --text")) << both.err;
  const Result unread = run(scratch, {"eval", "--model", "m", "--text", "t.txt", "--limit", "1"});
  EXPECT_EQ(unread.code, 2);
  EXPECT_TRUE(contains(unread.err, "--limit does not go with --text")) << unread.err;
}

TEST(Talk, ScoreTakesManyTexts) {
  const Scratch scratch;
  write_talker(scratch, "m");
  write_file(scratch / "t.jsonl", "{\"text\": \"ab\"}\n\n{\"ids\": [5, 6, 7]}\n");
  const auto ids = [&](const std::string& list) {
    return run_ok(scratch, {"score", "--model", "m", "--ids", list});
  };
  EXPECT_EQ(run_ok(scratch, {"score", "--model", "m", "--input", "t.jsonl"}),
            ids("2,101,102") + ids("5,6,7"));
  write_file(scratch / "t.jsonl", "{\"ids\": [5, 6]}\n{\"ids\": [5, 999]}\n");
  EXPECT_EQ(run(scratch, {"score", "--model", "m", "--input", "t.jsonl"}).code, 24);
}

int free_port() {
  const int sock = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  bind(sock, reinterpret_cast<sockaddr*>(&address), size);
  getsockname(sock, reinterpret_cast<sockaddr*>(&address), &size);
  close(sock);
  return ntohs(address.sin_port);
}

bool answers(int port) {
  try {
    return http_get(port, "/health").status == 200;
  } catch (const std::exception&) {
    return false;
  }
}

// `ashlar serve` of the model "m".
struct Served {
  explicit Served(const Scratch& scratch)
      : program(scratch.path(), {"serve", "--model", "m", "--port", std::to_string(port), "--dtype",
                                 "fp32", "--slots", "2"}) {
    for (int i = 0; i < 1000 && !answers(port) && program.running(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  json post(const std::string& path, const json& body) const {
    const auto answer = http_post(port, path, body.dump());
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body);
  }
  const int port = free_port();
  Program program;
};

// The decoder of this tokenizer strips the space before a text.
TEST(Talk, TokensOfAServedAnswerJoinToItsText) {
  const Scratch scratch;
  constexpr int64_t kThe = 368, kAnd = 465, kAn = 397, kY = 511;  // " the ", " and ", " an", "y, "
  write_chain(scratch / "m", 1500, {{1, kAnd}, {kThe, kAnd}, {kAnd, kAn}, {kAn, kY}, {kY, kThe}});
  std::filesystem::copy(kData + "/tokenizers/llama2/tokenizer.json", scratch / "m");
  Served served(scratch);
  const auto choice = [&](json request) {
    request.update({{"max_tokens", 4}, {"temperature", 0}, {"logprobs", 1}});
    return served.post("/v1/completions", request)["choices"][0];
  };
  const json inside = choice({{"prompt", {1, kThe}}});
  EXPECT_EQ(inside["text"], " and  any,  the ");
  EXPECT_EQ(inside["logprobs"]["tokens"], (json{" and ", " an", "y, ", " the "}));
  const json begun = choice({{"prompt", {1}}});
  EXPECT_EQ(begun["text"], "and  any,  the ");
  EXPECT_EQ(begun["logprobs"]["tokens"], (json{"and ", " an", "y, ", " the "}));
  EXPECT_TRUE(begun["logprobs"]["top_logprobs"][0].contains("and "));
  const json echo = choice({{"prompt", {kThe, kAnd}}, {"echo", true}});
  EXPECT_EQ(echo["text"], "the  and  any,  the  and ");
  EXPECT_EQ(echo["logprobs"]["tokens"], (json{"the ", " and ", " an", "y, ", " the ", " and "}));
}

TEST(Talk, ServeAnswersTextsAndChats) {
  const Scratch scratch;
  write_talker(scratch, "m");
  Served served(scratch);
  const auto post = [&](const std::string& path, const json& body) {
    return served.post(path, body);
  };
  const json chat =
      post("/v1/chat/completions", {{"model", "any"},
                                    {"messages", {{{"role", "user"}, {"content", "xa"}}}},
                                    {"temperature", 0},
                                    {"logprobs", true}});
  EXPECT_EQ(chat["choices"][0]["message"], (json{{"role", "assistant"}, {"content", "b"}}));
  EXPECT_EQ(chat["choices"][0]["finish_reason"], "stop");
  const json token = chat["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(token["token"], "b");
  EXPECT_EQ(token["bytes"], json{98});
  EXPECT_NEAR(token["logprob"].get<double>(), kFollows, 1e-5);

  const json text = post("/v1/completions", {{"prompt", {"xa", "a\u00e9"}},
                                             {"max_tokens", 1},
                                             {"temperature", 0},
                                             {"logprobs", 1},
                                             {"echo", true}});
  EXPECT_EQ(text["choices"][0]["text"], "xab");
  EXPECT_EQ(text["choices"][0]["logprobs"]["tokens"], (json{"", "x", "a", "b"}));
  EXPECT_EQ(text["choices"][0]["logprobs"]["text_offset"], (json{0, 0, 1, 2}));
  EXPECT_EQ(text["choices"][1]["logprobs"]["tokens"][2], "bytes:\\xc3");
  const json stopped =
      post("/v1/completions", {{"prompt", "xa"}, {"temperature", 0}, {"stop", "b"}});
  EXPECT_EQ(stopped["choices"][0]["text"], "");
  EXPECT_EQ(stopped["choices"][0]["finish_reason"], "stop");
  served.program.send(SIGTERM);
  const Result result = served.program.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "serving m at http://127.0.0.1:" + std::to_string(served.port) + "/v1\n");
}

}  // namespace
}  // namespace ashlar::integration
