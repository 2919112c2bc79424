// Several writers with a control channel, whose file calls may fail or be slow, rank by rank.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>

#include "ashlar/checkpoint/writers/save_channel.h"
#include "tests/checkpoint/local_links.h"
#include "tests/checkpoint/writers_test_util.h"

namespace ashlar::checkpoint {

// Files whose calls may be changed: by rank, operation and path.
using Fails = std::function<bool(std::string_view operation, const std::string& path)>;

inline CheckpointOptions asynchronous(int64_t keep = 3) {
  CheckpointOptions options = direct(keep);
  options.async = true;
  return options;
}

// Checkpointers of some ranks, with links between them, on one file system in memory.
class Channels : public testing::Test {
 protected:
  ~Channels() override {
    checkpointers_.clear();
    channels_.clear();
  }
  void make(int ranks, CheckpointOptions options = asynchronous(), int ranks_a_node = 2,
            SaveChannelOptions channel_options = {}) {
    std::vector<int> nodes;
    for (int rank = 0; rank < ranks; ++rank) nodes.push_back(rank / ranks_a_node);
    tree_ = std::make_shared<control::Tree>(control::make_tree(nodes, 2));
    network_ = std::make_unique<LocalNetwork>(tree_);
    fails_.resize(size_t(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      files_.push_back(faulty_files(
          *disk_, [this, rank](int64_t, std::string_view operation, const std::string& path) {
            const Fails& fails = fails_[size_t(rank)];
            return fails && fails(operation, path) ? Fault::kIoError : Fault::kNone;
          }));
      channels_.push_back(std::make_unique<SaveChannel>(
          tree_, rank, "n" + std::to_string(nodes[size_t(rank)]), log_, channel_options));
      channels_.back()->start([&](control::LinkUser& user) { return network_->join(rank, user); });
      options.writer_rank = rank;
      options.num_writers = ranks;
      options.channel = channels_.back().get();
      checkpointers_.push_back(
          std::make_unique<Checkpointer>(*files_.back(), "root", options, log_));
    }
  }
  Checkpointer& operator[](int rank) { return *checkpointers_[size_t(rank)]; }
  int size() const { return int(checkpointers_.size()); }
  // All ranks save; the message of the leader's failure, or "".
  std::string save(Shares& shares, int64_t step) {
    shares.fill(step);
    const Id attempt = random_id();
    for (int rank = 0; rank < size(); ++rank)
      (*this)[rank].save(shares.request(rank, step, attempt));
    return settle();
  }
  std::string settle() {
    for (int rank = size() - 1; rank >= 0; --rank) EXPECT_TRUE((*this)[rank].drain(30));
    for (int rank = 0; rank < size(); ++rank) {
      const auto failures = (*this)[rank].take_failures();
      if (!failures.empty()) return failures[0].error.what();
    }
    return "";
  }
  bool logged(const std::string& text) {
    const std::lock_guard lock(mutex_);
    for (const std::string& line : lines_)
      if (line.find(text) != line.npos) return true;
    return false;
  }
  int64_t parts_in_directory() const { return parts_; }

  std::mutex mutex_;
  std::vector<std::string> lines_;
  Log log_{[this](std::string_view line) {
    const std::lock_guard lock(mutex_);
    lines_.emplace_back(line);
  }};
  std::atomic<int64_t> parts_{0};
  std::unique_ptr<FileSystem> memory_ = memory_files();
  std::unique_ptr<FileSystem> disk_ =
      faulty_files(*memory_, [this](int64_t, std::string_view operation, const std::string& path) {
        if (operation == "create" && path.find("part-") != path.npos) ++parts_;
        return Fault::kNone;
      });
  std::vector<Fails> fails_;
  std::vector<std::unique_ptr<FileSystem>> files_;
  std::shared_ptr<control::Tree> tree_;
  std::unique_ptr<LocalNetwork> network_;
  std::vector<std::unique_ptr<SaveChannel>> channels_;
  std::vector<std::unique_ptr<Checkpointer>> checkpointers_;
};

}  // namespace ashlar::checkpoint
