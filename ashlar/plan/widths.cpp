#include "ashlar/plan/widths.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ashlar/core/json.h"
#include "ashlar/core/text.h"
#include "ashlar/report/plot.h"

namespace ashlar::plan {
namespace {

using sizing::MoeChoice;

constexpr size_t kShownShapes = 20;

sizing::MoeTarget moe_target(const MachineFile& machine, std::vector<std::string>& notes) {
  const machine::Profile& profile = machine.profile;
  const auto* units = profile.find("device.compute_units");
  const auto* launch = profile.find("launch.kernel");
  if (!units)
    notes.push_back(
        fmt::format("{}: device.compute_units is not known: products fill it", profile.name));
  if (!launch)
    notes.push_back(
        fmt::format("{}: launch.kernel is not known: launches take no time (ashlar bench launch)",
                    profile.name));
  return {sizing::MachineRates(profile, machine.kernels, 1, true),
          units ? int64_t(units->value) : 0, launch ? 1e-6 * launch->value : 0};
}

std::vector<const MoeChoice*> front_of(const Widths& widths, size_t target) {
  std::vector<const MoeChoice*> front;
  for (const MoeChoice& choice : widths.choices)
    if (choice.on_front[target]) front.push_back(&choice);
  std::sort(front.begin(), front.end(),
            [](const auto* a, const auto* b) { return a->train_s < b->train_s; });
  return front;
}

std::string width_row(const MoeChoice& c, size_t target, const char* mark) {
  return fmt::format("{:>5} {:>3} {:>6} {:>4} {:>9.3f} {:>9.3f} {:>11.3f} {:>11.1f}  {}\n",
                     c.shape.experts, c.shape.chosen, c.shape.width, c.shape.blocks, 1e-9 * c.total,
                     1e-9 * c.active, 1e6 * c.train_s, 1e6 * c.generate_s[target], mark);
}

// How far the recipe's shape is behind: the fastest of the front that is no slower in the other.
std::string own_text(const Widths& widths, size_t target) {
  const MoeChoice& own = widths.choices.front();
  if (own.on_front[target]) return "the recipe's shape is on the front";
  if (!own.fits[target]) return "the recipe's shape does not fit into this machine's memory";
  double train = 1, generate = 1;
  for (const MoeChoice* c : front_of(widths, target)) {
    if (c->generate_s[target] <= own.generate_s[target])
      train = std::min(train, c->train_s / own.train_s);
    if (c->train_s <= own.train_s)
      generate = std::min(generate, c->generate_s[target] / own.generate_s[target]);
  }
  return fmt::format(
      "the recipe's shape is behind the front: {:.1f} % in training at its time of generation, "
      "{:.1f} % in generation at its time of training",
      100 * (1 - train), 100 * (1 - generate));
}

}  // namespace

Widths widths_of(const Recipe& recipe, const std::vector<MachineFile>& machines,
                 const sizing::MoeWidthsOptions& options) {
  Widths widths;
  widths.recipe = recipe.name.empty() ? recipe.source : recipe.name;
  const Recipe alone = with_bucket_bytes(recipe, 1, machines.front());
  const sizing::StepShape base = sizing::step_shape(alone, resolve_parallel(alone, 1), true);
  widths.own = sizing::shape_of(base.model);
  std::vector<sizing::MoeTarget> targets;
  for (const MachineFile& machine : machines) targets.push_back(moe_target(machine, widths.notes));
  widths.choices = sizing::moe_widths(base, targets.front(), targets, options);
  widths.notes.push_back(
      fmt::format("a rank trains micro-batches of {} x {} tokens and has all experts",
                  base.micro_batch, base.sequence_length));
  widths.notes.push_back("loads of experts have an entropy of 0.99 of an even load");
  widths.notes.push_back("a choice of several experts takes a linear router");
  widths.notes.push_back("generation of one token at a time, weights in bf16");
  widths.notes.push_back("times are laws: what a shape learns is not judged");
  return widths;
}

std::string describe(const Widths& widths, const std::vector<MachineFile>& machines) {
  const auto& own = widths.own;
  std::string text =
      fmt::format("{}: {} shapes within tolerance of E {}, k {}, I {}, L {}; training on {}\n",
                  widths.recipe, widths.choices.size(), own.experts, own.chosen, own.width,
                  own.blocks, machines.front().profile.name);
  for (size_t target = 0; target < machines.size(); ++target) {
    const std::vector<const MoeChoice*> front = front_of(widths, target);
    text += fmt::format("\ngeneration on {}: {} shapes that no other beats in both\n",
                        machines[target].profile.name, front.size());
    text += fmt::format("{:>5} {:>3} {:>6} {:>4} {:>9} {:>9} {:>11} {:>11}\n", "E", "k", "I", "L",
                        "total G", "active G", "train us", "token us");
    for (size_t i = 0; i < std::min(front.size(), kShownShapes); ++i)
      text += width_row(*front[i], target, front[i]->shape == own ? "recipe" : "");
    if (front.size() > kShownShapes)
      text += fmt::format("  ... {} more (--json)\n", front.size() - kShownShapes);
    if (!widths.choices.front().on_front[target])
      text += width_row(widths.choices.front(), target, "recipe");
    text += own_text(widths, target) + "\n";
  }
  text += "\n";
  for (const MachineFile& machine : machines) {
    text += fmt::format("machine  {}, fingerprint {}\n", machine.profile.name,
                        machine.profile.fingerprint());
    for (const std::string& name : machine.profile.assumed())
      text += fmt::format("assumed  {}: {}\n", machine.profile.name, name);
  }
  for (const std::string& note : widths.notes) text += fmt::format("assumed  {}\n", note);
  text.pop_back();
  return text;
}

std::string to_json(const Widths& widths, const std::vector<MachineFile>& machines) {
  Ordered shapes = Ordered::array(), names = Ordered::array(), assumed = Ordered::array();
  for (const MachineFile& machine : machines) {
    names.push_back(
        {{"name", machine.profile.name}, {"fingerprint", machine.profile.fingerprint()}});
    for (const std::string& name : machine.profile.assumed())
      assumed.push_back(fmt::format("{}: {}", machine.profile.name, name));
  }
  for (const std::string& note : widths.notes) assumed.push_back(note);
  for (const MoeChoice& c : widths.choices)
    shapes.push_back({{"experts", c.shape.experts},
                      {"chosen", c.shape.chosen},
                      {"width", c.shape.width},
                      {"blocks", c.shape.blocks},
                      {"parameters", c.total},
                      {"active_parameters", c.active},
                      {"train_s", c.train_s},
                      {"generate_s", c.generate_s},
                      {"fits", c.fits},
                      {"on_front", c.on_front}});
  Ordered json = {{"format", "ashlar-widths-1"},
                  {"recipe", widths.recipe},
                  {"machines", names},
                  {"shapes", shapes},
                  {"assumed", assumed}};
  return one_line(json);
}

std::string to_svg(const Widths& widths, const std::vector<MachineFile>& machines) {
  constexpr size_t kMostMachines = 4;  // two series each
  report::Plot plot{.title = widths.recipe + ": shapes that no other beats in both",
                    .x_label = "us of training a token",
                    .y_label = "us of generating a token",
                    .series = {}};
  for (size_t target = 0; target < std::min(machines.size(), kMostMachines); ++target) {
    report::Series front{machines[target].profile.name, {}};
    for (const MoeChoice* c : front_of(widths, target))
      front.points.push_back({1e6 * c->train_s, 1e6 * c->generate_s[target]});
    if (!front.points.empty()) plot.series.push_back(std::move(front));
    const MoeChoice& own = widths.choices.front();
    plot.series.push_back({machines[target].profile.name + ", recipe",
                           {{1e6 * own.train_s, 1e6 * own.generate_s[target]}}});
  }
  return report::to_svg(plot);
}

}  // namespace ashlar::plan
