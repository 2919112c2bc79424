// How it works.  choose_form narrows the forms down in three comparisons with the rules:
//
//   tasks   every size of tasks, a few times each in turn; the fastest stays, if any is faster
//   orders  orders of tasks and copies of rows, with that size
//   again   the fastest of all and the rules alone, by turns, often; only this one counts
#include "ashlar/bench/machine/product_tuning.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ashlar/core/json.h"
#include "ashlar/core/statistics.h"
#include "ashlar/train/product_table.h"

namespace ashlar::bench {
namespace {

using kernels::ProductForm;
using kernels::ProductKey;
using machine::ProductChoice;

double median(std::vector<double> values) {
  return repeats_of(std::move(values)).median;
}

struct Ranked {
  ProductForm form;
  double ratio;  // of its time to that of the rules
};

// The form of which the time is the smallest part of the rules', by medians.
Ranked fastest(std::span<const ProductForm> forms,
               function_ref<double(const ProductForm&)> time_us) {
  constexpr int kRounds = 3;
  constexpr size_t kRulesEvery = 4;  // forms
  std::vector<std::vector<double>> ratios(forms.size());
  for (int round = 0; round < kRounds; ++round) {
    double rule_us = 0;
    for (size_t i = 0; i < forms.size(); ++i) {
      if (i % kRulesEvery == 0) rule_us = time_us({});
      ratios[i].push_back(time_us(forms[i]) / rule_us);
    }
  }
  Ranked best{{}, 1};
  for (size_t i = 0; i < forms.size(); ++i)
    if (const double ratio = median(ratios[i]); ratio < best.ratio) best = {forms[i], ratio};
  return best;
}

// Times of a product in any form.
class FormTimes {
 public:
  FormTimes(Threads& threads, const ProductSpec& spec, const ProductKey& key)
      : product_(threads, spec), key_(key), context_(product_.context()) {
    warm_up([&] { product_.run(context_); });
    rules_.assign(product_.result().begin(), product_.result().end());
  }
  double time_us(const ProductForm& form) {
    constexpr int kCalls = 3;
    constexpr double kMost_us = 20e3;
    double best = 1e300;
    with(form, [&] {
      double all = 0;
      for (int call = 0; call < kCalls && all < kMost_us; ++call) {
        const auto begin = Clock::now();
        product_.run(context_);
        const double us = std::max(us_since(begin), 1e-3);
        best = std::min(best, us);
        all += us;
      }
    });
    return best;
  }
  bool same_bits(const ProductForm& form) {
    with(form, [&] { product_.run(context_); });
    const auto result = product_.result();
    return std::equal(result.begin(), result.end(), rules_.begin(), rules_.end());
  }

 private:
  void with(const ProductForm& form, function_ref<void()> body) {
    const kernels::ProductTable table({{key_, form}});
    context_.products = form == ProductForm{} ? nullptr : &table;
    body();
    context_.products = nullptr;
  }
  OneProduct product_;
  const ProductKey key_;
  kernels::Context context_;
  std::vector<std::byte> rules_;  // their result
};

ProductKey key_of(const ProductSpec& spec, int threads) {
  return {kernels::ProductPass(spec.direction),
          spec.own_columns,
          spec.compute,
          spec.result(),
          int32_t(spec.G),
          spec.N,
          spec.K,
          threads,
          spec.T};
}

void report(const RecipeProduct& p, const TunedForm& tuned, Findings& findings) {
  const double ratio = tuned.rule_us / tuned.form_us;
  findings.text +=
      fmt::format("{:<60} {:>8} {:>10.1f} {:>10.1f} {:>6.2f}  {}\n", p.subject(), p.call.dims.rows,
                  tuned.rule_us, tuned.form_us, ratio, tuned.form.text());
  findings.rows.push_back(one_line(Ordered{{"experiment_name", "form of " + p.subject()},
                                           {"at", p.call.dims.rows},
                                           {"at_unit", "rows"},
                                           {"value", ratio},
                                           {"unit", "1"},
                                           {"rule_us", tuned.rule_us},
                                           {"form_us", tuned.form_us},
                                           {"form", tuned.form.text()},
                                           {"wrong", int(tuned.wrong_bits)}}));
}

bool by_rules(const ProductChoice& c) {
  return c.task_rows == 0 && c.task_panels == 0 && c.order == "rule" && c.copies == "rule";
}

}  // namespace

TunedForm choose_form(const ProductKey& key, function_ref<double(const ProductForm&)> time_us,
                      function_ref<bool(const ProductForm&)> same_bits) {
  constexpr int kPairs = 16;
  Ranked tasks = fastest(kernels::task_candidates(key), time_us);
  if (tasks.ratio > kTuningGain) tasks = {{}, 1};  // noise
  const Ranked orders = fastest(kernels::order_candidates(key, tasks.form), time_us),
               best = orders.ratio < tasks.ratio ? orders : tasks;
  TunedForm result;
  if (best.form == ProductForm{}) {
    result.rule_us = result.form_us = time_us({});
    return result;
  }
  std::vector<double> rule, form, ratios;
  for (int pair = 0; pair < kPairs; ++pair) {
    rule.push_back(time_us({}));
    form.push_back(time_us(best.form));
    ratios.push_back(form.back() / rule.back());
  }
  std::sort(ratios.begin(), ratios.end());
  result.rule_us = result.form_us = median(rule);
  const bool gains = median(ratios) <= kTuningGain && ratios[3 * kPairs / 4 - 1] < 1 &&
                     median(form) <= kTuningGain * median(rule);
  if (!gains) return result;
  result.wrong_bits = !same_bits(best.form);
  if (result.wrong_bits) return result;
  result.form = best.form;
  result.form_us = median(form);
  return result;
}

Findings tune_products(const Rig& rig, const RecipeProductOptions& options,
                       std::vector<ProductChoice>& choices) {
  ASHLAR_REQUIRE(rig.ranks.size() == 1, kConfig,
                 "--tune measures on one rank, but there are {}; leave out --ranks, and give "
                 "--threads as many as a rank will have",
                 rig.ranks.size());
  Findings findings;
  findings.text += fmt::format("{:<60} {:>8} {:>10} {:>10} {:>6}  {}\n", "product", "rows",
                               "rules, us", "form, us", "gain", "form");
  const int world = options.world > 0 ? options.world : 1;
  int64_t gained = 0, tried = 0;
  for (const RecipeProduct& p :
       list_products(options.layouts, compute_of(rig, options), world, rig.threads)) {
    if (!p.product || p.subject().find(options.only) == std::string::npos) continue;
    if (!rig.goes_on()) {
      ++findings.num_left_out;
      break;
    }
    const ProductKey key = key_of(*p.product, rig.threads.size());
    FormTimes times(rig.threads, *p.product, key);
    const TunedForm tuned = choose_form(
        key, [&](const ProductForm& form) { return times.time_us(form); },
        [&](const ProductForm& form) { return times.same_bits(form); });
    report(p, tuned, findings);
    if (tuned.wrong_bits) {
      machine::Measured fault;
      fault.name = fmt::format("a form of {}", p.subject());
      fault.num_wrong = 1;
      findings.faults.push_back(std::move(fault));
    }
    ProductChoice choice = train::choice_of({key, tuned.form});
    choice.rule_us = tuned.rule_us;
    choice.form_us = tuned.form_us;
    choices.push_back(std::move(choice));
    ++tried;
    gained += tuned.form != ProductForm{};
  }
  findings.text += fmt::format("{} of {} products have a faster form\n", gained, tried);
  return findings;
}

std::vector<ProductChoice> merged(std::vector<ProductChoice> older,
                                  const std::vector<ProductChoice>& newer) {
  std::erase_if(older, [&](const ProductChoice& choice) {
    return std::any_of(newer.begin(), newer.end(),
                       [&](const ProductChoice& other) { return choice.same_product(other); });
  });
  older.insert(older.end(), newer.begin(), newer.end());
  std::erase_if(older, by_rules);
  return older;
}

}  // namespace ashlar::bench
