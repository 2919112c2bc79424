// Pages in a real browser: what people see, at the width of a desk and of a telephone.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <regex>

#include "ashlar/core/files.h"
#include "ashlar/core/json.h"
#include "ashlar/report/page.h"
#include "ashlar/report/plan_page.h"
#include "ashlar/report/profile_page.h"
#include "ashlar/report/run_page.h"
#include "tests/report/samples.h"
#include "tests/support/temporary_directory.h"

namespace ashlar::report {
namespace {

std::string output_of(const std::string& command) {
  std::string output;
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return output;
  std::array<char, 4096> buffer;
  for (size_t n; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    output.append(buffer.data(), n);
  pclose(pipe);
  return output;
}

Page full_page() {
  Page page;
  page.title = "A page with every kind of chart";
  page.banner = "3 numbers are low";
  page.mood = Mood::kWarning;
  page.facts = {{"A long name without any break", std::string(200, 'x')}};
  LineChart lines{"Bandwidth over sizes", {"bytes", true}, {"GB/s", true}, {}, "A note."};
  for (int i = 0; i < 9; ++i) {
    Line line{"line " + std::to_string(i), {}, i % 2 == 0};
    for (int k = 0; k < 20; ++k)
      line.points.emplace_back(std::pow(2, k + 10), k == 7 ? std::nan("") : (i + 1) * (k + 1.0));
    if (i == 1)
      for (const auto& [x, y] : line.points) line.range.emplace_back(0.9 * y, 1.1 * y);
    lines.lines.push_back(std::move(line));
  }
  lines.x.ticks = Ticks::kBytes;
  lines.lines.push_back({"law", {{1024, 1}, {1 << 20, 40}}, false, {}, 1});
  LineChart flat{"A flat line", {"step"}, {"loss"}, {{"loss", {{1, 2}, {2, 2}}}}, ""};
  LineChart single{"A single point", {"step"}, {"loss"}, {{"loss", {{1, 2}}}}, ""};
  HeatMap map{"Heat", "column", "row", "GB/s", {}, {}, {}, ""};
  for (int i = 0; i < 64; ++i) map.columns.push_back("column " + std::to_string(i));
  for (int i = 0; i < 16; ++i) map.rows.push_back("a row with a long name " + std::to_string(i));
  for (int i = 0; i < 64 * 16; ++i) map.values.push_back(i % 37 == 0 ? std::nan("") : i);
  BarChart bars{"Bars", "save", "ms", {"10", "20"}, {{"copy", {4, 5}}, {"write", {6, 0}}}, ""};
  for (int i = 0; i < 9; ++i) bars.series.push_back({"phase " + std::to_string(i), {1, 2}});
  PageTable table{"A wide table", {}, {}, ""};
  for (int i = 0; i < 30; ++i) table.columns.push_back("column " + std::to_string(i));
  table.rows.push_back(std::vector<std::string>(30, "some text"));
  page.sections = {{"Lines", "Text.", {lines, flat, single}}, {"Others", "", {map, bars, table}}};
  return page;
}

int num_charts(const Page& page) {
  int count = 0;
  for (const PageSection& section : page.sections)
    for (const Item& item : section.items) count += !std::holds_alternative<PageTable>(item);
  return count;
}

Page of_machine() {
  const machine::Profile before = sample_profile();
  machine::Profile now = before;
  now.identity["kernel"] = "6.1";
  now.quantities["memory.triad"].value *= 0.9;
  now.kernels = {"here.kernels.tsv", 0};
  const KernelTimes kernels{
      {{"linear_forward", "BF16", 1, 512, 256, 64, 16777216, 400000, 2, 10, 11, 12, 44},
       {"attention_backward", "BF16", 4, 512, 512, 64, 90000000, 800000, 2, 50, 60, 70, 12},
       {"add", "F32", 1, 512, 256, 0, 131072, 1572864, 2, 5, 6, 7, 12}},
      ""};
  return profile_page({&now, 1}, {{&kernels, 1}, &before});
}
Page of_published() {
  const machine::Profile profile =
      machine::parse_profile(machine::shipped_text("mi300x-pollara"), "mi300x-pollara");
  return profile_page({&profile, 1});
}
Page of_plans() {
  const machine::Profile profile = sample_profile();
  const PlanFile plans[] = {{"dp.json", sample_plan(1)}, {"tp.json", sample_plan(2)}};
  return plan_page(plans, &profile);
}
Page of_search() {
  const PlanFile file{"search.json", sample_search()};
  return plan_page({&file, 1}, nullptr);
}
Page of_simulation() {
  const PlanFile file{"step.json", sample_simulation()};
  return plan_page({&file, 1}, nullptr);
}
Page of_run() {
  RecordedRun run;
  run.name = "a run with a spike, saves and a resume";
  run.recipe = "[run]\nname = \"nano\"\n";
  std::string text;
  for (int step = 1; step <= 400; ++step) {
    text += fmt::format(
        "{{\"step\":{},\"tokens\":{},\"loss\":{},\"lr\":{},\"gradient_norm\":{},\"load_entropy\":0."
        "9,"
        "\"max_load\":{},\"step_s\":{},\"data_stall_s\":0,\"checkpoint_blocked_s\":0.001,"
        "\"tokens_per_s\":{},\"mfu\":0.3,\"memory_peak_bytes\":571904064}}\n",
        step, 2048 * step, step == 211 ? 500.0 : 9 - 0.01 * step, 1e-3 / step, 1 + step % 7,
        1.2 + 0.1 * (step % 5), 0.25, 8000 + step);
    if (step % 40 == 0)
      text += fmt::format(
          "{{\"event\":\"expert_loads\",\"step\":{},\"blocks\":{{\"0\":[1,3,5,9],\"1\":[2,2,4,1]}}}"
          "}"
          "\n",
          step);
    if (step % 100 != 0) continue;
    text += fmt::format(
        "{{\"event\":\"evaluation\",\"step\":{0},\"validation_loss\":6.5}}\n{{\"event\":\"resume\","
        "\"step\":{0}}}\n{{\"event\":\"checkpoint\",\"step\":{0},\"phases\":{{\"copy\":{{\"median_"
        "s\":"
        "0.1,\"max_s\":0.2,\"rank\":1}},\"write\":{{\"median_s\":0.3,\"max_s\":0.4,\"rank\":0}}}}}}"
        "\n",
        step);
  }
  text += "{\"event\":\"memory\",\"step\":1,\"tags\":{\"weights\":1048576,\"saved\":2097152}}\n";
  run.rows = read_rows(text);
  return run_page({&run, 1});
}

// Looks into the frames, which hold the pages: pixels to scroll sideways, the marks of every chart,
// coordinates that are no numbers, text that the edge of its chart cuts or that covers other text
// of its axis, and text whose contrast with what is behind it is below 4.5 (WCAG 2).
constexpr const char* kProbe = R"JS(
function rgb(text) {
  const n = text.match(/[0-9.]+/g).map(Number);
  return text.startsWith('color(') ? n.map((v, i) => i < 3 ? 255 * v : v) : n;
}
function light(c) {
  const part = v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  return 0.2126 * part(c[0]) + 0.7152 * part(c[1]) + 0.0722 * part(c[2]);
}
function ground(element, view) {
  if (element.classList.contains('cell')) {
    const marks = [...element.ownerSVGElement.querySelectorAll('rect.mark')];
    return rgb(view.getComputedStyle(marks.find(m => m.__data__ === element.__data__)).fill);
  }
  for (let e = element; e; e = e.parentElement) {
    const c = rgb(view.getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c;
  }
  return [255, 255, 255];
}
function look(frame) {
  const doc = frame.contentDocument, view = frame.contentWindow, faint = [], cut = [], covered = [];
  for (const e of doc.querySelectorAll('body *')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!own || e.closest('script,style,noscript,title') || !e.getClientRects().length) continue;
    const style = view.getComputedStyle(e);
    const a = light(rgb(e.closest('svg') ? style.fill : style.color)), b = light(ground(e, view));
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) faint.push(e.textContent + ' ' + contrast.toFixed(2));
    const svg = e.closest('.plot > svg');
    if (!svg || style.visibility === 'hidden') continue;
    const text = e.getBoundingClientRect(), box = svg.getBoundingClientRect();
    if (text.left < box.left - 1 || text.right > box.right + 1 || text.top < box.top - 1 ||
        text.bottom > box.bottom + 1) cut.push(e.textContent);
  }
  for (const axis of doc.querySelectorAll('g[text-anchor]')) {
    const boxes = [...axis.querySelectorAll('.tick text')].map(t => t.getBoundingClientRect());
    boxes.forEach((p, i) => boxes.slice(i + 1).forEach((q, k) => {
      if (p.left < q.right && q.left < p.right && p.top + 3 < q.bottom && q.top + 3 < p.bottom)
        covered.push(axis.querySelectorAll('.tick text')[i].textContent);
    }));
  }
  const root = doc.documentElement;
  return {scroll: root.scrollWidth - root.clientWidth, faint, cut, covered,
          marks: [...doc.querySelectorAll('figure')].map(f => f.querySelectorAll('.mark').length),
          odd: (root.innerHTML.match(/ (d|x|y|cx|cy|width|height)="[^"]*NaN/g) || []).length};
}
addEventListener('load', () => {
  const seen = [...document.querySelectorAll('iframe')].map(look);
  document.getElementById('seen').textContent = JSON.stringify(seen);
});
)JS";

// A page with each fault that the probe is there for; it is looked at beside the others.
constexpr const char* kFaulty = R"HTML(<!DOCTYPE html><html><body style="background:#fff">
<p style="color:#999">pale</p>
<div style="width:3000px">wide</div>
<figure><div class="plot"><svg width="200" height="50"><text x="190" y="20">cut off</text>
<g text-anchor="middle"><g class="tick"><text x="50" y="20">1,000</text></g>
<g class="tick"><text x="55" y="20">2,000</text></g></g></svg></div></figure></body></html>)HTML";

struct View {
  int width;
  bool dark;
};
class BrowserTest : public testing::TestWithParam<View> {
 protected:
  void SetUp() override {
    if (output_of("command -v chromium").empty()) GTEST_SKIP() << "no chromium is installed";
  }

  // Shows the pages in frames of one document, since a browser takes long to start: what it saw.
  Json show(const std::vector<std::pair<std::string, Page>>& pages) {
    const auto files = posix_files();
    std::string html = "<!DOCTYPE html><html><body style=\"margin:0\">\n";
    for (const auto& [name, page] : pages) {
      write_text(*files, (directory_ / (name + ".html")).string(), to_html(page));
      html += fmt::format(
          "<iframe src=\"{}.html\" style=\"width:100vw;height:900px;border:0\"></iframe>\n", name);
    }
    write_text(*files, (directory_ / "faulty.html").string(), kFaulty);
    html += "<iframe src=\"faulty.html\"></iframe>\n";
    html += fmt::format("<pre id=\"seen\"></pre><script>{}</script></body></html>", kProbe);
    const std::string path = (directory_ / "all.html").string();
    write_text(*files, path, html);
    const std::string dom = output_of(fmt::format(
        "chromium --headless --no-sandbox --disable-gpu --enable-logging=stderr "
        "--allow-file-access-from-files --hide-scrollbars --user-data-dir={0} "
        "--window-size={1},900 --blink-settings=preferredColorScheme={2} --dump-dom file://{3} "
        "2>{4}",
        (directory_ / "profile").string(), GetParam().width, GetParam().dark ? 0 : 1, path,
        (directory_ / "log").string()));
    log_ = read_text(*files, (directory_ / "log").string());
    const std::string begin = "<pre id=\"seen\">";
    const size_t at = dom.find(begin), end = dom.find("</pre>", at);
    if (at == std::string::npos || end == std::string::npos) return Json();
    return Json::parse(dom.substr(at + begin.size(), end - at - begin.size()), nullptr, false);
  }

  const testing_support::TemporaryDirectory directory_;
  std::string log_;
};

TEST_P(BrowserTest, EveryPageIsWholeAndReadable) {
  const std::vector<std::pair<std::string, Page>> pages = {
      {"all_kinds", full_page()}, {"machine", of_machine()}, {"published", of_published()},
      {"plans", of_plans()},      {"search", of_search()},   {"simulation", of_simulation()},
      {"run", of_run()}};
  const Json seen = show(pages);
  ASSERT_TRUE(seen.is_array()) << seen.dump() << log_;
  ASSERT_EQ(seen.size(), pages.size() + 1);
  const Json& faulty = seen.back();
  EXPECT_GT(faulty["scroll"], 0);
  EXPECT_EQ(faulty["faint"].dump(), R"(["pale 2.85"])");
  EXPECT_EQ(faulty["cut"].dump(), R"(["cut off"])");
  EXPECT_EQ(faulty["covered"].dump(), R"(["1,000"])");
  for (size_t i = 0; i < pages.size(); ++i) {
    const auto& [name, page] = pages[i];
    const Json& of_page = seen[i];
    EXPECT_LE(of_page["scroll"], 0) << name << ": pixels to scroll sideways";
    EXPECT_EQ(of_page["odd"], 0) << name << ": coordinates that are no numbers";
    EXPECT_EQ(of_page["faint"].dump(), "[]") << name << ": contrast below 4.5";
    EXPECT_EQ(of_page["cut"].dump(), "[]") << name << ": text that its chart cuts";
    EXPECT_EQ(of_page["covered"].dump(), "[]") << name << ": ticks over each other";
    EXPECT_EQ(int(of_page["marks"].size()), num_charts(page)) << name;
    for (size_t chart = 0; chart < of_page["marks"].size(); ++chart)
      EXPECT_GT(of_page["marks"][chart], 0) << name << ", chart " << chart;
  }
  EXPECT_EQ(log_.find("CONSOLE"), std::string::npos) << log_;
}
INSTANTIATE_TEST_SUITE_P(Pages, BrowserTest,
                         testing::Values(View{1280, false}, View{1280, true}, View{400, false},
                                         View{400, true}),
                         [](const auto& info) {
                           return (info.param.dark ? "Dark" : "Light") +
                                  std::to_string(info.param.width);
                         });

// The relative luminance of #rrggbb (WCAG 2).
double luminance(const std::string& colour) {
  double sum = 0;
  const double weights[3] = {0.2126, 0.7152, 0.0722};
  for (size_t i = 0; i < 3; ++i) {
    const double c = std::stoi(colour.substr(1 + 2 * i, 2), nullptr, 16) / 255.0;
    sum += weights[i] * (c <= 0.03928 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4));
  }
  return sum;
}

TEST(ReportColours, TextIsReadableOnBothGrounds) {
  const std::string css = asset_text("page");
  const size_t dark = css.find("prefers-color-scheme: dark");
  ASSERT_NE(dark, std::string::npos);
  for (const std::string& half : {css.substr(0, dark), css.substr(dark)}) {
    const auto colour = [&](const std::string& name) {
      std::smatch found;
      EXPECT_TRUE(std::regex_search(half, found, std::regex("--" + name + ": (#[0-9a-f]{6})")))
          << name;
      return luminance(found[1]);
    };
    const auto contrast = [](double a, double b) {
      return (std::max(a, b) + 0.05) / (std::min(a, b) + 0.05);
    };
    for (const char* name : {"ink", "quiet", "link", "good", "warning", "bad"}) {
      EXPECT_GE(contrast(colour(name), colour("ground")), 4.5) << name;
      EXPECT_GE(contrast(colour(name), colour("plane")), 4.5) << name;
    }
    for (int i = 0; i < 8; ++i)  // lines: WCAG asks 3:1 of graphics
      EXPECT_GE(contrast(colour("c" + std::to_string(i)), colour("ground")), 3) << i;
  }
}

}  // namespace
}  // namespace ashlar::report
