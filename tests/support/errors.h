// The text of an Error: one line, or that of kMemory with its table.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "ashlar/core/error.h"

namespace ashlar::testing_support {

// The message of the Error of that kind that `body` throws; "" if it throws none.
template <typename Body>
std::string error_of(ErrorKind kind, Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.kind(), kind) << message;
    if (kind != ErrorKind::kMemory) {
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
    return message;
  }
  return "";
}

// The same where one is expected: a test failure if there is none.
template <typename Body>
std::string message_of(ErrorKind kind, Body&& body) {
  const std::string message = error_of(kind, body);
  EXPECT_NE(message, "") << "no error was raised";
  return message;
}

}  // namespace ashlar::testing_support
