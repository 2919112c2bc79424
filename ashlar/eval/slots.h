// Continues many prompts with one model: up to num_slots of them at a time, each in a slot, so that
// a pass over the weights makes a token of every one.  Requests wait in the order in which they
// were submitted; the place of one that has ended is taken by the next.
//
//   submit   a prompt, at any time; it returns the request's number
//   step     makes one token of every live request, then reads at most max_chunk tokens of the
//            prompts that wait, one prompt after another into free slots; the caller takes these
//            results, then steps again
//   cancel   ends a request early; its slot is free at once
//
// Answers   requests of one prompt that follow each other, as the n answers to a prompt do, share
//           its reading, as many of them as there are free slots.
// Scores    a request may collect scores of its tokens (GenerateSpec::scores): of those made and,
//           if it wants them, of its prompt after the first.  With max_tokens 0 nothing is made,
//           and the model does not read the last token.
//
// Numerics  a request's tokens do not depend on the others: they are those of generate() with the
//           same spec and chunks, which begin at multiples of max_chunk in the prompt.
//           SamplingSpec::prompt tells draws of several prompts apart.  On a GPU logits beside
//           others may have other last bits.
// Memory    as Decoder; taken at once, but for the prompts that wait.
// Threads   one caller at a time.  Nothing here reads or writes files, text or time.
#pragma once

#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/eval/generate.h"

namespace ashlar::eval {

class PromptSlots {
 public:
  struct Limits {
    int64_t num_slots;
    int64_t max_tokens;       // of a prompt and its new tokens
    int64_t max_chunk = 256;  // tokens of a prompt that run at a time
  };
  PromptSlots(const kernels::Context& ctx, Allocator& allocator, nn::Model& model,
              const Limits& limits);

  // kConfig if prompt and new tokens pass max_tokens, or for a SamplingSpec that is not valid.
  int64_t submit(std::vector<int32_t> prompt, GenerateSpec spec);

  struct NewToken {
    int64_t request;
    int32_t id;  // -1: none, because the request has max_tokens 0
    bool last;   // the request has ended
  };
  // The tokens made, in ascending order of requests, valid until the next call; there may be none
  // although requests are left.  kNumeric for logits that are not finite.
  std::span<const NewToken> step();
  // Ends the request, unless it has ended: step() does not report it again, and its scores are not
  // written any more.
  void cancel(int64_t request);
  // Requests that have not ended; those of them that are in slots.
  int64_t num_left() const { return int64_t(waiting_.size()) + num_live(); }
  int64_t num_live() const { return int64_t(live_.size()) + reading_.has_value(); }

 private:
  struct Request {
    int64_t number;
    std::vector<int32_t> prompt;
    GenerateSpec spec;
    Repetition repetition;
    size_t num_read = 0;  // tokens of the prompt
    int64_t num_made = 0;
    int32_t last_id = 0;
    bool ended() const { return num_made == spec.max_tokens || spec.stops_at(last_id); }
  };
  void make_token(Request& request, std::span<const float> logits, int64_t place);
  void make_tokens();
  void read_prompts();
  bool begin_reading();
  void begin_answers(std::span<const float> logits);
  size_t num_to_read() const;
  void read_chunk(size_t count);
  std::span<const float> feed_prompt(const Request& request, size_t count);
  void remove_ended();
  void remove(size_t place);
  const Limits limits_;
  Decoder decoder_;
  std::deque<Request> waiting_;
  std::vector<Request> live_;       // by place; these make tokens
  std::optional<Request> reading_;  // its prompt is being read, into the place behind theirs
  int64_t num_submitted_ = 0;
  std::vector<NewToken> made_;
  std::vector<int32_t> ids_;
  std::vector<std::pair<float, int32_t>> scratch_;
  std::vector<float> penalized_;
};

}  // namespace ashlar::eval
