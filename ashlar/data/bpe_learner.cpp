#include "ashlar/data/bpe_learner.h"

#include <algorithm>

#include "ashlar/core/error.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/hf/vocabulary.h"

namespace ashlar::data {
namespace {

using TokenPair = uint64_t;  // of ids, the left one in the upper half

TokenPair token_pair(int32_t left, int32_t right) {
  return uint64_t(uint32_t(left)) << 32 | uint32_t(right);
}
int32_t left_of(TokenPair pair) {
  return int32_t(pair >> 32);
}
int32_t right_of(TokenPair pair) {
  return int32_t(pair & UINT32_MAX);
}

class BpeLearner {
 public:
  BpeLearner(const WordCounts& counts, std::span<const std::string> first) {
    for (const std::string& token : first) add_token(token);
    ASHLAR_REQUIRE(counts.size() <= UINT32_MAX, kConfig,
                   "the text has {} different words; expected at most {}", counts.size(),
                   UINT32_MAX);
    words_.reserve(counts.size());
    for (const auto& [word, count] : counts) add_word(word, count);
    queue_arisen();
  }

  LearnedBpe learn(int64_t vocab_size, function_ref<void(int64_t)> joined) {
    while (num_tokens() < vocab_size && !queue_.empty()) {
      Candidate top = pop();
      if (const int64_t count = counts_.at(top.pair); count != top.count) {
        top.count = count;
        push(std::move(top));
        continue;
      }
      if (top.count < 1) break;
      join(top);
      joined(num_tokens());
    }
    for (int32_t id = 0; id < num_tokens(); ++id)
      learned_.tokens.push_back(*vocabulary_.text_of(id));
    return std::move(learned_);
  }

 private:
  struct Word {
    size_t begin;   // in ids_
    uint32_t size;  // shrinks with every merge
    int64_t count;
  };
  struct Candidate {
    int64_t count;
    TokenPair pair;
    std::vector<uint32_t> words;  // in which it arose
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  int32_t num_tokens() const { return vocabulary_.end_id(); }

  int32_t add_token(const std::string& text) {
    ASHLAR_ASSERT(vocabulary_.id_of(text) < 0);
    const int32_t id = vocabulary_.end_id();
    vocabulary_.add(text, id);
    return id;
  }

  void add_word(const std::string& word, int64_t count) {
    const auto index = uint32_t(words_.size());
    const size_t begin = ids_.size();
    for (size_t at = 0; at < word.size();) {
      const size_t length = code_point_at(word, at).length;
      ids_.push_back(vocabulary_.id_of(std::string_view(word).substr(at, length)));
      ASHLAR_ASSERT(ids_.back() >= 0);
      at += length;
    }
    words_.push_back({begin, uint32_t(ids_.size() - begin), count});
    for (size_t at = begin + 1; at < ids_.size(); ++at)
      change(token_pair(ids_[at - 1], ids_[at]), index, 1);
  }

  // The word gains, or loses, one occurrence of the pair.
  void change(TokenPair pair, uint32_t word, int64_t sign) {
    counts_[pair] += sign * words_[word].count;
    if (sign > 0) arisen_.emplace_back(pair, word);
  }

  void push(Candidate candidate) {
    queue_.push_back(std::move(candidate));
    std::push_heap(queue_.begin(), queue_.end());
  }
  Candidate pop() {
    std::pop_heap(queue_.begin(), queue_.end());
    Candidate top = std::move(queue_.back());
    queue_.pop_back();
    return top;
  }

  // Every occurrence of a pair arises when the later of its tokens does, so a pair is queued once.
  void queue_arisen() {
    std::ranges::sort(arisen_);
    const auto repeated = std::ranges::unique(arisen_);
    arisen_.erase(repeated.begin(), repeated.end());
    for (auto at = arisen_.begin(); at != arisen_.end();) {
      Candidate candidate{counts_.at(at->first), at->first, {}};
      for (; at != arisen_.end() && at->first == candidate.pair; ++at)
        candidate.words.push_back(at->second);
      if (candidate.count > 0) push(std::move(candidate));
    }
    arisen_.clear();
  }

  void join(const Candidate& candidate) {
    const int32_t left = left_of(candidate.pair), right = right_of(candidate.pair);
    const int32_t joined = add_token(*vocabulary_.text_of(left) + *vocabulary_.text_of(right));
    learned_.merges.emplace_back(left, right);
    for (const uint32_t word : candidate.words) join_in(word, left, right, joined);
    queue_arisen();
  }

  void join_in(uint32_t index, int32_t left, int32_t right, int32_t joined) {
    Word& word = words_[index];
    int32_t* ids = ids_.data() + word.begin;
    uint32_t kept = 0;
    for (uint32_t at = 0; at < word.size;) {
      if (ids[at] != left || at + 1 == word.size || ids[at + 1] != right) {
        ids[kept++] = ids[at++];
        continue;
      }
      if (kept > 0) {
        change(token_pair(ids[kept - 1], left), index, -1);
        change(token_pair(ids[kept - 1], joined), index, 1);
      }
      if (at + 2 < word.size) {
        change(token_pair(right, ids[at + 2]), index, -1);
        change(token_pair(joined, ids[at + 2]), index, 1);
      }
      ids[kept++] = joined;
      at += 2;
    }
    word.size = kept;
  }

  Vocabulary vocabulary_;
  std::vector<Word> words_;
  std::vector<int32_t> ids_;  // of all words, one after the other
  std::unordered_map<TokenPair, int64_t> counts_;
  std::vector<std::pair<TokenPair, uint32_t>> arisen_;  // pairs and words, not queued yet
  std::vector<Candidate> queue_;                        // a heap
  LearnedBpe learned_;
};

}  // namespace

LearnedBpe learn_bpe(const WordCounts& counts, std::span<const std::string> first,
                     int64_t vocab_size, function_ref<void(int64_t num_tokens)> joined) {
  return BpeLearner(counts, first).learn(vocab_size, joined);
}

}  // namespace ashlar::data
