#include "ashlar/serve/engine.h"

#include <algorithm>
#include <utility>

#include "ashlar/core/clock.h"
#include "ashlar/core/error.h"

namespace ashlar::serve {

std::vector<TokenEvent> Ticket::wait(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  came_.wait_for(lock, most, [&] { return !events_.empty() || error_; });
  if (events_.empty() && error_) std::rethrow_exception(error_);
  return std::exchange(events_, {});
}

void Ticket::put(TokenEvent event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
  came_.notify_one();
}

void Ticket::fail(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  error_ = std::move(error);
  came_.notify_one();
}

SlotEngine::SlotEngine(eval::PromptSlots& slots, int64_t num_slots, int64_t max_waiting)
    : slots_(slots), max_waiting_(max_waiting) {
  counts_.slots = num_slots;
}

std::shared_ptr<Ticket> SlotEngine::submit(std::vector<PromptJob> jobs) {
  auto ticket = std::make_shared<Ticket>();
  const std::lock_guard lock(mutex_);
  if (stopped_) throw Busy("the server is stopping");
  if (counts_.waiting + int64_t(jobs.size()) > max_waiting_)
    throw Busy(fmt::format("{} answers wait already; try again later", counts_.waiting));
  counts_.waiting += int64_t(jobs.size());
  for (const PromptJob& job : jobs) counts_.prompt_tokens += int64_t(job.ids.size());
  arrivals_.push_back({ticket, std::move(jobs)});
  work_.notify_one();
  return ticket;
}

void SlotEngine::cancel(const std::shared_ptr<Ticket>& ticket, std::optional<size_t> choice) {
  const std::lock_guard lock(mutex_);
  gone_.push_back({ticket, choice});
  work_.notify_one();
}

EngineCounts SlotEngine::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void SlotEngine::run(const std::function<bool()>& stops) {
  try {
    work_until(stops);
  } catch (...) {
    end(std::current_exception());
    throw;
  }
  end(std::make_exception_ptr(Busy("the server is stopping")));
}

void SlotEngine::work_until(const std::function<bool()>& stops) {
  constexpr auto kPatience = std::chrono::milliseconds(100);
  while (!stops()) {
    {
      std::unique_lock lock(mutex_);
      if (slots_.num_left() == 0)
        work_.wait_for(lock, kPatience, [&] { return !arrivals_.empty() || !gone_.empty(); });
    }
    take_arrivals();
    try {
      if (slots_.num_left() > 0) step();
    } catch (const Error&) {
      fail_all(std::current_exception());
    }
  }
}

void SlotEngine::end(const std::exception_ptr& error) {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    for (const Arrival& arrival : arrivals_) arrival.ticket->fail(error);
    arrivals_.clear();
  }
  fail_all(error);
}

std::optional<SlotEngine::Arrival> SlotEngine::next_arrival() {
  const std::lock_guard lock(mutex_);
  if (arrivals_.empty()) return std::nullopt;
  Arrival arrival = std::move(arrivals_.front());
  arrivals_.pop_front();
  return arrival;
}

void SlotEngine::take_arrivals() {
  std::vector<Gone> gone;
  {
    const std::lock_guard lock(mutex_);
    gone.swap(gone_);
  }
  // A job that is gone arrived before, so it is started below, or was.
  while (std::optional<Arrival> arrival = next_arrival()) start(std::move(*arrival));
  int64_t cancelled = 0;
  for (const Gone& each : gone) cancelled += remove(each);
  const std::lock_guard lock(mutex_);
  counts_.cancelled += cancelled;
  counts_.used = slots_.num_live();
  counts_.waiting = num_waiting();
}

int64_t SlotEngine::remove(const Gone& gone) {
  return int64_t(std::erase_if(running_, [&](const auto& entry) {
    const auto& [number, running] = entry;
    if (running.ticket != gone.ticket || running.choice != gone.choice.value_or(running.choice))
      return false;
    slots_.cancel(number);
    return true;
  }));
}

void SlotEngine::start(Arrival arrival) {
  for (size_t choice = 0; choice < arrival.jobs.size(); ++choice) {
    PromptJob& job = arrival.jobs[choice];
    try {
      Running running{arrival.ticket, choice, nullptr};
      if (job.num_likely >= 0) {
        running.scores = std::make_unique<eval::TokenScores>();
        running.scores->num_likely = job.num_likely;
        running.scores->of_prompt = job.scores_prompt;
        job.spec.scores = running.scores.get();
      }
      const int64_t number = slots_.submit(std::move(job.ids), std::move(job.spec));
      running_.emplace(number, std::move(running));
    } catch (const Error&) {
      arrival.ticket->fail(std::current_exception());
    } catch (...) {
      arrival.ticket->fail(std::current_exception());
      throw;
    }
  }
}

void SlotEngine::step() {
  const auto begin = Clock::now();
  const auto made = slots_.step();
  {
    // Before clients see the tokens, so that they never know more than the counts.
    const std::lock_guard lock(mutex_);
    counts_.steps += 1;
    counts_.new_tokens +=
        std::ranges::count_if(made, [](const auto& token) { return token.id >= 0; });
    counts_.step_seconds += seconds_since(begin);
    counts_.used = slots_.num_live();
    counts_.waiting = num_waiting();
  }
  for (const auto& token : made) {
    const auto at = running_.find(token.request);
    ASHLAR_ASSERT(at != running_.end());
    Running& running = at->second;
    TokenEvent event{running.choice, token.id, token.last};
    if (running.scores) event.scores = std::exchange(running.scores->tokens, {});
    running.ticket->put(std::move(event));
    if (token.last) running_.erase(at);
  }
}

// Answers in the slots' queue, and those that have not come there.
int64_t SlotEngine::num_waiting() const {
  int64_t waiting = slots_.num_left() - slots_.num_live();
  for (const Arrival& later : arrivals_) waiting += int64_t(later.jobs.size());
  return waiting;
}

void SlotEngine::fail_all(const std::exception_ptr& error) {
  for (const auto& [number, running] : running_) running.ticket->fail(error);
  for (const auto& [number, running] : running_) slots_.cancel(number);
  running_.clear();
}

}  // namespace ashlar::serve
