// Numbers in the text format of Prometheus, version 0.0.4.
#pragma once

#include <string>
#include <string_view>

namespace ashlar {

inline constexpr const char* kPrometheusType = "text/plain; version=0.0.4";

class PrometheusText {
 public:
  // Begins a metric.  type: "gauge" or "counter"; help: a sentence in one line.
  void begin(std::string_view name, std::string_view type, std::string_view help);
  // A value of the metric begun last.  labels: `path="/health",status="200"`; "": none.
  void add(double value, std::string_view labels = "");
  // A metric of one value.
  void add(std::string_view name, std::string_view type, std::string_view help, double value);
  const std::string& text() const { return text_; }

 private:
  std::string name_, text_;
};

}  // namespace ashlar
