#include "ashlar/train/records/row_file.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ashlar/core/error.h"
#include "ashlar/core/text.h"
#include "ashlar/core/threads.h"

namespace ashlar::train {
namespace {

// Empties `from`; keeps the memory of both if `to` is empty.
void move_rows(std::string& from, std::string& to) {
  if (to.empty())
    std::swap(from, to);
  else
    to += from;
  from.clear();
}

}  // namespace

RowFile::RowFile(FileSystem& files, std::string path, std::unique_ptr<File> file, Log& log)
    : files_(files),
      path_(std::move(path)),
      log_(log),
      file_(std::move(file)),
      size_bytes_(file_->size()),
      named_bytes_(size_bytes_) {
  writing_.reserve(kRoom);
  added_.reserve(kRoom);
  thread_ = start_thread("that writes rows", [this] { write_loop(); });
}

RowFile::~RowFile() {
  try {
    drain();
  } catch (const std::exception& error) {
    log_.warn("the last rows are lost: {}", error.what());
  }
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void RowFile::add(std::string& rows) {
  {
    const std::lock_guard lock(mutex_);
    move_rows(rows, added_);
    wanted_ = true;
  }
  changed_.notify_all();
}

void RowFile::check() {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void RowFile::drain() {
  std::unique_lock lock(mutex_);
  wanted_ = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return !wanted_ && !busy_; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void RowFile::sync() {
  drain();
  std::shared_ptr<File> file;
  {
    const std::lock_guard lock(mutex_);
    file = file_;
  }
  file->sync();
}

void RowFile::write_loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || wanted_; });
    if (!wanted_) return;
    wanted_ = false;
    move_rows(added_, writing_);
    busy_ = true;
    lock.unlock();
    std::exception_ptr error;
    try {
      write();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    busy_ = false;
    error_ = error;  // null after a success, which also wrote the rows of a failure before
    changed_.notify_all();
  }
}

void RowFile::write() {
  find();
  if (writing_.empty()) return;
  file_->write_at(std::as_bytes(std::span(writing_)), size_bytes_);
  size_bytes_ += int64_t(writing_.size());
  writing_.clear();
  find();  // now the file under the name has these rows
}

// Makes file_ the file under the name.
void RowFile::find() {
  const auto info = files_.stat(path_);
  if (!info) return make_anew();
  const int64_t own_bytes = file_->size();
  if (info->size_bytes != own_bytes) return go_on_in_another(info->size_bytes);
  if (own_bytes < size_bytes_) {
    log_.warn(
        "{} was cut from {} to {} while the run writes it: rows go on at its end, and what was cut "
        "is lost",
        path_, format_bytes(size_bytes_), format_bytes(own_bytes));
    size_bytes_ = own_bytes;
  }
  named_bytes_ = size_bytes_;
}

void RowFile::make_anew() {
  files_.make_directories(parent_of(path_));
  std::shared_ptr<File> anew = files_.create(path_);
  const std::string lost = copy(0, *anew, 0);
  files_.sync_directory(parent_of(path_));
  log_.warn("{} was removed or moved while the run writes it: it is there again, {}", path_,
            lost.empty() ? "with all rows" : "without the rows until now: " + lost);
  take(std::move(anew));
}

void RowFile::go_on_in_another(int64_t its_bytes) {
  std::shared_ptr<File> other = files_.append(path_);
  const std::string lost = copy(named_bytes_, *other, its_bytes);
  log_.warn("{} was replaced by another file while the run writes it: rows go on in that one{}",
            path_, lost.empty() ? "" : ", without those of the last seconds: " + lost);
  take(std::move(other));
}

// Copies the rows from `begin` on to the end of another file; returns the reason if it cannot.
std::string RowFile::copy(int64_t begin, File& to, int64_t to_bytes) {
  constexpr int64_t kSlice = 1 << 20;
  std::vector<std::byte> slice(size_t(std::min(kSlice, size_bytes_ - begin)));
  try {
    for (int64_t at = begin; at < size_bytes_; at += kSlice) {
      const auto part = std::span(slice).first(size_t(std::min(kSlice, size_bytes_ - at)));
      file_->read_at(part, at);
      to.write_at(part, to_bytes + at - begin);
    }
    return "";
  } catch (const Error& error) {
    to.truncate(to_bytes);
    return error.what();
  }
}

void RowFile::take(std::shared_ptr<File> file) {
  size_bytes_ = named_bytes_ = file->size();
  const std::lock_guard lock(mutex_);
  file_ = std::move(file);
}

}  // namespace ashlar::train
