// An Error whose message has a certain text.
#pragma once

#include "tests/support/errors.h"

namespace ashlar::sim::testing_support {

template <typename Body>
void expect_error(Body&& body, ErrorKind kind, const std::string& text) {
  const std::string message = ashlar::testing_support::message_of(kind, body);
  EXPECT_NE(message.find(text), std::string::npos) << message;
}

}  // namespace ashlar::sim::testing_support
