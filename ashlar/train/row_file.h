// A file of a run to which rows are added, by a thread of its own: whoever adds them never waits
// for the disk, on which other ranks would then wait too.
//
// People move, remove and cut the files of a run that goes on.  Before and after each write the
// name is looked at:
//   gone          the file is made anew with all that was ever written to it
//   another file  what it may lack, since the name was last looked at, is added to it
//   cut           rows go on at its new end; what was cut is lost
// Each is a warning.
//
// Errors   of a write are kStorage, thrown by the next check(), drain() or sync(); its bytes are
//          written again, in the same place, with the next ones.
// Threads  one adds; sync() from any.
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
  static constexpr size_t kRoom = 1 << 16;  // so many bytes at a time allocate nothing

  // `file`, which was made or opened as `path`, ends where rows go next.
  RowFile(FileSystem& files, std::string path, std::unique_ptr<File> file, Log& log);
  ~RowFile();  // writes what there is; an error is logged
  RowFile(const RowFile&) = delete;

  // Takes the rows, and leaves an empty string with as much room.
  void add(std::string& rows);
  void check();  // waits for nothing
  void drain();  // returns when the file has all rows
  void sync();   // and when they are on disk

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
  // The thread's, and of others while it has nothing to do.
  std::shared_ptr<File> file_;
  int64_t size_bytes_;   // where the next rows go: what a failed write left is written over
  int64_t named_bytes_;  // the size when the file was last found under its name
  std::string writing_;  // rows that the file lacks

  std::mutex mutex_;
  std::condition_variable changed_;
  std::string added_;  // under mutex_, like what follows: rows that come after `writing_`
  bool wanted_ = false, busy_ = false, stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace ashlar::train
