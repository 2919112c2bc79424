// A JSON file of tests/fixtures.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace ashlar::testing_support {

inline nlohmann::json read_json(const std::string& name) {
  std::ifstream in(std::string(ASHLAR_FIXTURES) + "/" + name);
  return nlohmann::json::parse(in);
}

}  // namespace ashlar::testing_support
