#include "ashlar/core/output.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/errors.h"
#include "tests/support/temporary_directory.h"

namespace ashlar {
namespace {

namespace fs = std::filesystem;
using testing_support::message_of;
using Names = std::vector<std::string>;

class OutputTest : public testing::Test {
 protected:
  std::string at(std::string_view name) const { return join(directory_.path(), name); }
  void put(std::string_view name, std::string_view text) { write_text(*files_, at(name), text); }
  std::string get(std::string_view name) { return read_text(*files_, at(name)); }
  Names names() { return files_->list(directory_.path()); }
  std::string refused(const Names& outputs, const Names& inputs, Existing existing) {
    return message_of(ErrorKind::kConfig, [&] { Outputs(*files_, outputs, inputs, existing); });
  }
  const testing_support::TemporaryDirectory directory_;
  const std::unique_ptr<FileSystem> files_ = posix_files();
};

TEST_F(OutputTest, NamesComeWithTheirContent) {
  {
    Outputs outputs(*files_, {at("a"), "", at("d/e/b")}, {});
    outputs.write(at("d/e/b"), "two");
    outputs.write(at("a"), "one");
    EXPECT_FALSE(files_->stat(at("a")));
    EXPECT_FALSE(files_->stat(at("d/e/b")));
    outputs.publish();
  }
  EXPECT_EQ(names(), (Names{"a", "d"}));
  EXPECT_EQ(files_->list(at("d/e")), Names{"b"});
  EXPECT_EQ(get("a"), "one");
  EXPECT_EQ(get("d/e/b"), "two");
}

TEST_F(OutputTest, WhatExistsIsRefused) {
  put("a", "mine");
  files_->make_directories(at("d"));
  fs::create_symlink("nowhere", at("dangling"));
  for (const char* name : {"a", "d", "d/", "dangling"})
    EXPECT_NE(refused({at("new"), at(name)}, {}, Existing::kRefuse).find("exists already"),
              std::string::npos)
        << name;
  EXPECT_EQ(refused({at("a"), at("d")}, {}, Existing::kRefuseUnlessForced),
            at("a") + ", " + at("d") +
                " exist already; choose another name, remove them or replace them with --force");
  EXPECT_EQ(refused({at("d")}, {}, Existing::kReplace),
            at("d") + " exists already and is no regular file; choose another name");
  EXPECT_EQ(refused({"/dev/null"}, {}, Existing::kReplace),
            "/dev/null exists already and is no regular file; choose another name");
  EXPECT_EQ(refused({at("b"), at("b")}, {}, Existing::kRefuse),
            "two outputs are both " + at("b") + "; choose two names");
  fs::create_directory_symlink(".", at("here"));
  for (const char* name : {"./b", "d/../b", "here/b", "new/../b"})
    for (const Existing existing : {Existing::kRefuse, Existing::kReplace})
      EXPECT_NE(refused({at("b"), at(name)}, {}, existing).find("two outputs are both "),
                std::string::npos)
          << name;
  EXPECT_EQ(get("a"), "mine");
}

TEST_F(OutputTest, AnInputIsNeverReplaced) {
  put("input", "mine");
  fs::create_directory_symlink(".", at("here"));
  fs::create_symlink("input", at("link"));
  fs::create_hard_link(at("input"), at("hard"));
  for (const char* name : {"input", "./input", "here/input", "link", "hard"})
    for (const Existing existing : {Existing::kRefuse, Existing::kReplace})
      EXPECT_EQ(refused({at("new"), at(name)}, {at("other"), at("input")}, existing),
                "the output " + at(name) + " is the input " + at("input") +
                    ", which would be lost; choose another name");
  EXPECT_EQ(get("input"), "mine");
}

TEST_F(OutputTest, ReplacesWhenAsked) {
  put("a", "old");
  put("target", "kept");
  fs::create_symlink("target", at("b"));
  Outputs outputs(*files_, {at("a"), at("b")}, {}, Existing::kReplace);
  outputs.write(at("a"), "one");
  outputs.write(at("b"), "two");
  EXPECT_EQ(get("a"), "old");
  outputs.publish();
  EXPECT_EQ(get("a"), "one");
  EXPECT_EQ(get("b"), "two");
  EXPECT_EQ(get("target"), "kept") << "the link goes, not what it leads to";
}

// Whatever call fails, in a set that is new and in one that replaces: what others made stays.
TEST_F(OutputTest, AFailureRemovesItsOwnOnly) {
  for (const Existing existing : {Existing::kRefuse, Existing::kReplace})
    for (int64_t failing = 0, calls = 1; failing < calls; ++failing) {
      const auto inner = memory_files();
      inner->make_directories("d");
      for (const char* name : {"d/a.tmp", "d/b.1.tmp", "d/note"}) write_text(*inner, name, "mine");
      calls = 0;
      const auto faulty =
          faulty_files(*inner, [&](int64_t call, std::string_view, const std::string&) {
            calls = call + 1;
            return call == failing ? Fault::kShortWrite : Fault::kNone;
          });
      bool failed = false;
      try {
        Outputs outputs(*faulty, {"d/new/a", "d/b"}, {"d/note"}, existing);
        outputs.write("d/new/a", "one");
        outputs.write("d/b", "two");
        outputs.publish();
      } catch (const Error&) {
        failed = true;
        EXPECT_EQ(inner->list("d"), (Names{"a.tmp", "b.1.tmp", "note"})) << "call " << failing;
      }
      EXPECT_TRUE(failed || read_text(*inner, "d/b") == "two");
    }
}

TEST_F(OutputTest, AnotherThatComesFirstIsKept) {
  Outputs outputs(*files_, {at("a"), at("b")}, {});
  outputs.write(at("a"), "one");
  outputs.write(at("b"), "two");
  put("b", "of another");
  message_of(ErrorKind::kStorage, [&] { outputs.publish(); });
  EXPECT_EQ(get("b"), "of another");
}

TEST_F(OutputTest, Directories) {
  {
    Outputs outputs(*files_, {at("model/")}, {});
    const std::string made = outputs.make_directory(at("model/"));
    write_text(*files_, join(made, "weights"), "one");
    outputs.publish();
  }
  EXPECT_EQ(names(), Names{"model"});
  {
    Outputs outputs(*files_, {at("other")}, {});
    write_text(*files_, join(outputs.make_directory(at("other")), "weights"), "one");
  }
  EXPECT_EQ(names(), Names{"model"});
}

TEST_F(OutputTest, NamesWhatAnotherProcessLeft) {
  for (const char* name : {"a.17.tmp", "a.17-1.tmp", "a.tmp", "a.x.tmp", "ab.17.tmp"})
    put(name, "left");
  const Outputs outputs(*files_, {at("a")}, {});
  EXPECT_EQ(outputs.left_behind(), (Names{at("a.17-1.tmp"), at("a.17.tmp")}));
}

}  // namespace
}  // namespace ashlar
