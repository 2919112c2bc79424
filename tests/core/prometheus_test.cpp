#include "ashlar/core/prometheus.h"

#include <gtest/gtest.h>

namespace ashlar {
namespace {

// The example of Prometheus' description of the format, without its times.
TEST(PrometheusText, WritesTheFormatOfItsDescription) {
  PrometheusText text;
  text.begin("http_requests_total", "counter", "The total number of HTTP requests.");
  text.add(1027, R"(method="post",code="200")");
  text.add(3, R"(method="post",code="400")");
  text.add("temperature", "gauge", "Now.", 0.25);
  EXPECT_EQ(text.text(),
            "# HELP http_requests_total The total number of HTTP requests.\n"
            "# TYPE http_requests_total counter\n"
            "http_requests_total{method=\"post\",code=\"200\"} 1027\n"
            "http_requests_total{method=\"post\",code=\"400\"} 3\n"
            "# HELP temperature Now.\n"
            "# TYPE temperature gauge\n"
            "temperature 0.25\n");
}

}  // namespace
}  // namespace ashlar
