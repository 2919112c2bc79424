// ashlar serve --model DIR [--host 127.0.0.1 --port N]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>

#include "ashlar/cli/compute_flags.h"
#include "ashlar/cli/sampling_flags.h"
#include "ashlar/core/signals.h"
#include "ashlar/core/text.h"
#include "ashlar/eval/model_texts.h"
#include "ashlar/nn/precision.h"
#include "ashlar/serve/server.h"

namespace ashlar::cli {
namespace {

// Tokens of a prompt that the other answers wait for.
constexpr int64_t kServedChunk = 256;
constexpr int64_t kUsualContext = 4096;
constexpr int64_t kMaxWaiting = 1024;  // answers
constexpr int64_t kMaxSlots = 1024;

struct ServeFlags {
  std::string model, name, chat_template, weights = "full", host = "127.0.0.1";
  eval::ComputeFlags compute;
  int port = 8000;
  int64_t num_slots = 16;
  std::optional<int64_t> context;
};

int64_t context_of(const ServeFlags& flags, const eval::ModelSource& source) {
  const int64_t context =
      flags.context.value_or(std::min(kUsualContext, source.spec.max_positions));
  ASHLAR_REQUIRE(context >= 2 && context <= eval::kMaxTokens, kConfig,
                 "--context is {}; expected 2 to {}", context, eval::kMaxTokens);
  return context;
}

// The template of --chat-template, or else the model's, if it has one that can be read.
std::optional<eval::ChatPrompts> find_chats(const ServeFlags& flags, FileSystem& files,
                                            const eval::ModelSource& source,
                                            const eval::ModelTexts& texts, Log& log) {
  std::optional<eval::ChatPrompts> chats;
  if (!texts.tokenizer) return chats;
  try {
    chats.emplace(files, source, *texts.tokenizer, texts.files, flags.chat_template);
  } catch (const Error& error) {
    if (!flags.chat_template.empty() || error.kind() != ErrorKind::kData) throw;
    log.warn("no chats, only completions: {}", error.what());
  }
  return chats;
}

void warn_of_others(const std::string& host, Log& log) {
  if (host != "127.0.0.1" && host != "localhost" && host != "::1")
    log.warn("everyone who reaches {} can use the model: there are no keys and no encryption",
             host);
}

int serve_model(const ServeFlags& flags, Log& log) {
  ASHLAR_REQUIRE(flags.port >= 0 && flags.port < 65536, kConfig,
                 "--port is {}; expected 0 to 65535", flags.port);
  ASHLAR_REQUIRE(flags.num_slots > 0 && flags.num_slots <= kMaxSlots, kConfig,
                 "--slots is {}; expected 1 to {}", flags.num_slots, kMaxSlots);
  eval::check(flags.compute);
  const bool int8_weights =
      eval::parse_int8_weights(flags.weights, nn::parse_precision(flags.compute.dtype));
  const auto files = posix_files();
  const auto source = eval::find_model(*files, flags.model, log);
  const eval::ModelTexts texts = eval::read_model_texts(*files, source, false, log);
  const std::optional<eval::ChatPrompts> chats = find_chats(flags, *files, source, texts, log);
  warn_of_unfollowed(texts.config, log);
  const int64_t context = context_of(flags, source);
  const eval::Calls calls{.max_positions = context,
                          .max_call = std::min(context, kServedChunk),
                          .cached = true,
                          .num_places = flags.num_slots,
                          .first_tokens = 1,
                          .int8_weights = int8_weights};
  eval::Runtime runtime(*files, source, flags.compute, calls, log);
  eval::warn_past_positions(source, context, log);
  eval::PromptSlots slots(
      runtime.ctx, runtime.allocator, runtime.model,
      {.num_slots = flags.num_slots, .max_tokens = context, .max_chunk = kServedChunk});
  const serve::ServedModel model{flags.name.empty() ? last_part(source.path) : flags.name, texts,
                                 source, chats ? &*chats : nullptr, context};
  const StopSignals signals;
  serve::SlotEngine engine(slots, flags.num_slots, kMaxWaiting);
  serve::Server server(model, engine, flags.host, flags.port);
  warn_of_others(flags.host, log);
  server.start();
  log.info("{} slots of {} tokens each", flags.num_slots, format_thousands(context));
  const bool ipv6 = flags.host.find(':') != std::string::npos;
  print_result(fmt::format("serving {} at http://{}:{}/v1", model.name,
                           ipv6 ? "[" + flags.host + "]" : flags.host, server.port()));
  engine.run([] { return StopSignals::requested(); });
  log.info("{}: answers under way end here", StopSignals::name());
  return 0;
}

}  // namespace

void add_serve(CLI::App& app, CommandAction& action) {
  const auto flags = std::make_shared<ServeFlags>();
  CLI::App* sub = app.add_subcommand("serve", "answer requests over HTTP, as OpenAI's API");
  sub->add_option("--model,model", flags->model,
                  "Hugging Face directory, run, checkpoint root or step")
      ->required();
  sub->add_option("--host", flags->host, "the address to listen on")->capture_default_str();
  sub->add_option("--port", flags->port, "0: any free one")->capture_default_str();
  sub->add_option("--name", flags->name, "the model's name in answers; left out: its directory's");
  sub->add_option("--context", flags->context,
                  fmt::format("tokens of a prompt and its answer; left out: {}, or what the model "
                              "is meant for",
                              kUsualContext));
  sub->add_option("--slots", flags->num_slots, "the most answers that are made at a time")
      ->capture_default_str();
  sub->add_option("--chat-template", flags->chat_template,
                  "a template, or a directory with one; left out: the model's");
  add_compute_flags(*sub, flags->compute);
  sub->add_option("--weights", flags->weights,
                  "full: as --dtype says; int8: 8 bits an element and a scale for each row")
      ->capture_default_str();
  sub->callback(
      [flags, &action] { action = [flags](Log& log) { return serve_model(*flags, log); }; });
}

}  // namespace ashlar::cli
