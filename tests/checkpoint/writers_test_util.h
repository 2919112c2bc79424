// One save by several writers: TinyRun cut into boxes, each held by one of them.
#pragma once

#include <fmt/core.h>

#include <thread>

#include "ashlar/checkpoint/format/boxes.h"
#include "tests/checkpoint/random_boxes.h"
#include "tests/checkpoint/state_test_util.h"

namespace ashlar::checkpoint {

// The part of a TinyRun's model and optimizer that each of n writers holds.
class Shares {
 public:
  explicit Shares(int num_writers)
      : model(size_t(num_writers)), optim(size_t(num_writers)), num_(num_writers) {}

  // Every tensor's elements in row-major order, cut into equal ranges.
  static Shares even(int num_writers) {
    Shares shares(num_writers);
    shares.for_each_tensor([&](const Piece& piece, std::vector<State>& states) {
      const int64_t numel = piece.box.length.numel();
      if (numel == 0) shares.give(piece, piece.box, states[0]);
      for (int w = 0; w < num_writers; ++w)
        for (const Box& box :
             boxes_of_range(piece.box, numel * w / num_writers, numel * (w + 1) / num_writers))
          shares.give(piece, box, states[size_t(w)]);
    });
    return shares;
  }
  // Every tensor's rows in equal ranges, scalars to the last: one box a tensor, so few files.
  static Shares rows(int num_writers) {
    Shares shares(num_writers);
    shares.for_each_tensor([&](const Piece& piece, std::vector<State>& states) {
      Box box = piece.box;
      const int64_t num_rows = box.length.ndim() ? box.length[0] : 1;
      for (int w = 0; w < num_writers; ++w) {
        const int64_t begin = num_rows * w / num_writers, end = num_rows * (w + 1) / num_writers;
        if (box.length.ndim() > 0) {
          box.offset[0] = begin;
          box.length[0] = end - begin;
        }
        if (begin < end || num_rows == 0) shares.give(piece, box, states[size_t(w)]);
      }
    });
    return shares;
  }
  // Boxes and their holders by chance; one writer may hold several of a tensor, or none at all.
  static Shares random(int num_writers, Draw& draw) {
    Shares shares(num_writers);
    shares.for_each_tensor([&](const Piece& piece, std::vector<State>& states) {
      for (const Box& box : random_tiling(piece.logical.global_shape, 6, draw))
        shares.give(piece, box, states[size_t(draw.below(num_writers))]);
    });
    return shares;
  }

  void give(const Piece& piece, const Box& box, State& state) {
    const LogicalTensor& logical = piece.logical;
    state.add_box(logical.name, logical.dtype, logical.global_shape, box, logical.role);
  }
  template <typename F>
  void for_each_tensor(F&& body) {
    for (const Piece& piece : whole.model.pieces()) body(piece, model);
    for (const Piece& piece : whole.optim.pieces()) body(piece, optim);
  }

  // Every writer's boxes of what TinyRun holds at that step.
  void fill(int64_t step) {
    whole.fill(step);
    for (int w = 0; w < num_; ++w) copy_to(w);
  }
  void copy_to(int writer) {
    for_each_tensor([&](const Piece& from, std::vector<State>& states) {
      for (Piece& to : states[size_t(writer)].pieces()) {
        if (to.logical.name != from.logical.name || to.box.length.numel() == 0) continue;
        const int64_t size = size_of(to.data.dtype);
        for (Runs runs(to.box, from.box, to.box); !runs.done(); runs.next())
          std::memcpy(to.data.data + runs.to() * size, from.data.data + runs.from() * size,
                      size_t(runs.length() * size));
      }
    });
  }

  SaveRequest request(int writer, int64_t step, const Id& attempt) {
    SaveRequest request;
    if (writer == 0) request = whole.request(step);
    request.step = step;
    request.attempt = attempt;
    request.model = model[size_t(writer)].pieces();
    request.optim = optim[size_t(writer)].pieces();
    return request;
  }
  std::vector<Piece> pieces(int writer) {
    std::vector<Piece> pieces = model[size_t(writer)].pieces();
    const std::vector<Piece>& more = optim[size_t(writer)].pieces();
    pieces.insert(pieces.end(), more.begin(), more.end());
    return pieces;
  }

  TinyRun whole;
  std::vector<State> model, optim;  // by writer

 private:
  int num_;
};

// The Checkpointers of all writers; each may have files of its own that fail.
class Writers {
 public:
  Writers(const std::vector<FileSystem*>& files, const std::string& root, CheckpointOptions options,
          Log& log) {
    options.num_writers = int(files.size());
    for (FileSystem* each : files) {
      all_.push_back(std::make_unique<Checkpointer>(*each, root, options, log));
      ++options.writer_rank;
      options.run_id = all_[0]->run_id();
    }
  }
  int size() const { return int(all_.size()); }
  Checkpointer& operator[](int writer) { return *all_[size_t(writer)]; }

  // All writers save at once, each on a thread of its own; what the leader throws is thrown.
  void save(Shares& shares, int64_t step, const Id& attempt = random_id()) {
    std::vector<std::thread> threads;
    for (int w = 1; w < size(); ++w)
      threads.emplace_back([&, w] { (*this)[w].save(shares.request(w, step, attempt)); });
    std::exception_ptr error;
    try {
      (*this)[0].save(shares.request(0, step, attempt));
      (*this)[0].wait();
    } catch (...) {
      error = std::current_exception();
    }
    for (std::thread& thread : threads) thread.join();
    for (int w = 1; w < size(); ++w) (*this)[w].wait();
    if (error) std::rethrow_exception(error);
  }
  // One after the other, the leader last; for synchronous saves.
  void save_in_turn(Shares& shares, int64_t step, const Id& attempt = random_id()) {
    for (int w = size() - 1; w >= 0; --w) (*this)[w].save(shares.request(w, step, attempt));
  }

 private:
  std::vector<std::unique_ptr<Checkpointer>> all_;
};

inline std::vector<FileSystem*> same(FileSystem& files, int num_writers) {
  return std::vector<FileSystem*>(size_t(num_writers), &files);
}

// The step of that many writers is whole, deeply verified, and free of what its making needed.
inline void expect_step(FileSystem& files, int64_t step, int num_writers) {
  Log log = quiet_log();
  const std::string directory = join("root", step_name(step));
  expect_holds(files, directory, step);
  const VerifyReport report = verify_step(files, directory, VerifyLevel::kDeep, log);
  EXPECT_TRUE(report.ok()) << report.findings[0].message;
  EXPECT_EQ(files.list(directory),
            (std::vector<std::string>{"COMMIT", "extra", "index.bin", "loader", "manifest.json",
                                      "model", "optim"}));
  for (const std::string& name : files.list("root"))
    EXPECT_FALSE(name.starts_with(kTmpPrefix)) << name;
  const StepReader reader(files, directory);
  int64_t bytes = 0;
  for (const IndexFile& file : reader.index().files) {
    bytes += file.size_bytes;
    EXPECT_GE(file.writer, 1u);
    EXPECT_LE(file.writer, uint32_t(num_writers));
    if (file.component == Component::kModel) {
      EXPECT_TRUE(file.path.starts_with(fmt::format("model/shard-{:05}-model-", file.writer)));
    }
    EXPECT_EQ(files.stat(join(directory, file.path))->size_bytes, file.size_bytes);
  }
  EXPECT_EQ(reader.commit().bytes, bytes);
  EXPECT_EQ(reader.manifest().tensors_total, int64_t(TinyRun().all().size()) + 1);  // and an alias
  EXPECT_EQ(reader.manifest().aliases.at("lm_head.weight"), "embed.weight");
  const IndexTensor* state = reader.find("optim.exp_avg.embed.weight");
  EXPECT_EQ(reader.index().tensors[state->parent].logical.name, "embed.weight");
}

}  // namespace ashlar::checkpoint
