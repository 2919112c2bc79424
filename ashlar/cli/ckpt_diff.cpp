// ashlar ckpt diff A B [--values] [--component NAME] [--json]
#include <nlohmann/json.hpp>

#include "ashlar/cli/ckpt.h"
#include "ashlar/core/json.h"
#include "ashlar/core/text.h"
#include "ashlar/models/diff.h"

namespace ashlar::cli {
namespace {

using models::Diff;
using models::TensorDiff;

struct DiffFlags {
  std::string a, b, component;
  bool values = false, json = false;
};

std::optional<checkpoint::Component> parse_component(const std::string& name) {
  if (name.empty()) return std::nullopt;
  for (const auto component : {checkpoint::Component::kModel, checkpoint::Component::kOptim,
                               checkpoint::Component::kLoader})
    if (name == checkpoint::name_of(component)) return component;
  ASHLAR_FAIL(kConfig, "--component is {}; expected model, optim or loader", name);
}

int64_t bytes_of(const LogicalTensor& tensor) {
  return tensor.global_shape.numel() * size_of(tensor.dtype);
}

std::string text_of(const LogicalTensor& tensor) {
  return fmt::format("{} {}, {}", name_of(tensor.dtype), tensor.global_shape.to_string(),
                     format_bytes(bytes_of(tensor)));
}

std::string text_of(const models::ValueDiff& values, int64_t numel) {
  std::string text = fmt::format("{} of {} elements differ", format_thousands(values.differing),
                                 format_thousands(numel));
  if (values.differing > values.not_finite)
    text += fmt::format(", by at most {:.4g}", values.max_abs);
  if (values.not_finite)
    text += fmt::format(", {} not finite", format_thousands(values.not_finite));
  return text;
}

// The differences, in one line.
std::string text_of(const TensorDiff& tensor) {
  if (!tensor.b) return fmt::format("only in A: {}", text_of(*tensor.a));
  if (!tensor.a) return fmt::format("only in B: {}", text_of(*tensor.b));
  const auto& [a, b] = std::pair(*tensor.a, *tensor.b);
  std::string text;
  if (a.dtype != b.dtype || !(a.global_shape == b.global_shape))
    text = fmt::format("{} in A, {} in B", text_of(a), text_of(b));
  if (tensor.values)
    text += (text.empty() ? "" : "; ") + text_of(*tensor.values, a.global_shape.numel());
  return text;
}

Ordered json_of(const std::optional<LogicalTensor>& tensor) {
  if (!tensor) return nullptr;
  return {{"dtype", name_of(tensor->dtype)},
          {"shape", tensor->global_shape.dims()},
          {"bytes", bytes_of(*tensor)}};
}

Ordered json_of(const TensorDiff& tensor) {
  Ordered row{{"name", tensor.name},
              {"component", checkpoint::name_of(tensor.component)},
              {"equal", tensor.equal()},
              {"a", json_of(tensor.a)},
              {"b", json_of(tensor.b)}};
  if (tensor.values)
    row["values"] = {{"differing", tensor.values->differing},
                     {"not_finite", tensor.values->not_finite},
                     {"max_abs", tensor.values->max_abs}};
  return row;
}

std::string summary_of(const Diff& diff, const DiffFlags& flags) {
  int64_t differing = 0, bytes = 0;
  for (const TensorDiff& tensor : diff.tensors) {
    differing += !tensor.equal();
    bytes += bytes_of(tensor.a ? *tensor.a : *tensor.b);
  }
  std::string text = differing
                         ? fmt::format("{} of {} tensors differ", differing, diff.tensors.size())
                         : fmt::format("{} tensors are equal{}, {}", diff.tensors.size(),
                                       flags.values ? ", bit for bit" : " in name, shape and type",
                                       format_bytes(bytes));
  for (const checkpoint::Component component : diff.left_out)
    text += fmt::format("; {} is not compared, which a Hugging Face directory cannot hold",
                        checkpoint::name_of(component));
  return text;
}

void print(const Diff& diff, const DiffFlags& flags, const std::string& a, const std::string& b) {
  if (!flags.json) {
    for (const TensorDiff& tensor : diff.tensors)
      if (!tensor.equal()) print_result(fmt::format("{}: {}", tensor.name, text_of(tensor)));
    print_result(fmt::format("A {}, B {}: {}", a, b, summary_of(diff, flags)));
    return;
  }
  Ordered rows = Ordered::array(), left_out = Ordered::array();
  for (const TensorDiff& tensor : diff.tensors) rows.push_back(json_of(tensor));
  for (const checkpoint::Component component : diff.left_out)
    left_out.push_back(checkpoint::name_of(component));
  print_json(one_line({{"a", a},
                       {"b", b},
                       {"equal", diff.equal()},
                       {"not_compared", left_out},
                       {"tensors", rows}}));
}

int compare(const DiffFlags& flags, Log& log) {
  const auto files = posix_files();
  const models::DiffOptions options{.values = flags.values,
                                    .component = parse_component(flags.component),
                                    .num_threads = 0,
                                    .log = &log};
  auto a = models::open_tensors(*files, flags.a, log);
  const auto b = models::open_tensors(*files, flags.b, log);
  a.share_memory_with(b);
  const Diff found = models::diff(a, b, options);
  print(found, flags, a.directory(), b.directory());
  return found.equal() ? 0 : 1;
}

}  // namespace

void add_ckpt_diff(CLI::App& group, CommandAction& action) {
  const auto flags = std::make_shared<DiffFlags>();
  CLI::App* verb = add_verb(group, action, "diff",
                            "what differs between two steps, roots or Hugging Face directories; "
                            "exit code 1 if anything does",
                            flags, compare);
  verb->add_option("A", flags->a)->required();
  verb->add_option("B", flags->b)->required();
  verb->add_flag("--values", flags->values, "read and compare every element");
  verb->add_option("--component", flags->component, "model, optim or loader alone (default: all)");
  verb->add_flag("--json", flags->json, "print JSON, a row for every tensor");
}

}  // namespace ashlar::cli
