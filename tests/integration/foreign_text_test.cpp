// Text of others (paths, hosts, names in files) on the terminal: it stays on its line, and no byte
// of it is a command.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/integration/support.h"

namespace ashlar::integration {
namespace {

namespace fs = std::filesystem;

// A title, a cleared screen, a line of the program's own, U+009B (which is ESC [ too) and half a
// character.
const std::string kText =
    "x\x1b]0;owned\x07\x1b[2J\nashlar: all good\r\n\xc2\x9b"
    "2J\x7f";

// A file system may not take a name that is no UTF-8; JSON does not.
const std::string kName = kText + "\xff";

void expect_harmless(const std::string& text) {
  EXPECT_NE(text.find("all good"), std::string::npos) << "the text is not shown: " << text;
  EXPECT_EQ(text.find("\nashlar: all good"), std::string::npos) << text;
  EXPECT_EQ(text.find("\xc2\x9b"), std::string::npos) << text;
  EXPECT_EQ(text.find('\xff'), std::string::npos) << text;
  for (const char c : text) EXPECT_TRUE(c == '\n' || !(uint8_t(c) < ' ' || c == 127)) << text;
}

struct TextCase {
  const char* name;
  std::function<void(const Scratch&)> make;
  std::vector<std::string> args;
  int code;
};

void make_dataset(const Scratch& scratch) {
  prepare_text(scratch);
  nlohmann::json sidecar = nlohmann::json::parse(read_file(scratch / "text.json"));
  for (nlohmann::json& input : sidecar["inputs"]) input["path"] = kText;
  sidecar["tokenizer"]["kind"] = kText;
  write_file(scratch / "text.json", sidecar.dump());
}

void make_lease(const Scratch& scratch) {
  prepare_text(scratch);
  fs::create_directories(scratch / "run/checkpoints/.lease");
  const nlohmann::json lease{{"format", "ashlar-lease"},
                             {"host", kText},
                             {"boot", "another"},
                             {"pid_namespace", "another"},
                             {"pid", 1},
                             {"started", 1},
                             {"token", "0123456789abcdef0123456789abcdef"},
                             {"refresh_s", 0.01}};
  write_file(scratch / "run/checkpoints/.lease/trainer.json", lease.dump());
}

void make_model(const Scratch& scratch) {
  fs::copy(kData + "/hf_small", scratch / "model", fs::copy_options::recursive);
  const std::string shard = kText + ".safetensors";
  fs::rename(scratch / "model/model.safetensors", scratch / "model/other.safetensors");
  write_file(scratch / "model/model.safetensors.index.json",
             nlohmann::json{{"weight_map", {{kText, shard}}}}.dump());
}

const TextCase kTextCases[] = {
    {"sidecar", make_dataset, {"data", "info", "text"}, 0},
    {"prefix", [](const Scratch&) {}, {"data", "info", kName}, 24},
    {"lease", make_lease, train_args({"train.steps=1"}), 0},
    {"shard", make_model, {"score", "--model", "model", "--ids", "1,2"}, 24},
    {"flag", [](const Scratch&) {}, {"data", "--" + kName}, 2},
    {"override", [](const Scratch&) {}, train_args({"model." + kText + "=1"}), 2},
    {"recipe",
     [](const Scratch& scratch) { write_file(scratch / kText, "[model]\nhidden_size = \"a\"\n"); },
     {"train", kText},
     2},
    {"text",
     [](const Scratch& scratch) { write_file(scratch / (kText + ".jsonl"), "{\"text\": 1}\n"); },
     {"data", "prepare", "--tokenizer", "byte", "--out", "t", "--input", kText + ".jsonl"},
     24},
    {"step", [](const Scratch&) {}, {"ckpt", "show", kName}, 26},
};

TEST(ForeignText, IsPrintableOnItsLine) {
  for (const TextCase& each : kTextCases) {
    SCOPED_TRACE(each.name);
    const Scratch scratch;
    each.make(scratch);
    const Result result = run(scratch, each.args);
    EXPECT_EQ(result.code, each.code) << result.err;
    expect_harmless(result.out + result.err);
  }
}

// JSON has the same values, as escapes.
TEST(ForeignText, IsWholeInJson) {
  const Scratch scratch;
  const std::string step = "step" + kText;
  fs::copy(kData + "/golden_steps/one-writer", scratch / step, fs::copy_options::recursive);
  const std::string out = run_ok(scratch, {"ckpt", "diff", step, step, "--json"});
  expect_harmless(out);
  EXPECT_NE(out.find("\\u009b2J\\u007f"), std::string::npos) << out;
  EXPECT_EQ(nlohmann::json::parse(out)["a"], step);
}

}  // namespace
}  // namespace ashlar::integration
