// Files and directories that a command creates under names chosen by its user.
//
//   Outputs outputs(files, {path}, inputs);  refuses names in use, before any work
//   outputs.write(path, text);               into a temporary beside it: PATH.PROCESS.tmp
//   outputs.publish();                       all names, in the order of the constructor
//
// The user's files are safe.  A name that exists is refused unless its replacement was requested.
// A name that leads to an input, by any path or link, is always refused.  Unless publish() has
// returned, the destructor removes what this object created and nothing else; files must be closed
// by then.
//
// Errors  kConfig from the constructor; kStorage.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/core/files.h"

namespace ashlar {

// The fate of a regular file that has the name of an output.  kRefuseUnlessForced differs from
// kRefuse only in its message, which names --force.
enum class Existing : uint8_t { kRefuse, kRefuseUnlessForced, kReplace };

// Directories that a command creates on the way to its outputs.  The empty ones are removed again
// unless keep() is called.
class NewDirectories {
 public:
  explicit NewDirectories(FileSystem& files) : files_(files) {}
  ~NewDirectories();
  NewDirectories(const NewDirectories&) = delete;
  NewDirectories& operator=(const NewDirectories&) = delete;
  void make(const std::string& path);  // like make_durable_directories
  void keep() { made_.clear(); }

 private:
  FileSystem& files_;
  std::vector<std::string> made_;  // a directory comes before its subdirectories
};

class Outputs {
 public:
  // Empty names are skipped.  Inputs need not exist.
  Outputs(FileSystem& files, const std::vector<std::string>& names,
          const std::vector<std::string>& inputs, Existing existing = Existing::kRefuse);
  ~Outputs();
  Outputs(const Outputs&) = delete;
  Outputs& operator=(const Outputs&) = delete;

  // A new temporary file for one of the names; missing directories are created.
  std::unique_ptr<File> create(const std::string& name);
  std::string make_directory(const std::string& name);            // its path
  void write(const std::string& name, std::string_view content);  // whole and synced
  // Gives every name its content.  The last name of a set shows that all are there; if it is being
  // replaced, the old one is removed before the others change.
  void publish();

  // Temporaries of these names that another process left or is writing.
  std::vector<std::string> left_behind() const;

 private:
  struct Output {
    std::string name;
    std::string temporary;  // "" before it is created and after it is published
    bool published = false;
  };
  Output& claim(const std::string& name);  // creates its directory

  FileSystem& files_;
  const Existing existing_;
  std::vector<Output> outputs_;
  NewDirectories directories_;
  bool done_ = false;
};

// Whether both names lead to the same existing file, also through links.
bool is_same_file(FileSystem& files, const std::string& a, const std::string& b);

}  // namespace ashlar
