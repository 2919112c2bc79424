// Training state made up for tests: tensors whose bytes are a function of (name, step, element).
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ashlar/checkpoint/save/checkpointer.h"
#include "ashlar/core/files.h"
#include "ashlar/core/rng.h"
#include "tests/support/errors.h"

namespace ashlar::checkpoint {

using testing_support::message_of;

inline Log quiet_log() {
  return Log([](std::string_view) {});
}

// Memory behind pieces, 64-bit aligned.
class State {
 public:
  Piece& add(const std::string& name, DType dtype, const Shape& shape, Role role) {
    return add_box(name, dtype, shape, Box::whole(shape), role);
  }
  Piece& add_box(const std::string& name, DType dtype, const Shape& shape, const Box& box,
                 Role role) {
    Piece piece;
    piece.logical = {name, dtype, shape, role};
    piece.box = box;
    const int64_t bytes = box.length.numel() * size_of(dtype);
    memory_.push_back(std::make_unique<uint64_t[]>(size_t(bytes / 8 + 1)));
    piece.data = {reinterpret_cast<std::byte*>(memory_.back().get()), dtype, Device::kCpu,
                  box.length};
    pieces_.push_back(piece);
    return pieces_.back();
  }
  std::vector<Piece>& pieces() { return pieces_; }

  // Every byte from its tensor's name, the step and its position in the piece.
  void fill(int64_t step) {
    for (Piece& piece : pieces_) {
      const uint64_t key = fnv1a64(piece.logical.name) ^ splitmix64(uint64_t(step));
      for (int64_t i = 0; i < piece.data.bytes(); i += 8) {
        const uint64_t word = splitmix64(key + uint64_t(i));
        std::memcpy(piece.data.data + i, &word,
                    size_t(std::min<int64_t>(8, piece.data.bytes() - i)));
      }
    }
  }
  void clear() {
    for (Piece& piece : pieces_) std::memset(piece.data.data, 0, size_t(piece.data.bytes()));
  }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all;
    for (const Piece& piece : pieces_)
      all.insert(all.end(), piece.data.data, piece.data.data + piece.data.bytes());
    return all;
  }

 private:
  std::vector<std::unique_ptr<uint64_t[]>> memory_;
  std::vector<Piece> pieces_;
};

// A small model with odd sizes, its optimizer states, loader tensors and extra files.
struct TinyRun {
  State model, optim, loader;
  TinyRun() {
    model.add("embed.weight", DType::kF32, {7, 16}, Role::kParameter);
    model.add("layers.0.up.weight", DType::kF32, {5, 3}, Role::kParameter);
    model.add("layers.0.bias", DType::kBF16, {3}, Role::kParameter);
    model.add("layers.0.temp", DType::kF64, {}, Role::kParameter);
    model.add("layers.0.none", DType::kF32, {0, 4}, Role::kBuffer);
    optim.add("optim.exp_avg.embed.weight", DType::kF32, {7, 16}, Role::kOptimizerState);
    optim.add("optim.step.embed.weight", DType::kI64, {}, Role::kOptimizerState);
    loader.add("loader.cursors", DType::kI64, {4, 2}, Role::kLoader);
    loader.add("loader.tokens", DType::kI32, {11}, Role::kLoader);
  }
  void fill(int64_t step) {
    model.fill(step);
    optim.fill(step);
    loader.fill(step);
  }
  void clear() {
    model.clear();
    optim.clear();
    loader.clear();
  }
  std::vector<Piece> all() {
    std::vector<Piece> pieces = model.pieces();
    for (State* state : {&optim, &loader})
      pieces.insert(pieces.end(), state->pieces().begin(), state->pieces().end());
    return pieces;
  }
  std::vector<std::byte> bytes() {
    std::vector<std::byte> all;
    for (State* state : {&model, &optim, &loader}) {
      const auto part = state->bytes();
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
  SaveRequest request(int64_t step) {
    SaveRequest request;
    request.step = step;
    request.model = model.pieces();
    request.optim = optim.pieces();
    request.loader = loader.pieces();
    request.extra = {{"trainer.json", "{\"step\": " + std::to_string(step) + "}", true},
                     {"tokenizer.model", std::string("\x00\x01\xff blob", 8), false},
                     {"empty.bin", "", false}};
    request.sections = {{"trainer", "{\"tokens\": 12}"}};
    request.aliases = {{"lm_head.weight", "embed.weight"}};
    return request;
  }
};

inline CheckpointOptions direct(int64_t keep = 3) {
  CheckpointOptions options;
  options.keep = keep;
  options.async = false;
  options.run_id = "run";
  options.retry_delay_s = 0;
  return options;
}

// Loads a step into a fresh TinyRun and compares every byte with what that step saved.
inline void expect_holds(FileSystem& files, const std::string& directory, int64_t step) {
  TinyRun expected, loaded;
  expected.fill(step);
  loaded.clear();
  const StepReader reader(files, directory);
  EXPECT_EQ(reader.step(), step);
  reader.load(loaded.all());
  EXPECT_EQ(loaded.bytes(), expected.bytes()) << directory;
  EXPECT_EQ(reader.read_blob("trainer.json"), "{\"step\": " + std::to_string(step) + "}");
}

// Rights of the holder of the lease.
template <typename F>
void as_holder(FileSystem& files, const std::string& root, F&& body) {
  Log log([](std::string_view) {});
  Lease lease(files, root, log);
  body(lease.fence());
}

inline std::vector<std::byte> as_vector(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

inline std::string read_all(FileSystem& files, const std::string& path) {
  return read_text(files, path, int64_t(1) << 30);
}
inline void overwrite(FileSystem& files, const std::string& path, std::string_view text) {
  if (files.stat(path)) files.remove(path);
  const auto file = files.create(path);
  if (!text.empty()) file->write_at(std::as_bytes(std::span(text)), 0);
  file->sync();
  file->close();
}

}  // namespace ashlar::checkpoint
