// A file of a run to which a thread of its own appends rows: the caller never waits for the disk,
// because other ranks would then wait too.
//
// People move, remove and cut the files of a running run.  Before and after each write the thread
// checks the file under the name:
//   gone          it is made anew with all rows ever written to it
//   another file  the rows that it may lack, since the last check, are appended to it
//   cut           rows continue at its new end; those cut off are lost
// Each case logs a warning.
//
// Errors   of a write are kStorage, thrown by the next check(), drain() or sync(); its bytes are
//          written again, in the same place, with the next ones.
// Threads  one thread adds; sync() from any.
#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "ashlar/core/files.h"
#include "ashlar/core/log.h"

namespace ashlar::train {

class RowFile {
 public:
  static constexpr size_t kRoom = 1 << 16;  // up to this many bytes at a time allocate nothing

  // `file`, which was made or opened as `path`, ends where the next rows are written.
  RowFile(FileSystem& files, std::string path, std::unique_ptr<File> file, Log& log);
  ~RowFile();  // writes the remaining rows; an error is logged
  RowFile(const RowFile&) = delete;

  // Takes the rows and leaves an empty string with the same capacity.
  void add(std::string& rows);
  void check();  // does not wait
  void drain();  // returns when the file has all rows
  void sync();   // returns when they are on disk

 private:
  void write_loop();
  void write();
  void find();
  void make_anew();
  void go_on_in_another(int64_t its_bytes);
  std::string copy(int64_t begin, File& to, int64_t to_bytes);
  void take(std::shared_ptr<File> file);

  FileSystem& files_;
  const std::string path_;
  Log& log_;
  // Used by the thread, and by others while it is idle.
  std::shared_ptr<File> file_;
  int64_t size_bytes_;   // place of the next rows, which overwrite what a failed write left
  int64_t named_bytes_;  // the size when the file was last found under its name
  std::string writing_;  // rows that the file lacks

  std::mutex mutex_;
  std::condition_variable changed_;
  std::string added_;  // rows after `writing_`; it and the members below are under mutex_
  bool wanted_ = false, busy_ = false, stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace ashlar::train
