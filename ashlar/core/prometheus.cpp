#include "ashlar/core/prometheus.h"

#include <fmt/format.h>

namespace ashlar {

void PrometheusText::begin(std::string_view name, std::string_view type, std::string_view help) {
  name_ = name;
  text_ += fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
}

void PrometheusText::add(double value, std::string_view labels) {
  text_ += labels.empty() ? fmt::format("{} {}\n", name_, value)
                          : fmt::format("{}{{{}}} {}\n", name_, labels, value);
}

void PrometheusText::add(std::string_view name, std::string_view type, std::string_view help,
                         double value) {
  begin(name, type, help);
  add(value);
}

}  // namespace ashlar
