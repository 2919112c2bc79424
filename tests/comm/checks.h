// Duties of every engine, as bodies of a rank: the thread tests run them in one process, the
// program runs them under mpirun.  They throw std::runtime_error at the first wrong element.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "ashlar/comm/group.h"
#include "ashlar/core/rng.h"

namespace ashlar::comm::testing_support {

inline void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

template <typename T>
Tensor tensor_of(std::vector<T>& values) {
  return tensor_over(std::span(values));
}

inline uint64_t hash(uint64_t seed, int64_t rank, int64_t index) {
  return splitmix64(splitmix64(seed ^ splitmix64(uint64_t(rank) + 1)) ^ uint64_t(index));
}

// Exact data: v 2^e with e the same on all ranks and |v| small enough that every partial sum of up
// to 8 ranks is representable.  Integers: any bits, sums wrap.
template <typename T>
T element(uint64_t seed, int64_t rank, int64_t index) {
  const uint64_t bits = hash(seed, rank, index);
  if constexpr (std::is_integral_v<T>) {
    return T(bits);
  } else {
    const int significand = std::is_same_v<T, double> ? 53 : std::is_same_v<T, float> ? 24 : 8;
    const int64_t largest = int64_t{1} << (significand - 3);
    const int64_t v = int64_t(bits % uint64_t(2 * largest + 1)) - largest;
    const int exponent = int(hash(seed, -1, index) % 13) - 6;
    if constexpr (std::is_same_v<T, double>)
      return std::ldexp(double(v), exponent);
    else
      return T(float(std::ldexp(double(v), exponent)));
  }
}

// The sum over ranks, the last rank first: exact data does not mind.
template <typename T>
T exact_sum(uint64_t seed, int size, int64_t index) {
  if constexpr (std::is_integral_v<T>) {
    uint64_t sum = 0;
    for (int rank = size - 1; rank >= 0; --rank) sum += uint64_t(element<T>(seed, rank, index));
    return T(sum);
  } else {
    double sum = 0;
    for (int rank = size - 1; rank >= 0; --rank) sum += double(element<T>(seed, rank, index));
    if constexpr (std::is_same_v<T, double>)
      return sum;
    else
      return T(float(sum));
  }
}

template <typename T>
std::vector<T> data_of(uint64_t seed, int64_t rank, int64_t length) {
  std::vector<T> values(static_cast<size_t>(length));
  for (int64_t i = 0; i < length; ++i) values[size_t(i)] = element<T>(seed, rank, i);
  return values;
}

template <typename T>
bool equal(T a, T b) {
  if constexpr (std::is_same_v<T, bf16>)
    return a.bits == b.bits;
  else
    return a == b;
}

// got[0, expected) against expected(i)
template <typename T, typename Expected>
void require_equal(const std::vector<T>& got, int64_t length, const Expected& expected,
                   const char* what, const Group& group) {
  require(int64_t(got.size()) == length, fmt::format("{}: length {}", what, got.size()));
  for (int64_t i = 0; i < length; ++i)
    if (!equal<T>(got[size_t(i)], expected(i)))
      throw std::runtime_error(
          fmt::format("{} of {} {} on rank {} of {}: element {} is {} but {} was expected", what,
                      length, name_of(dtype_of<T>), group.rank(), group.size(), i,
                      double(got[size_t(i)]), double(expected(i))));
}

struct Rows {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};
inline Rows even_rows(int64_t length, int rank, int size) {
  return {length * rank / size, length * (rank + 1) / size};
}

// Every op with every form for one type and length.
template <typename T>
class OpChecks {
 public:
  OpChecks(Group& group, int64_t length)
      : group_(group), n_(group.size()), me_(group.rank()), length_(length) {
    for (int rank = 0; rank < n_; ++rank) data_.push_back(data_of<T>(kSeed, rank, length));
    for (int64_t i = 0; i < length; ++i) sums_.push_back(exact_sum<T>(kSeed, n_, i));
  }
  void run() {
    all_reduce();
    reduce_scatter();
    all_gather();
    broadcast();
    reduce();
    all_to_all();
    send_receive();
    group_.barrier("end").wait();
  }

 private:
  static constexpr uint64_t kSeed = 7;
  auto sum(int64_t offset = 0) const {
    return [this, offset](int64_t i) { return sums_[size_t(i + offset)]; };
  }
  std::vector<T> mine() const { return data_[size_t(me_)]; }
  auto from(int rank) const {
    return [this, rank](int64_t i) { return data_[size_t(rank)][size_t(i)]; };
  }
  // Every root, and of long data the first and the last.
  int next_root(int root) const { return root + (length_ > 1000 ? std::max(1, n_ - 1) : 1); }

  void all_reduce() {
    std::vector<T> in = mine(), out(in.size());
    group_.all_reduce(tensor_of(in), tensor_of(out), "x").wait();
    require_equal(out, length_, sum(), "all_reduce", group_);
    require_equal(in, length_, from(me_), "input of all_reduce", group_);
    group_.all_reduce(tensor_of(in), tensor_of(in), "x").wait();
    require_equal(in, length_, sum(), "all_reduce in place", group_);
  }

  // Chunks that differ, some empty.
  std::vector<int64_t> uneven_counts() const {
    std::vector<int64_t> counts(size_t(n_), 0);
    int64_t rest = length_;
    for (int rank = n_ - 1; rank > 0; --rank) {
      counts[size_t(rank)] = rank % 3 == 2 ? 0 : rest / 2;
      rest -= counts[size_t(rank)];
    }
    counts[0] = rest;
    return counts;
  }

  void reduce_scatter() {
    const Rows rows = even_rows(length_, me_, n_);
    std::vector<T> in = mine(), out(size_t(rows.size()));
    group_.reduce_scatter(tensor_of(in), tensor_of(out), "x").wait();
    require_equal(out, rows.size(), sum(rows.begin), "reduce_scatter", group_);
    group_.reduce_scatter(tensor_of(in), tensor_of(in).slice(rows.begin, rows.end), "x").wait();
    const auto kept = [&](int64_t i) {
      return i >= rows.begin && i < rows.end ? sums_[size_t(i)] : from(me_)(i);
    };
    require_equal(in, length_, kept, "reduce_scatter in place", group_);

    const std::vector<int64_t> counts = uneven_counts();
    int64_t begin = 0;
    for (int rank = 0; rank < me_; ++rank) begin += counts[size_t(rank)];
    in = mine();
    out.resize(size_t(counts[size_t(me_)]));
    group_.reduce_scatter(tensor_of(in), tensor_of(out), "x", counts).wait();
    require_equal(out, counts[size_t(me_)], sum(begin), "uneven reduce_scatter", group_);
  }

  void all_gather() {
    const auto whole = from(0);  // one source, cut up
    const std::vector<T>& source = data_[0];
    const Rows rows = even_rows(length_, me_, n_);
    std::vector<T> in(source.begin() + rows.begin, source.begin() + rows.end);
    std::vector<T> out(source.size());
    group_.all_gather(tensor_of(in), tensor_of(out), "x").wait();
    require_equal(out, length_, whole, "all_gather", group_);

    std::vector<T> slot(source.size());
    std::copy(in.begin(), in.end(), slot.begin() + rows.begin);
    group_.all_gather(tensor_of(slot).slice(rows.begin, rows.end), tensor_of(slot), "x").wait();
    require_equal(slot, length_, whole, "all_gather in place", group_);

    const std::vector<int64_t> counts = uneven_counts();
    int64_t begin = 0;
    for (int rank = 0; rank < me_; ++rank) begin += counts[size_t(rank)];
    in.assign(source.begin() + begin, source.begin() + begin + counts[size_t(me_)]);
    out.assign(source.size(), T{});
    group_.all_gather(tensor_of(in), tensor_of(out), "x", counts).wait();
    require_equal(out, length_, whole, "uneven all_gather", group_);
  }

  void broadcast() {
    for (int root = 0; root < n_; root = next_root(root)) {
      std::vector<T> data = mine();
      group_.broadcast(tensor_of(data), root, "x").wait();
      require_equal(data, length_, from(root), "broadcast", group_);
    }
  }

  void reduce() {
    for (int root = 0; root < n_; root = next_root(root)) {
      std::vector<T> in = mine(), out(root == me_ ? in.size() : 0);
      group_.reduce(tensor_of(in), tensor_of(out), root, "x").wait();
      if (root == me_) require_equal(out, length_, sum(), "reduce", group_);
      require_equal(in, length_, from(me_), "input of reduce", group_);
    }
    std::vector<T> in = mine();
    group_.reduce(tensor_of(in), tensor_of(in), n_ - 1, "x").wait();
    if (me_ == n_ - 1) require_equal(in, length_, sum(), "reduce in place", group_);
  }

  // Element i of what `from` sends to `to`.
  static T sent(int from, int to, int64_t i) { return element<T>(kSeed + uint64_t(to), from, i); }

  void check_all_to_all(const std::vector<int64_t>& send_counts,
                        const std::vector<int64_t>& receive_counts, bool even, bool in_place) {
    std::vector<T> in, expected;
    for (int rank = 0; rank < n_; ++rank) {
      for (int64_t i = 0; i < send_counts[size_t(rank)]; ++i) in.push_back(sent(me_, rank, i));
      for (int64_t i = 0; i < receive_counts[size_t(rank)]; ++i)
        expected.push_back(sent(rank, me_, i));
    }
    std::vector<T> out(expected.size());
    const Tensor to = in_place ? tensor_of(in) : tensor_of(out);
    if (even)
      group_.all_to_all(tensor_of(in), to, "x").wait();
    else
      group_.all_to_all(tensor_of(in), to, "x", send_counts, receive_counts).wait();
    require_equal(
        in_place ? in : out, int64_t(expected.size()),
        [&](int64_t i) { return expected[size_t(i)]; },
        in_place ? "all_to_all in place" : "all_to_all", group_);
  }

  void all_to_all() {
    const std::vector<int64_t> even(size_t(n_), length_ / n_);
    check_all_to_all(even, even, true, false);
    check_all_to_all(even, even, true, true);
    std::vector<int64_t> sends, receives, symmetric;
    const auto count = [&](int from, int to) {
      return length_ == 0 ? 0 : (length_ / n_ * (from + 1) + 3 * to) % (length_ + 1) / n_;
    };
    for (int rank = 0; rank < n_; ++rank) {
      sends.push_back(count(me_, rank));
      receives.push_back(count(rank, me_));
      symmetric.push_back((rank + me_) % 3 == 1 ? 0 : length_ / n_ / (1 + (rank + me_) % 4));
    }
    check_all_to_all(sends, receives, false, false);
    check_all_to_all(symmetric, symmetric, false, true);
  }

  // A ring both ways, two messages to the next rank, and one to itself, at once.
  void send_receive() {
    const int next = (me_ + 1) % n_, previous = (me_ + n_ - 1) % n_;
    std::vector<T> to_next = mine(), to_next_too = data_of<T>(kSeed + 1, me_, length_ / 2);
    std::vector<T> to_previous = data_of<T>(kSeed + 2, me_, length_);
    std::vector<T> to_self = data_of<T>(kSeed + 3, me_, 3), self(3);
    std::vector<T> from_previous(to_next.size()), from_previous_too(to_next_too.size());
    std::vector<T> from_next(to_next.size());
    // With two ranks next and previous are one; the k-th send meets the k-th receive.
    const Transfer sends[] = {{next, tensor_of(to_next)},
                              {me_, tensor_of(to_self)},
                              {next, tensor_of(to_next_too)},
                              {previous, tensor_of(to_previous)}};
    const Transfer receives[] = {{previous, tensor_of(from_previous)},
                                 {me_, tensor_of(self)},
                                 {previous, tensor_of(from_previous_too)},
                                 {next, tensor_of(from_next)}};
    if (n_ == 1) return;  // all four would go to itself
    group_.send_receive(sends, receives, "x").wait();
    const auto of = [](uint64_t seed, int rank) {
      return [=](int64_t i) { return element<T>(seed, rank, i); };
    };
    require_equal(from_previous, length_, of(kSeed, previous), "send_receive", group_);
    require_equal(from_previous_too, length_ / 2, of(kSeed + 1, previous), "second", group_);
    require_equal(from_next, length_, of(kSeed + 2, next), "send_receive back", group_);
    require_equal(self, 3, of(kSeed + 3, me_), "to itself", group_);
  }

  Group& group_;
  const int n_, me_;
  const int64_t length_;
  std::vector<std::vector<T>> data_;  // of every rank
  std::vector<T> sums_;
};

inline void check_operations(Group& group) {
  for (const int64_t length : {0, 1, 5, 1000, 100003}) {
    OpChecks<double>(group, length).run();
    OpChecks<float>(group, length).run();
    OpChecks<bf16>(group, length).run();
    OpChecks<int64_t>(group, length).run();
    OpChecks<int32_t>(group, length).run();
    OpChecks<uint8_t>(group, length).run();
  }
}

// More operations than the queue holds, waited for last first, while others are under way.
inline void check_many_in_flight(Group& group) {
  constexpr int kWorks = 600;
  std::vector<std::vector<int64_t>> data;
  for (int k = 0; k < kWorks; ++k) data.push_back(data_of<int64_t>(uint64_t(k), group.rank(), 33));
  std::vector<Work> works;
  for (auto& values : data)
    works.push_back(group.all_reduce(tensor_of(values), tensor_of(values), "many"));
  for (int k = kWorks - 1; k >= 0; --k) {
    works[size_t(k)].wait();
    require_equal(
        data[size_t(k)], 33,
        [&](int64_t i) { return exact_sum<int64_t>(uint64_t(k), group.size(), i); }, "one of many",
        group);
  }
}

// A grid of rows and columns, `columns` wide, from a world that it fills; all at once.
inline void check_grid(Group& world, int columns) {
  const auto row = world.split("row", [&](int rank) { return SplitKey{rank / columns, 0}; });
  // The key turns the order around.
  const auto column = world.split("column", [&](int rank) {
    return SplitKey{rank % columns, -rank};
  });
  require(row->size() == columns && row->rank() == world.rank() % columns, "row");
  require(column->size() == world.size() / columns &&
              column->rank() == column->size() - 1 - world.rank() / columns,
          "column");
  std::vector<int64_t> a{world.rank()}, b{world.rank()}, c{world.rank()}, d{world.rank()};
  std::vector<int64_t> order(size_t(column->size()));
  Work works[] = {row->all_reduce(tensor_of(a), tensor_of(a), "row"),
                  column->all_reduce(tensor_of(b), tensor_of(b), "column"),
                  world.all_reduce(tensor_of(c), tensor_of(c), "world"),
                  column->all_gather(tensor_of(d), tensor_of(order), "order")};
  for (Work& work : works) work.wait();
  int64_t row_sum = 0, column_sum = 0;
  for (const int rank : row->world_ranks()) row_sum += rank;
  for (const int rank : column->world_ranks()) column_sum += rank;
  const int64_t n = world.size();
  require(a[0] == row_sum && b[0] == column_sum && c[0] == n * (n - 1) / 2, "sums of a grid");
  for (int i = 0; i < column->size(); ++i)
    require(order[size_t(i)] == world.rank() % columns + columns * (column->size() - 1 - i),
            "order of a column");
}

// A token goes down the line of ranks and back: ranks call send_receive at different times and not
// equally often.
inline void check_line(Group& group) {
  const int me = group.rank(), last = group.size() - 1;
  std::vector<int32_t> down{0}, up{0};
  const Transfer to_next{me + 1, tensor_of(down)}, from_next{me + 1, tensor_of(up)};
  const Transfer to_previous{me - 1, tensor_of(up)}, from_previous{me - 1, tensor_of(down)};
  for (int round = 0; round < 3; ++round) {
    if (me > 0) group.send_receive({}, {&from_previous, 1}, "down").wait();
    if (me == 0) down[0] = 100 * round;
    down[0] += me + 1;
    if (me < last) {
      group.send_receive({&to_next, 1}, {}, "down").wait();
      group.send_receive({}, {&from_next, 1}, "up").wait();
    } else {
      up = down;
    }
    if (me > 0) group.send_receive({&to_previous, 1}, {}, "up").wait();
    require(up[0] == 100 * round + (last + 1) * (last + 2) / 2, "what came back up the line");
    group.broadcast(tensor_of(up), 0, "up").wait();
  }
}

// fp32 that rounds: a hash of the bits of every sum on this rank.
inline uint64_t hash_of_sums(Group& group) {
  uint64_t result = 0;
  const auto add = [&](const std::vector<float>& values) {
    for (const float value : values) result = splitmix64(result ^ std::bit_cast<uint32_t>(value));
  };
  for (const int64_t length : {1, 1000, 100003}) {
    std::vector<float> in(static_cast<size_t>(length)), out(in.size());
    for (int64_t i = 0; i < length; ++i)
      in[size_t(i)] = float(int64_t(hash(3, group.rank(), i))) * 1e-15f;
    group.all_reduce(tensor_of(in), tensor_of(out), "bits").wait();
    add(out);
    const Rows rows = even_rows(length, group.rank(), group.size());
    std::vector<float> chunk(static_cast<size_t>(rows.size()));
    group.reduce_scatter(tensor_of(in), tensor_of(chunk), "bits").wait();
    add(chunk);
    group.reduce(tensor_of(in), tensor_of(out), 0, "bits").wait();
    if (group.rank() == 0) add(out);
  }
  return result;
}

}  // namespace ashlar::comm::testing_support
