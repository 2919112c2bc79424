#include "ashlar/serve/server.h"

#include <atomic>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>

#include "ashlar/core/prometheus.h"
#include "ashlar/serve/http_server.h"

namespace ashlar::serve {
namespace {

constexpr std::chrono::milliseconds kPatience{200};  // between looks at the client
constexpr const char* kJsonType = "application/json";

std::string error_body(std::string_view message, int status) {
  const char* type = status >= 500 ? "server_error" : "invalid_request_error";
  return one_line(
      {{"error", {{"message", message}, {"type", type}, {"param", nullptr}, {"code", nullptr}}}});
}

void set_error(httplib::Response& response, int status, std::string_view message) {
  response.status = status;
  response.set_content(error_body(message, status), kJsonType);
}

struct Fault {
  int status;
  std::string message;
};

Fault fault_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Busy& busy) {
    return {503, busy.what()};
  } catch (const Error& known) {
    const bool theirs = known.kind() == ErrorKind::kData || known.kind() == ErrorKind::kConfig;
    return {theirs ? 400 : 500, known.what()};
  } catch (...) {
    return {500, report_of(error).message};
  }
}

// False, with the answer, for a body of another type or that is too long.
bool read_body(const httplib::Request& request, httplib::Response& response,
               const httplib::ContentReader& reader, std::string& body) {
  // A page in a browser cannot send this type to another host unasked.
  if (!request.get_header_value("Content-Type").starts_with(kJsonType)) {
    set_error(response, 415, "the body's Content-Type is not application/json");
    return false;
  }
  bool too_long = false;
  const bool whole = reader([&](const char* data, size_t size) {
    too_long = body.size() + size > kMaxBodyBytes;
    if (!too_long) body.append(data, size);
    return !too_long;
  });
  if (too_long)
    set_error(response, 413, fmt::format("the body has more than {} bytes", kMaxBodyBytes));
  else if (!whole)
    set_error(response, 400, "the body did not come whole, or in time");
  return whole && !too_long;
}

// The paths that are served, and the method of each.
const std::map<std::string, std::string>& methods_of_paths() {
  static const std::map<std::string, std::string> kMethods = {{"/v1/completions", "POST"},
                                                              {"/v1/chat/completions", "POST"},
                                                              {"/v1/models", "GET"},
                                                              {"/metrics", "GET"},
                                                              {"/health", "GET"}};
  return kMethods;
}

bool is_served(const httplib::Request& request) {
  const auto found = methods_of_paths().find(request.path);
  if (found == methods_of_paths().end()) return false;
  return request.method == found->second || (request.method == "HEAD" && found->second == "GET");
}

bool is_loopback(std::string_view host) {
  return host == "localhost" || host == "127.0.0.1" || host == "::1" || host == "[::1]";
}

// False on a loopback address for a request that names another host: a page in a browser sends it
// whose name was made to lead to this machine.
bool names_this_host(const httplib::Request& request, const std::string& host) {
  const std::string given = request.get_header_value("Host");
  if (!is_loopback(host) || given.empty()) return true;
  const size_t end = given.front() == '[' ? given.find(']') + 1 : given.find(':');
  const std::string name = given.substr(0, end);
  return name == host || is_loopback(name);
}

// The number of answers by path and status, for /metrics.
class RequestCounts {
 public:
  void add(const std::string& path, int status) {
    const std::lock_guard lock(mutex_);
    ++counts_[{methods_of_paths().contains(path) ? path : "other", status}];
  }
  void add_to(PrometheusText& text) const {
    text.begin("ashlar_http_requests_total", "counter", "Answers by path and status.");
    const std::lock_guard lock(mutex_);
    for (const auto& [key, count] : counts_)
      text.add(double(count), fmt::format("path=\"{}\",status=\"{}\"", key.first, key.second));
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> counts_;
};

std::string metrics_of(const EngineCounts& counts, const RequestCounts& requests) {
  PrometheusText text;
  requests.add_to(text);
  text.add("ashlar_slots", "gauge", "Answers that are made at a time.", double(counts.slots));
  text.add("ashlar_slots_used", "gauge", "Answers in slots.", double(counts.used));
  text.add("ashlar_answers_waiting", "gauge", "Answers that wait for a slot.",
           double(counts.waiting));
  text.add("ashlar_answers_cancelled_total", "counter",
           "Answers that ended because their client left, or at a stop string.",
           double(counts.cancelled));
  text.add("ashlar_prompt_tokens_total", "counter", "Tokens of prompts, once for each answer.",
           double(counts.prompt_tokens));
  text.add("ashlar_generated_tokens_total", "counter", "Tokens that were made.",
           double(counts.new_tokens));
  text.add("ashlar_steps_total", "counter", "Steps of the slots.", double(counts.steps));
  text.add("ashlar_step_seconds_total", "counter", "Seconds in steps.", counts.step_seconds);
  return text.text();
}

// Sends what has come; false ends the connection.
bool send_events(TextAnswers& answers, httplib::DataSink& sink) {
  std::string events;
  try {
    answers.advance(kPatience);
    events = answers.take_events();
  } catch (...) {
    const Fault fault = fault_of(std::current_exception());
    events = fmt::format("data: {}\n\n", error_body(fault.message, fault.status));
    sink.write(events.data(), events.size());
    sink.done();
    return true;
  }
  if (!events.empty() && !sink.write(events.data(), events.size())) return false;
  if (answers.ended()) {
    sink.done();
    return true;
  }
  return sink.is_writable();
}

}  // namespace

struct Server::Routes {
  Routes(const ServedModel& model, SlotEngine& engine, const std::string& host,
         const HttpLimits& limits)
      : model(model), engine(engine), host(host), http(limits) {
    http.set_pre_routing_handler([this](const auto& request, auto& response) {
      return is_refused(request, response) ? httplib::Server::HandlerResponse::Handled
                                           : httplib::Server::HandlerResponse::Unhandled;
    });
    add_paths();
    http.set_error_handler([](const auto& request, auto& response) {
      if (response.body.empty())
        set_error(response, response.status,
                  response.status == 404
                      ? fmt::format("there is no {} {}", request.method, request.path)
                      : "the request is no valid HTTP, or too long, or too slow");
    });
    http.set_exception_handler([](const auto&, auto& response, const std::exception_ptr& error) {
      const Fault fault = fault_of(error);
      set_error(response, fault.status, fault.message);
    });
    http.set_logger([this](const auto& request, const auto& response) {
      counts.add(request.path, response.status);
    });
  }

  // Answers without reading a body.
  bool is_refused(const httplib::Request& request, httplib::Response& response) const {
    if (!names_this_host(request, host))
      set_error(response, 403, "the header Host names another host than this one");
    else if (!is_served(request))
      response.status = 404;
    else
      return false;
    return true;
  }

  void add_paths() {
    for (const auto& [path, kind] : {std::pair("/v1/completions", RequestKind::kCompletion),
                                     std::pair("/v1/chat/completions", RequestKind::kChat)})
      http.Post(path, [this, kind = kind](const auto& request, auto& response, const auto& reader) {
        answer(kind, request, response, reader);
      });
    http.Get("/v1/models",
             [this](const auto&, auto& response) { response.set_content(models(), kJsonType); });
    http.Get("/health", [](const auto&, auto& response) { response.set_content("{}", kJsonType); });
    http.Get("/metrics", [this](const auto&, auto& response) {
      response.set_content(metrics_of(engine.counts(), counts), kPrometheusType);
    });
  }

  std::string models() const {
    return one_line({{"object", "list"},
                     {"data", Ordered::array({{{"id", model.name},
                                               {"object", "model"},
                                               {"created", started},
                                               {"owned_by", "ashlar"},
                                               {"max_model_len", model.context}}})}});
  }

  void answer(RequestKind kind, const httplib::Request& request, httplib::Response& response,
              const httplib::ContentReader& reader) {
    std::string body;
    if (!read_body(request, response, reader, body)) return;
    const auto answers = std::make_shared<TextAnswers>(model, engine, parse_request(body, kind),
                                                       kind, ++number, int64_t(std::time(nullptr)));
    if (answers->streams())
      return response.set_chunked_content_provider(
          "text/event-stream",
          [answers](size_t, httplib::DataSink& sink) { return send_events(*answers, sink); });
    while (!answers->ended()) {
      answers->advance(kPatience);
      // Without a client the answers go, and leave their slots.
      if (!request.progress(0, 0)) return;
    }
    response.set_content(answers->whole(), kJsonType);
  }

  const ServedModel& model;
  SlotEngine& engine;
  const std::string host;
  RequestCounts counts;
  std::atomic<int64_t> number{0};
  const int64_t started = int64_t(std::time(nullptr));
  int port = 0;
  HttpServer http;  // ends first, since its threads use all above
};

Server::Server(const ServedModel& model, SlotEngine& engine, const std::string& host, int port,
               const HttpLimits& limits)
    : routes_(std::make_unique<Routes>(model, engine, host, limits)) {
  routes_->port = routes_->http.bind(host, port);
}

Server::~Server() = default;

int Server::port() const {
  return routes_->port;
}

void Server::start() {
  routes_->http.start();
}

}  // namespace ashlar::serve
