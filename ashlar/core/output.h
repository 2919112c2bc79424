// Files and directories that a command makes under names that its user chose.
//
//   Outputs outputs(files, {path}, inputs);  refuses names in use, before any work
//   outputs.write(path, text);               into a temporary beside it: PATH.PROCESS.tmp
//   outputs.publish();                       all names, in the order of the constructor
//
// Nothing of the user's is lost.  A name that exists is refused unless its replacement was asked
// for.  A name that leads to an input, by whatever path or link, is refused always.  Unless
// publish() returned, the destructor removes what this object made and nothing else; files must be
// closed by then.
//
// Errors  kConfig from the constructor; kStorage.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/core/files.h"

namespace ashlar {

// What happens to a regular file that has the name of an output.  kRefuseUnlessForced differs from
// kRefuse in its message alone, which names --force.
enum class Existing : uint8_t { kRefuse, kRefuseUnlessForced, kReplace };

// Directories that a command makes on its way; those that are empty go again unless keep() is
// called.
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
  std::vector<std::string> made_;  // a directory stands before those in it
};

class Outputs {
 public:
  // Empty names are passed over.  Inputs need not exist.
  Outputs(FileSystem& files, const std::vector<std::string>& names,
          const std::vector<std::string>& inputs, Existing existing = Existing::kRefuse);
  ~Outputs();
  Outputs(const Outputs&) = delete;
  Outputs& operator=(const Outputs&) = delete;

  // A new temporary for one of the names; the directories on the way to it are made.
  std::unique_ptr<File> create(const std::string& name);
  std::string make_directory(const std::string& name);            // its path
  void write(const std::string& name, std::string_view content);  // whole and synced
  // Every name that was given has its content.  In a set the last name says that all are there: one
  // that is replaced goes before the others change.
  void publish();

  // Temporaries of these names that another process left or is writing.
  std::vector<std::string> left_behind() const;

 private:
  struct Output {
    std::string name;
    std::string temporary;  // "" before it is made and once it is published
    bool published = false;
  };
  Output& claim(const std::string& name);  // whose directory is made

  FileSystem& files_;
  const Existing existing_;
  std::vector<Output> outputs_;
  NewDirectories directories_;
  bool done_ = false;
};

// Whether both names lead to one file that is there, through links too.
bool is_same_file(FileSystem& files, const std::string& a, const std::string& b);

}  // namespace ashlar
