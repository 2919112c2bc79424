// The service over real sockets: answers are those of the model, and no client takes more than its
// share.
#include "ashlar/serve/server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "ashlar/core/clock.h"
#include "ashlar/eval/score.h"
#include "tests/support/http.h"

namespace ashlar::serve {
namespace {

using nlohmann::json;
using testing_support::http;
using testing_support::http_get;
using testing_support::http_post;
using testing_support::HttpAnswer;
using testing_support::HttpConnection;
using testing_support::post_request;

constexpr int64_t kContext = 6000, kSlots = 3;
const char* const kPath = "/v1/completions";

// A model without a tokenizer, served on a free port.
class Service {
 public:
  explicit Service(const HttpLimits& limits = {})
      : source_(eval::find_model(*files_, std::string(ASHLAR_FIXTURES) + "/hf_llama", log_)),
        runtime_(*files_, source_, DType::kF32,
                 {.max_positions = kContext, .max_call = 16, .cached = true, .num_places = kSlots},
                 1),
        texts_(eval::read_model_texts(*files_, source_, false, log_)),
        slots_(runtime_.ctx, runtime_.allocator, runtime_.model,
               {.num_slots = kSlots, .max_tokens = kContext, .max_chunk = 16}),
        engine_(slots_, kSlots, 8),
        server_(model_, engine_, "127.0.0.1", 0, limits) {
    texts_.config = {};  // nothing ends a text
    server_.start();
    running_ = std::thread([this] { run(); });
  }
  ~Service() { stop(); }
  void stop() {
    stop_ = true;
    if (running_.joinable()) running_.join();
  }
  void break_engine() { breaks_ = true; }
  int port() const { return server_.port(); }
  EngineCounts counts() const { return engine_.counts(); }
  json answer(const json& request) const {
    const HttpAnswer answer = http_post(port(), kPath, request.dump());
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body);
  }
  // Greedy tokens and scores by another path: whole passes over the growing text.
  struct Wanted {
    std::vector<int32_t> ids, argmax;
    std::vector<double> logprobs;
  };
  static Wanted wanted(std::vector<int32_t> ids, int num_new) {
    Log log([](std::string_view) {});
    const auto files = posix_files();
    const auto source = eval::find_model(*files, std::string(ASHLAR_FIXTURES) + "/hf_llama", log);
    eval::Runtime runtime(*files, source, DType::kF32, {.max_positions = 64, .max_call = 64}, 1);
    const auto score = [&] {
      return eval::score(runtime.ctx, runtime.allocator, runtime.model, ids);
    };
    for (int i = 0; i < num_new; ++i) ids.push_back(score().argmax.back());
    const eval::Scores scores = score();
    return {ids, scores.argmax, scores.logprobs};
  }

 private:
  void run() {
    try {
      engine_.run([this] {
        if (breaks_) throw std::bad_alloc();
        return stop_.load();
      });
    } catch (const std::bad_alloc&) {
      EXPECT_TRUE(breaks_);
    }
  }
  Log log_{[](std::string_view) {}};
  std::unique_ptr<FileSystem> files_ = posix_files();
  eval::ModelSource source_;
  eval::Runtime runtime_;
  eval::ModelTexts texts_;
  ServedModel model_{"small", texts_, source_, nullptr, kContext};
  eval::PromptSlots slots_;
  SlotEngine engine_;
  Server server_;
  std::atomic<bool> stop_{false}, breaks_{false};
  std::thread running_;
};

std::vector<std::string> names_of(const std::vector<int32_t>& ids) {
  std::vector<std::string> names;
  for (const int32_t id : ids) names.push_back("token_id:" + std::to_string(id));
  return names;
}

TEST(Server, ACompletionIsWhatTheModelSays) {
  const Service service;
  const auto [ids, argmax, logprobs] = Service::wanted({3, 9, 4, 17}, 5);
  const json found = service.answer({{"prompt", {3, 9, 4, 17}},
                                     {"max_tokens", 5},
                                     {"temperature", 0},
                                     {"logprobs", 2},
                                     {"echo", true}});
  EXPECT_EQ(found["object"], "text_completion");
  EXPECT_EQ(found["model"], "small");
  EXPECT_EQ(found["usage"],
            (json{{"prompt_tokens", 4}, {"completion_tokens", 5}, {"total_tokens", 9}}));
  const json& choice = found["choices"].at(0);
  EXPECT_EQ(choice["finish_reason"], "length");
  const json& given = choice["logprobs"];
  EXPECT_EQ(given["tokens"], json(names_of(ids)));
  EXPECT_TRUE(given["token_logprobs"][0].is_null());
  for (size_t t = 1; t < ids.size(); ++t) {
    EXPECT_NEAR(given["token_logprobs"][t].get<double>(), logprobs[t - 1], 2e-5);
    double best = -HUGE_VAL;
    for (const auto& [name, value] : given["top_logprobs"][t].items())
      best = std::max(best, value.get<double>());
    EXPECT_EQ(best == given["token_logprobs"][t].get<double>(), argmax[t - 1] == ids[t]);
  }
}

TEST(Server, ThePromptAloneIsScored) {
  const Service service;
  const auto [ids, argmax, logprobs] = Service::wanted({3, 9, 4, 17}, 0);
  const json found =
      service.answer({{"prompt", ids}, {"max_tokens", 0}, {"logprobs", 0}, {"echo", true}});
  const json& given = found["choices"].at(0)["logprobs"];
  EXPECT_EQ(given["tokens"], json(names_of(ids)));
  EXPECT_TRUE(given["top_logprobs"].is_null());
  for (size_t t = 1; t < ids.size(); ++t)
    EXPECT_NEAR(given["token_logprobs"][t].get<double>(), logprobs[t - 1], 2e-5);
  EXPECT_EQ(found["usage"]["completion_tokens"], 0);
}

TEST(Server, PromptsOfAListGetWhatTheyGetAlone) {
  const Service service;
  const std::vector<std::vector<int32_t>> prompts{{3, 9, 4}, {5, 6}, {8, 8}, {1, 2, 3, 4, 5}};
  const json all =
      service.answer({{"prompt", prompts}, {"max_tokens", 7}, {"temperature", 0}, {"logprobs", 0}});
  ASSERT_EQ(all["choices"].size(), 4u);
  for (size_t i = 0; i < prompts.size(); ++i) {
    std::vector<int32_t> ids = Service::wanted(prompts[i], 7).ids;
    ids.erase(ids.begin(), ids.begin() + long(prompts[i].size()));
    EXPECT_EQ(all["choices"][i]["index"], i);
    EXPECT_EQ(all["choices"][i]["logprobs"]["tokens"], json(names_of(ids)));
  }
}

TEST(Server, DrawsFollowTheSeed) {
  const Service service;
  const auto draw = [&](int seed) {
    return service.answer({{"prompt", {3}},
                           {"max_tokens", 12},
                           {"temperature", 1},
                           {"n", 2},
                           {"logprobs", 0},
                           {"seed", seed}})["choices"];
  };
  EXPECT_EQ(draw(5), draw(5));
  EXPECT_NE(draw(5), draw(6));
  EXPECT_NE(draw(5)[0]["logprobs"], draw(5)[1]["logprobs"]);
}

TEST(Server, AStreamIsTheWholeInParts) {
  const Service service;
  json request{
      {"prompt", {3, 9}}, {"max_tokens", 6}, {"temperature", 0}, {"logprobs", 1}, {"echo", true}};
  const json whole = service.answer(request)["choices"][0];
  request["stream"] = true;
  request["stream_options"] = {{"include_usage", true}};
  const HttpAnswer answer = http_post(service.port(), kPath, request.dump());
  EXPECT_NE(answer.head.find("text/event-stream"), std::string::npos) << answer.head;
  json tokens = json::array(), logprobs = json::array(), finish, usage;
  bool done = false;
  std::istringstream lines(answer.body);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("data: ")) continue;
    done = line.starts_with("data: [DONE]");
    if (done) break;
    const json event = json::parse(line.substr(6));
    if (event.contains("usage")) usage = event["usage"];
    for (const json& choice : event["choices"]) {
      finish = choice["finish_reason"];
      for (const json& token : choice["logprobs"]["tokens"]) tokens.push_back(token);
      for (const json& each : choice["logprobs"]["token_logprobs"]) logprobs.push_back(each);
    }
  }
  EXPECT_TRUE(done);
  EXPECT_EQ(tokens, whole["logprobs"]["tokens"]);
  EXPECT_EQ(logprobs, whole["logprobs"]["token_logprobs"]);
  EXPECT_EQ(finish, "length");
  EXPECT_EQ(usage["completion_tokens"], 6);
}

// The engine asks between the chunks of a prompt, 16 tokens each, whether it stops.
TEST(Server, ALongPromptTakesManySteps) {
  const Service service;
  const json found = service.answer({{"prompt", std::vector<int32_t>(1600, 7)}, {"max_tokens", 1}});
  EXPECT_EQ(found["usage"]["completion_tokens"], 1);
  EXPECT_EQ(service.counts().steps, 100);
}

// Waits until no answer is under way.
void expect_idle(const Service& service) {
  const auto start = Clock::now();
  while (service.counts().used + service.counts().waiting > 0) {
    ASSERT_LT(seconds_since(start), 10.0);
    std::this_thread::yield();
  }
}

TEST(Server, AClientThatLeavesFreesItsSlots) {
  const Service service;
  const json request{
      {"prompt", {{1}, {2}, {3}, {4}}}, {"max_tokens", kContext - 1}, {"logprobs", 0}};
  for (const bool streams : {true, false}) {
    const int64_t before = service.counts().cancelled;
    {
      json body = request;
      body["stream"] = streams;
      const HttpConnection connection(service.port());
      connection.send(post_request(kPath, body.dump()));
      if (streams) connection.receive("data: ");
      const auto start = Clock::now();
      while (service.counts().used < kSlots && seconds_since(start) < 10) std::this_thread::yield();
    }
    expect_idle(service);
    EXPECT_EQ(service.counts().cancelled, before + 4);
  }
  EXPECT_LT(service.counts().new_tokens, 8 * (kContext - 1));
  EXPECT_EQ(service.answer({{"prompt", {5}}, {"max_tokens", 2}})["choices"].size(), 1u);
}

TEST(Server, FaultsOfRequestsHaveAMessage) {
  const Service service;
  const struct {
    std::string request;
    int status;
    const char* named;
  } cases[] = {
      {post_request(kPath, "{"), 400, "not valid JSON"},
      {post_request(kPath, R"({"prompt": [999999]})"), 400, "999999"},
      {post_request(kPath, R"({"prompt": "text"})"), 400, "no tokenizer"},
      {post_request(kPath, R"({"prompt": [1], "stop": "x"})"), 400, "no tokenizer"},
      {post_request(kPath, R"({"prompt": [1], "max_tokens": 6000})"), 400, "holds 6000 together"},
      {post_request(kPath, R"({"prompt": [1], "max_tokens": 6000, "stream": true})"), 400,
       "holds 6000 together"},
      {post_request("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "a"}]})"),
       400, "no chat template"},
      {post_request(kPath, R"({"prompt": [1], "max_tokens": 5000, "n": 10, "logprobs": 20})"), 400,
       "log-probabilities"},
      {post_request(kPath, "{}", "text/plain"), 415, "application/json"},
      {post_request("/v1/nothing", "{}"), 404, "POST /v1/nothing"},
      {post_request(kPath, std::string(kMaxBodyBytes + 1, ' ')), 413, "more than"},
      {"GET /v1/completions HTTP/1.1\r\nConnection: close\r\n\r\n", 404, "GET /v1/completions"},
      {"NONSENSE\r\n\r\n", 400, "no valid HTTP"},
      {"POST " + std::string(kPath) +
           " HTTP/1.1\r\nContent-Type: application/json\r\n"
           "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\n{\"pro\r\nnot a size\r\n",
       400, ""},
  };
  for (const auto& each : cases) {
    const HttpAnswer answer = http(service.port(), each.request);
    EXPECT_EQ(answer.status, each.status) << answer.body;
    EXPECT_NE(answer.body.find(each.named), std::string::npos) << answer.body;
    EXPECT_TRUE(json::accept(answer.body)) << answer.body;
  }
  const HttpAnswer busy = http_post(
      service.port(), kPath,
      json{{"prompt", std::vector<std::vector<int32_t>>(9, {1})}, {"max_tokens", 1}}.dump());
  EXPECT_EQ(busy.status, 503) << "more than may wait";
  expect_idle(service);
}

TEST(Server, SlowAndHalfRequestsEnd) {
  const Service service({.threads = 4,
                         .idle = std::chrono::milliseconds(150),
                         .header_time = std::chrono::milliseconds(100),
                         .body_time = std::chrono::milliseconds(100)});
  // Nothing, half a line, half of the headers, half a body.
  for (const std::string part :
       {"", "GET /hea", "GET /health HTTP/1.1\r\nHost: localhost\r\n",
        "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: "
        "1000\r\n\r\n{\"prompt\": "}) {
    const HttpConnection connection(service.port());
    connection.send(part);
    const auto start = Clock::now();
    connection.receive();  // until the server closes
    EXPECT_LT(seconds_since(start), 5.0) << part;
  }
  EXPECT_EQ(http_get(service.port(), "/health").status, 200);
}

// Two are served and two wait, until they have been idle too long; the others are refused.
TEST(Server, ConnectionsTooManyAreRefusedAtOnce) {
  const Service service({.threads = 2, .idle = std::chrono::milliseconds(150)});
  std::vector<std::unique_ptr<HttpConnection>> idle;
  for (int i = 0; i < 12; ++i) idle.push_back(std::make_unique<HttpConnection>(service.port()));
  int num_refused = 0;
  for (const auto& connection : idle) {
    const std::string answer = connection->receive();
    if (answer.empty()) continue;
    ++num_refused;
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 503")) << answer;
    EXPECT_TRUE(json::accept(answer.substr(answer.find("\r\n\r\n") + 4))) << answer;
  }
  EXPECT_GE(num_refused, 8);
  EXPECT_EQ(http_get(service.port(), "/health").status, 200);
}

// The times are long enough that only the number of bytes can end these.
TEST(Server, LongRequestsEnd) {
  const Service service({.header_bytes = 4096, .body_bytes = size_t{64} << 10});
  std::string lines;
  for (int i = 0; i < 1000; ++i) lines += "X-" + std::to_string(i) + ": y\r\n";
  for (const char* begin :
       {"GET /health HTTP/1.1\r\n", "GET /health HTTP/1.1\r\n\n", "GET /health HTTP/1.1\r\n\r\r\n"})
    EXPECT_EQ(http(service.port(), begin + lines + "\r\n").status, 400) << begin;
  EXPECT_EQ(
      http(service.port(), "GET /health HTTP/1.1\r\n" + lines.substr(0, 2000) + "\r\n\r\n").status,
      200);
  const std::string chunked =
      " HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(http(service.port(), "POST " + (kPath + chunked) + std::string(200'000, '0')).status,
            400)
      << "a size of a chunk without end";
  // A body for a path that is not served is not read.
  for (const char* path : {"/v1/nothing", "/health"})
    EXPECT_EQ(http(service.port(), "POST " + (path + chunked)).status, 404) << path;
}

TEST(Server, RangesDoNotMultiplyAnAnswer) {
  const Service service;
  const HttpAnswer answer =
      http(service.port(), "GET /v1/models HTTP/1.1\r\nRange: bytes=0-,0-,0-\r\n\r\n");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, http_get(service.port(), "/v1/models").body);
}

// As a page in a browser would send it whose name leads to this machine.
TEST(Server, OtherHostsAreRefused) {
  const Service service;
  const auto status = [&](const std::string& host) {
    return http(service.port(), "GET /health HTTP/1.1\r\nHost: " + host + "\r\n\r\n").status;
  };
  for (const char* host : {"localhost", "localhost:80", "127.0.0.1:8000", "[::1]", "[::1]:8000"})
    EXPECT_EQ(status(host), 200) << host;
  for (const char* host : {"example.com", "example.com:8000", "localhost.example.com", "[::2]:1"})
    EXPECT_EQ(status(host), 403) << host;
}

TEST(Server, ModelsAndMetricsAreShown) {
  const Service service;
  const json models = json::parse(http_get(service.port(), "/v1/models").body);
  EXPECT_EQ(models["data"].at(0)["id"], "small");
  EXPECT_EQ(models["data"].at(0)["max_model_len"], kContext);
  service.answer({{"prompt", {{1, 2}, {3}}}, {"max_tokens", 4}});
  http_get(service.port(), "/nothing");
  const std::string metrics = http_get(service.port(), "/metrics").body;
  for (const char* line :
       {"\nashlar_http_requests_total{path=\"/v1/completions\",status=\"200\"} 1\n",
        "\nashlar_http_requests_total{path=\"other\",status=\"404\"} 1\n",
        "\nashlar_prompt_tokens_total 3\n", "\nashlar_generated_tokens_total 8\n",
        "\nashlar_slots 3\n", "\nashlar_slots_used 0\n", "\nashlar_answers_waiting 0\n",
        "\n# TYPE ashlar_steps_total counter\n"})
    EXPECT_NE(metrics.find(line), std::string::npos) << line << metrics;
}

TEST(Server, AStopEndsWhatIsUnderWay) {
  Service service;
  const HttpConnection connection(service.port());
  connection.send(post_request(
      kPath, json{{"prompt", {1}}, {"max_tokens", kContext - 1}, {"logprobs", 0}, {"stream", true}}
                 .dump()));
  connection.receive("data: ");
  service.stop();
  EXPECT_NE(connection.receive().find("the server is stopping"), std::string::npos);
  EXPECT_EQ(http_post(service.port(), kPath, R"({"prompt": [1]})").status, 503);
}

// An exception that is no Error ends the engine, and with it all requests.
TEST(Server, AnEngineThatBreaksEndsWhatIsUnderWay) {
  Service service;
  const json request{
      {"prompt", {1}}, {"max_tokens", kContext - 1}, {"stream", true}, {"logprobs", 0}};
  const HttpConnection connection(service.port());
  connection.send(post_request(kPath, request.dump()));
  connection.receive("data: ");
  service.break_engine();
  EXPECT_NE(connection.receive().find("server_error"), std::string::npos);
  EXPECT_EQ(http_post(service.port(), kPath, R"({"prompt": [1]})").status, 503);
}

// A handler still waits for the rest of a body when the server goes; it counts its answer then.
TEST(Server, TheServerWaitsForItsHandlers) {
  auto service = std::make_unique<Service>(HttpLimits{.body_time = std::chrono::milliseconds(150)});
  const HttpConnection connection(service->port());
  connection.send("POST " + std::string(kPath) +
                  " HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n"
                  "Expect: 100-continue\r\n\r\n");
  std::string answer = connection.receive("100 Continue");
  service.reset();
  answer += connection.receive();
  EXPECT_NE(answer.find("HTTP/1.1 400"), std::string::npos) << answer;
}

}  // namespace
}  // namespace ashlar::serve
