// Runs the model for the requests of many clients: one thread steps the slots (eval/slots.h),
// others submit prompts and wait for their tokens.
//
//   submit   all answers of a request at once; Ticket::wait gives tokens as they are made
//   cancel   a client has gone: its answers leave their slots
//
// Bounds   at most max_waiting answers wait for a slot: more are refused with Busy.
// Errors   a logit that is not finite ends the requests in slots and those that wait, with its
//          message, and the engine goes on.
// Threads  submit, cancel and counts from any; run from one, which owns the slots.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "ashlar/eval/slots.h"

namespace ashlar::serve {

struct Busy : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A token of an answer.
struct TokenEvent {
  size_t choice = 0;
  int32_t id = -1;  // -1: none, since the answer has no tokens
  bool last = false;
  // Scores of the tokens since the last event of this answer: those of the prompt come with the
  // first.
  std::vector<eval::TokenScore> scores = {};
};

class Ticket {
 public:
  // The events since the last call, in order; waits at most this long for the first.
  // Rethrows what ended the request.
  std::vector<TokenEvent> wait(std::chrono::milliseconds most);

 private:
  friend class SlotEngine;
  void put(TokenEvent event);
  void fail(std::exception_ptr error);
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<TokenEvent> events_;
  std::exception_ptr error_;
};

struct PromptJob {
  std::vector<int32_t> ids;
  eval::GenerateSpec spec;
  int64_t num_likely = -1;  // scores, and so many likeliest tokens; -1: none
  bool scores_prompt = false;
};

struct EngineCounts {
  int64_t slots = 0, used = 0, waiting = 0;
  int64_t prompt_tokens = 0, new_tokens = 0, steps = 0, cancelled = 0;
  double step_seconds = 0.0;
};

class SlotEngine {
 public:
  SlotEngine(eval::PromptSlots& slots, int64_t num_slots, int64_t max_waiting);
  // The jobs become choices 0, 1, ... of the ticket.
  std::shared_ptr<Ticket> submit(std::vector<PromptJob> jobs);
  // All choices of the ticket, or one of them.
  void cancel(const std::shared_ptr<Ticket>& ticket, std::optional<size_t> choice = {});
  EngineCounts counts() const;
  // Works until `stops` says so, which is asked several times a second; then what is left fails, as
  // it does where anything but an Error is thrown, which goes on to the caller.
  void run(const std::function<bool()>& stops);

 private:
  struct Running {
    std::shared_ptr<Ticket> ticket;
    size_t choice;
    std::unique_ptr<eval::TokenScores> scores;
  };
  struct Gone {
    std::shared_ptr<Ticket> ticket;
    std::optional<size_t> choice;
  };
  struct Arrival {
    std::shared_ptr<Ticket> ticket;
    std::vector<PromptJob> jobs;
  };
  void work_until(const std::function<bool()>& stops);
  void end(const std::exception_ptr& error);
  void take_arrivals();
  std::optional<Arrival> next_arrival();
  int64_t remove(const Gone& gone);
  void start(Arrival arrival);
  void step();
  int64_t num_waiting() const;  // with mutex_ held, on the engine's thread
  void fail_all(const std::exception_ptr& error);

  eval::PromptSlots& slots_;
  const int64_t max_waiting_;
  std::map<int64_t, Running> running_;  // by number of the request; of the engine's thread
  mutable std::mutex mutex_;            // of all below
  std::condition_variable work_;
  std::deque<Arrival> arrivals_;
  std::vector<Gone> gone_;
  EngineCounts counts_;
  bool stopped_ = false;
};

}  // namespace ashlar::serve
