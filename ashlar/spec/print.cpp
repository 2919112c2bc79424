#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ashlar/spec/keys.h"

namespace ashlar {
namespace {

std::string number_text(double value) {
  // fmt prints the shortest text that reads back to the same bits.
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string blend_text(const std::vector<BlendEntry>& blend) {
  if (blend.size() == 1 && blend[0].weight == 1.0 &&
      blend[0].path.find_first_of(",:") == std::string::npos)
    return toml_string(blend[0].path);
  std::string out;
  for (const BlendEntry& entry : blend)
    out += fmt::format("{}{{ path = {}, weight = {} }}", out.empty() ? "" : ", ",
                       toml_string(entry.path), number_text(entry.weight));
  return "[" + out + "]";
}

// The shortest form that reads back: one name for all blocks, or the shortest list that repeats.
std::string layers_text(const std::vector<LayerType>& layers) {
  if (layers.empty()) return "[]";
  const auto count = int64_t(layers.size());
  for (const std::string& name : {name_of(layers[0]), std::string("alternate")})
    if (layers == expand_layer_pattern(name, count)) return toml_string(name);
  const auto repeats = [&](size_t period) {
    if (layers.size() % period != 0) return false;
    for (size_t l = period; l < layers.size(); ++l)
      if (layers[l] != layers[l - period]) return false;
    return true;
  };
  size_t period = 1;
  while (!repeats(period)) ++period;
  std::string out;
  for (size_t l = 0; l < period; ++l)
    out += fmt::format("{}{}", l == 0 ? "" : ", ", toml_string(name_of(layers[l])));
  return "[" + out + "]";
}

std::string ids_text(const std::vector<int64_t>& ids) {
  if (ids.size() > 1) return fmt::format("[{}]", fmt::join(ids, ", "));
  return ids.empty() ? "-1" : fmt::to_string(ids[0]);
}

std::string texts_text(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts)
    out += fmt::format("{}{}", out.empty() ? "" : ", ", toml_string(text));
  return "[" + out + "]";
}

}  // namespace

std::string value_text(const KeyValue& value) {
  struct Printer {
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(int64_t number) const { return fmt::format("{}", number); }
    std::string operator()(double number) const { return number_text(number); }
    std::string operator()(const std::string& text) const { return toml_string(text); }
    std::string operator()(const std::vector<BlendEntry>& blend) const { return blend_text(blend); }
    std::string operator()(const std::vector<LayerType>& list) const { return layers_text(list); }
    std::string operator()(const std::vector<int64_t>& ids) const { return ids_text(ids); }
    std::string operator()(const std::vector<std::string>& list) const { return texts_text(list); }
  };
  return std::visit(Printer{}, value);
}

std::string to_toml(const Recipe& recipe) {
  std::string out, section;
  for (const Key& key : recipe_keys()) {
    const size_t dot = key.name.rfind('.');
    if (key.name.substr(0, dot) != section) {
      section = key.name.substr(0, dot);
      out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
    }
    out += fmt::format("{} = {}\n", key.name.substr(dot + 1), value_text(key.get(recipe)));
  }
  return out;
}

std::vector<std::string> differences(const Recipe& before, const Recipe& now) {
  std::vector<std::string> lines;
  for (const Key& key : recipe_keys()) {
    const KeyValue was = key.get(before), is = key.get(now);
    if (was != is)
      lines.push_back(fmt::format("{} was {}, is {}", key.name, value_text(was), value_text(is)));
  }
  return lines;
}

}  // namespace ashlar
