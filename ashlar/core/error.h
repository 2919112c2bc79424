// The one error type of the project and the two ways to raise it.
//
//   ASHLAR_REQUIRE(cond, kind, format, ...)  the user, a file or the machine is wrong: throws Error
//   ASHLAR_ASSERT(cond)                      this program is wrong: prints the condition and aborts
//
// The kind is the exit code of the process.  A message says what was found (names and values as the
// user wrote them), what was expected and what to do, in one line.  Only cli/main.cpp handles an
// Error finally; it prints the message once.  Formats are fmt's, checked at compile time.
#pragma once

#include <fmt/core.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

namespace ashlar {

// Exit codes; docs/errors.md lists them with examples.
enum class ErrorKind {
  kConfig = 2,      // a recipe, a flag, an unsupported combination
  kMemory = 22,     // an allocation failed or passed the limit
  kNumeric = 23,    // the budget of non-finite or spiking steps is used up
  kData = 24,       // a dataset, tokenizer, text or foreign model directory is wrong
  kStorage = 25,    // reading or writing failed: full disk, missing rights, I/O error
  kCorrupt = 26,    // a checkpoint is damaged or incomplete
  kPreempted = 27,  // stopped by a signal after saving
  kDevice = 29,     // the hardware lacks or refuses something
  kComm = 30,       // a rank failed, came late or disagreed
  kLaunch = 64,     // started in the wrong way (world size and launcher disagree)
};

class Error : public std::runtime_error {
 public:
  // The message becomes one printable line, whatever a file or a host wrote into it.  Only the
  // program's own text may add lines.
  Error(ErrorKind kind, std::string_view message, std::string_view further_lines = "");
  ErrorKind kind() const { return kind_; }
  int exit_code() const { return static_cast<int>(kind_); }
  std::string_view first_line() const;
  std::string_view further_lines() const;

 private:
  ErrorKind kind_;
};

// The message for any exception, printable, and the exit code that goes with it.
struct Report {
  int exit_code;
  std::string message;
};

// The kind of an Error; kMemory for std::bad_alloc; kBugExitCode for any other exception.
inline constexpr int kBugExitCode = 70;
Report report_of(const std::exception_ptr& error);

// Prints "file:line: internal error: condition is false" to stderr and aborts, in release too.
[[noreturn]] void fail_assertion(const char* condition, const char* file, int line);

}  // namespace ashlar

#define ASHLAR_REQUIRE(condition, kind, ...)                                        \
  do {                                                                              \
    if (!(condition))                                                               \
      throw ::ashlar::Error(::ashlar::ErrorKind::kind, ::fmt::format(__VA_ARGS__)); \
  } while (false)

#define ASHLAR_FAIL(kind, ...) \
  throw ::ashlar::Error(::ashlar::ErrorKind::kind, ::fmt::format(__VA_ARGS__))

#define ASHLAR_ASSERT(condition)                                                \
  do {                                                                          \
    if (!(condition)) ::ashlar::fail_assertion(#condition, __FILE__, __LINE__); \
  } while (false)
