// topk.h: 32 lanes have a token, and a lane every 32nd of its classes.
#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/launch.h"
#include "ashlar/kernels/gpu/math.h"
#include "ashlar/kernels/gpu/row_lanes.h"
#include "ashlar/kernels/gpu/rows.h"

namespace ashlar::device {
namespace {

ASHLAR_DEVICE float minus_infinity() {
  return bits_to_float(0xff800000u);
}

// Fills the probabilities of a token.
ASHLAR_DEVICE void fill_probabilities(const TopkForward& x, int64_t token) {
  const float* logits = x.logits + token * x.classes;
  float* p = x.p + token * x.classes;
  float largest = minus_infinity(), sum = 0;
  for_lane(x.classes, [&](int64_t i) { largest = logits[i] > largest ? logits[i] : largest; });
  largest = lane_max(largest);  // taken off, so that no exponential is infinite
  for_lane(x.classes, [&](int64_t i) {
    p[i] = exp(add(logits[i], -largest));
    sum = add(sum, p[i]);
  });
  sum = lane_sum(sum);
  for_lane(x.classes, [&](int64_t i) { p[i] = div(p[i], sum); });
  if (thread_index() % kLanes == 0) x.lse[token] = add(largest, log(sum));
}

// A class with its score.  Larger scores come before smaller ones, which come before those that are
// no numbers, and among equals the lower class comes first.
struct Scored {
  float score;
  int64_t number;
  ASHLAR_DEVICE bool before(const Scored& other) const {
    return score > other.score || (score == other.score && number < other.number);
  }
};
ASHLAR_DEVICE Scored scored(const TopkForward& x, int64_t token, int64_t number) {
  float score = (x.choose_by_logits ? x.logits : x.p)[token * x.classes + number];
  if (x.bias) score = add(score, x.bias[number]);
  return {score == score ? score : minus_infinity(), number};
}

// The first class behind `last`; there is one.
ASHLAR_DEVICE Scored next_class(const TopkForward& x, int64_t token, const Scored& last) {
  Scored first{minus_infinity(), x.classes};
  for_lane(x.classes, [&](int64_t i) {
    const Scored other = scored(x, token, i);
    if (last.before(other) && other.before(first)) first = other;
  });
  const float score = lane_max(first.score);
  return {score, lane_min(int(first.score == score ? first.number : x.classes))};
}

// Fills the choices of a token, in ascending order.  chosen: room for k.
ASHLAR_DEVICE void choose(const TopkForward& x, int64_t token, int32_t* chosen) {
  Scored last{-minus_infinity(), -1};
  for (int64_t j = 0; j < x.k; ++j) {
    last = next_class(x, token, last);
    if (thread_index() % kLanes == 0) chosen[j] = int32_t(last.number);
  }
  sync_lanes();
  for_lane(x.k, [&](int64_t j) {
    int64_t place = 0;
    for (int64_t other = 0; other < x.k; ++other) place += chosen[other] < chosen[j];
    x.expert[token * x.k + place] = chosen[j];
  });
  sync_lanes();
}

// Fills the weights of a token's choices.
ASHLAR_DEVICE void weigh(const TopkForward& x, int64_t token) {
  const int32_t* expert = x.expert + token * x.k;
  const float *logits = x.logits + token * x.classes, *p = x.p + token * x.classes;
  float* weight = x.weight + token * x.k;
  if (!x.renormalize) {
    for_lane(x.k, [&](int64_t j) { weight[j] = mul(x.scale, p[expert[j]]); });
    return;
  }
  float largest = logits[expert[0]], sum = 0;
  for (int64_t j = 1; j < x.k; ++j)
    largest = logits[expert[j]] > largest ? logits[expert[j]] : largest;
  for_lane(x.k, [&](int64_t j) { weight[j] = exp(add(logits[expert[j]], -largest)); });
  sync_lanes();
  for (int64_t j = 0; j < x.k; ++j) sum = add(sum, weight[j]);
  sync_lanes();
  for_lane(x.k, [&](int64_t j) { weight[j] = mul(x.scale, div(weight[j], sum)); });
}

ASHLAR_KERNEL(kRowThreads) topk_forward_kernel(TopkForward x) {
  const int64_t token = row_of_lanes();
  if (token >= x.tokens) return;
  fill_probabilities(x, token);
  choose(x, token, (int32_t*)shared_memory() + thread_index() / kLanes * x.k);
  weigh(x, token);
}

struct RouterLosses {
  float balance, z;
};

// Fills the gradient of a token that is no padding.
ASHLAR_DEVICE RouterLosses fill_gradient(const TopkBackward& x, int64_t token) {
  const float* p = x.p + token * x.classes;
  const float* loads = x.loads ? x.loads + token / x.tokens_per_row * x.classes : nullptr;
  float scale = 0, balance = 0;
  if (loads) {
    float choices = 0;  // of the row
    for_lane(x.classes, [&](int64_t i) {
      choices = add(choices, loads[i]);
      balance = fma(loads[i], p[i], balance);
    });
    choices = lane_sum(choices);
    if (choices != 0.0f) scale = div(x.balance_scale, choices);
    balance = mul(scale, lane_sum(balance));
  }
  const float *weight = x.weight + token * x.k, *dweight = x.dweight + token * x.k;
  float through_weights = 0;
  for (int64_t j = 0; j < x.k; ++j) through_weights = fma(dweight[j], weight[j], through_weights);
  const float z = mul(x.z_scale, x.lse[token]);
  float common = add(add(z, z), -balance);
  if (!x.renormalize) common = add(common, -through_weights);
  const auto factor = [&](int64_t i) { return loads ? fma(scale, loads[i], common) : common; };
  for_lane(x.classes, [&](int64_t i) {
    store_element(mul(p[i], factor(i)), x.dlogits, token * x.classes + i);
  });
  sync_lanes();
  for_lane(x.k, [&](int64_t j) {
    const int64_t i = x.expert[token * x.k + j];
    const float less = x.renormalize ? div(through_weights, x.scale) : 0.0f;
    const float extra = mul(weight[j], add(dweight[j], -less));
    store_element(fma(p[i], factor(i), extra), x.dlogits, token * x.classes + i);
  });
  return {balance, mul(z, x.lse[token])};
}

// A block has kPartialRows tokens, whose losses it adds in order.
constexpr int kPartialThreads = 512;

ASHLAR_KERNEL(kPartialThreads) topk_backward_kernel(TopkBackward x) {
  auto* losses = (float*)shared_memory();  // [kPartialRows, 2]
  for (int i = thread_index() / kLanes; i < kPartialRows; i += kPartialThreads / kLanes) {
    const int64_t token = int64_t(block_index()) * kPartialRows + i;
    RouterLosses loss{0, 0};
    if (token < x.tokens && x.expert[token * x.k] >= 0)
      loss = fill_gradient(x, token);
    else if (token < x.tokens)
      for_lane(x.classes, [&](int64_t e) { store_element(0, x.dlogits, token * x.classes + e); });
    if (thread_index() % kLanes > 0) continue;
    losses[2 * i] = loss.balance;
    losses[2 * i + 1] = loss.z;
  }
  sync_block();
  if (thread_index() >= 2) return;
  float sum = 0;
  for (int i = 0; i < kPartialRows; ++i) sum = add(sum, losses[2 * i + thread_index()]);
  x.partials[int64_t(block_index()) * 2 + thread_index()] = sum;
}

}  // namespace

std::string launch(const TopkForward& x) {
  if (x.k > kMaxChoices) return std::to_string(x.k) + " choices of a token";
  const int64_t room = kRowsOfBlock * x.k * int64_t(sizeof(int32_t));
  return run(topk_forward_kernel, {blocks_for_rows(x.tokens), kRowThreads, int(room)}, x);
}

std::string launch(const TopkBackward& x) {
  return run(topk_backward_kernel,
             {(x.tokens + kPartialRows - 1) / kPartialRows, kPartialThreads,
              2 * kPartialRows * int(sizeof(float))},
             x);
}

}  // namespace ashlar::device
