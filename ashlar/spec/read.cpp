// Reads a Recipe from text.
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>
#include <sstream>

#include "ashlar/core/error.h"
#include "ashlar/core/files.h"
#include "ashlar/core/text.h"
#include "ashlar/spec/keys.h"
#include "ashlar/spec/retired_keys.h"

namespace ashlar {
namespace {

constexpr int64_t kMaxRecipeBytes = 1 << 20;
constexpr const char* kCommandLine = "command line";

// Control characters become spaces and long texts are cut, so that a message stays one line.
std::string one_line(std::string_view text, size_t max_length = 80) {
  std::string out;
  for (char c : text) {
    const bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    out += control ? ' ' : c;
  }
  if (out.size() > max_length) out = out.substr(0, max_length - 3) + "...";
  return out;
}

// The value as the user wrote it, as far as TOML keeps that: tables would take several lines, and
// toml++ prints 0.1 with 17 digits.
std::string shown(const toml::node& node) {
  if (node.is_table()) return "a table";
  if (const auto number = node.value_exact<double>()) return value_text(*number);
  std::ostringstream out;
  out << toml::toml_formatter{node};
  return one_line(out.str());
}

toml::table parse_toml(const std::string& text, const std::string& source) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    ASHLAR_FAIL(kConfig, "{}: line {}, column {}: {}; expected TOML: [section], then key = value",
                source, error.source().begin.line, error.source().begin.column,
                one_line(error.description(), 200));
  }
}

const Key* find_key(std::string_view name) {
  for (const Key& key : recipe_keys())
    if (key.name == name) return &key;
  return nullptr;
}

bool is_section(const std::string& name) {
  const std::string prefix = name + ".";
  return std::ranges::any_of(recipe_keys(),
                             [&](const Key& key) { return key.name.starts_with(prefix); });
}

std::string section_of(std::string_view name) {
  const size_t dot = name.rfind('.');
  return std::string(name.substr(0, dot == std::string_view::npos ? 0 : dot));
}

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const Key& key : recipe_keys()) {
    const std::string section = section_of(key.name);
    if (names.empty() || names.back() != section) names.push_back(section);
  }
  return names;
}

// The replacement of a key of an older version; "" if there was no such key.
std::string became_of(std::string_view name) {
  for (const RetiredKey& key : retired_keys())
    if (key.name == name) return fmt::format("this key is gone; use {}", key.instead);
  return "";
}

// The remedy for an unknown key: the same word in another section is the likeliest slip, then a
// misspelling, then anything of this section.
std::string remedy(const std::string& name) {
  std::vector<std::string> all, same_word, same_section;
  const std::string section = section_of(name);
  const std::string word = name.substr(section.empty() ? 0 : section.size() + 1);
  for (const Key& key : recipe_keys()) {
    all.push_back(key.name);
    if (key.name.ends_with("." + word)) same_word.push_back(key.name);
    if (section_of(key.name) == section) same_section.push_back(key.name);
  }
  if (same_word.size() == 1) return fmt::format("; did you mean '{}'?", same_word[0]);
  if (!same_word.empty()) return suggestion(name, same_word);
  if (!nearest_name(name, all).empty()) return suggestion(name, all);
  return same_section.empty() ? suggestion(name, section_names()) : suggestion(name, same_section);
}

[[noreturn]] void refuse_key(const std::string& source, const std::string& name,
                             const std::string& value) {
  const std::string gone = became_of(name);
  ASHLAR_FAIL(kConfig, "{}: {} is {}, but {}", source, one_line(name), value,
              gone.empty() ? "there is no such key" + remedy(name) : gone);
}

enum class Retired : uint8_t { kRefused, kReadPast };

void reject_unknown(const toml::table& table, const std::string& prefix, const std::string& source,
                    Retired retired) {
  for (const auto& [key, node] : table) {
    const std::string name =
        prefix.empty() ? std::string(key.str()) : prefix + "." + std::string(key.str());
    if (is_section(name)) {
      ASHLAR_REQUIRE(node.is_table(), kConfig, "{}: {} is {}; expected a section [{}]", source,
                     name, shown(node), name);
      reject_unknown(*node.as_table(), name, source, retired);
    } else if (find_key(name) == nullptr) {
      ASHLAR_REQUIRE(!node.is_table(), kConfig, "{}: there is no section [{}]{}", source,
                     one_line(name), suggestion(name, section_names()));
      if (retired == Retired::kRefused || became_of(name).empty())
        refuse_key(source, name, shown(node));
    }
  }
}

std::optional<double> to_double(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "PREFIX" or "A:0.7,B:0.3"; text after a colon that is no number belongs to the path.
std::optional<std::vector<BlendEntry>> blend_of_text(std::string_view text) {
  std::vector<BlendEntry> blend;
  if (text.empty()) return blend;
  for (const std::string& part : split(text, ',')) {
    BlendEntry entry{part, 1.0};
    const size_t colon = part.rfind(':');
    if (colon != std::string::npos) {
      if (const auto weight = to_double(std::string_view(part).substr(colon + 1)))
        entry = {part.substr(0, colon), *weight};
    }
    if (entry.path.empty()) return std::nullopt;
    blend.push_back(entry);
  }
  return blend;
}

std::optional<BlendEntry> blend_entry(const toml::node& node) {
  if (const auto path = node.value_exact<std::string>()) return BlendEntry{*path, 1.0};
  const toml::table* table = node.as_table();
  if (table == nullptr) return std::nullopt;
  const auto path = (*table)["path"].value_exact<std::string>();
  if (!path || path->empty()) return std::nullopt;
  BlendEntry entry{*path, 1.0};
  size_t known = 1;
  if (const toml::node* weight = table->get("weight")) {
    if (!weight->is_number()) return std::nullopt;
    entry.weight = *weight->value<double>();
    ++known;
  }
  if (table->size() != known) return std::nullopt;
  return entry;
}

std::optional<KeyValue> blend_of(const toml::node& node) {
  if (const auto text = node.value_exact<std::string>()) {
    if (auto blend = blend_of_text(*text)) return KeyValue(*blend);
    return std::nullopt;
  }
  const toml::array* array = node.as_array();
  if (array == nullptr) return std::nullopt;
  std::vector<BlendEntry> blend;
  for (const toml::node& element : *array) {
    const auto entry = blend_entry(element);
    if (!entry) return std::nullopt;
    blend.push_back(*entry);
  }
  return KeyValue(blend);
}

std::optional<KeyValue> layers_of(const toml::node& node, int64_t num_layers) {
  if (const auto pattern = node.value_exact<std::string>()) {
    auto types = expand_layer_pattern(*pattern, num_layers);
    if (types.empty()) return std::nullopt;
    return KeyValue(std::move(types));
  }
  const toml::array* array = node.as_array();
  if (array == nullptr) return std::nullopt;
  std::vector<LayerType> types;
  for (const toml::node& element : *array) {
    const auto name = element.value_exact<std::string>();
    if (!name || name == "alternate") return std::nullopt;
    const auto one = expand_layer_pattern(*name, 1);
    if (one.empty()) return std::nullopt;
    types.push_back(one[0]);
  }
  // A list that divides the blocks repeats; any other length is a rule's business.
  const size_t period = types.size();
  if (period > 0 && size_t(num_layers) % period == 0)
    while (types.size() < size_t(num_layers)) types.push_back(types[types.size() - period]);
  return KeyValue(std::move(types));
}

// An id or a list of ids, each once; -1 is none.
std::optional<KeyValue> ids_of(const toml::node& node) {
  std::vector<int64_t> ids;
  if (const auto one = node.value_exact<int64_t>()) {
    if (*one != -1) ids.push_back(*one);
    return KeyValue(ids);
  }
  const toml::array* array = node.as_array();
  if (array == nullptr) return std::nullopt;
  for (const toml::node& element : *array) {
    const auto id = element.value_exact<int64_t>();
    if (!id || *id < 0 || std::ranges::find(ids, *id) != ids.end()) return std::nullopt;
    ids.push_back(*id);
  }
  return KeyValue(ids);
}

std::optional<KeyValue> texts_of(const toml::node& node) {
  std::vector<std::string> texts;
  if (const auto one = node.value_exact<std::string>()) {
    texts = one->empty() ? texts : split(*one, ',');
  } else {
    const toml::array* array = node.as_array();
    if (array == nullptr) return std::nullopt;
    for (const toml::node& element : *array) {
      const auto text = element.value_exact<std::string>();
      if (!text) return std::nullopt;
      texts.push_back(*text);
    }
  }
  for (const std::string& text : texts)
    if (text.empty()) return std::nullopt;
  return KeyValue(texts);
}

std::optional<KeyValue> word_of(const Key& key, const toml::node& node) {
  const auto text = node.value_exact<std::string>();
  for (const std::string& word : key.words)
    if (text == word) return KeyValue(word);
  return std::nullopt;
}

template <class T>
std::optional<KeyValue> exact(const toml::node& node) {
  const std::optional<T> value = node.value_exact<T>();
  return value ? std::optional<KeyValue>(KeyValue(*value)) : std::nullopt;
}

// nullopt: the node has the wrong type or word.  `so_far` holds the keys above this one.
std::optional<KeyValue> convert(const Key& key, const toml::node& node, const Recipe& so_far) {
  switch (key.type) {
    case KeyType::kBoolean:
      return exact<bool>(node);
    case KeyType::kInteger:
      return node.is_string() ? word_of(key, node) : exact<int64_t>(node);
    case KeyType::kNumber:
      return node.is_number() ? std::optional<KeyValue>(KeyValue(*node.value<double>()))
                              : std::nullopt;
    case KeyType::kText:
      return exact<std::string>(node);
    case KeyType::kWord:
      return word_of(key, node);
    case KeyType::kBlend:
      return blend_of(node);
    case KeyType::kLayers:
      return layers_of(node, so_far.model.num_hidden_layers);
    case KeyType::kIds:
      return ids_of(node);
    case KeyType::kTexts:
      return texts_of(node);
  }
  ASHLAR_ASSERT(false && "a KeyType without a reader");
}

// The remedy for 1e3 or 4.0 where an integer belongs.
std::string integer_hint(const Key& key, const toml::node& node) {
  const auto value = node.value_exact<double>();
  if (key.type != KeyType::kInteger || !value || *value != std::floor(*value)) return "";
  return std::abs(*value) < 1e15 ? fmt::format("; write {:.0f}", *value) : "";
}

void set_key(Recipe& recipe, const Key& key, const toml::node& node, const std::string& source) {
  const std::optional<KeyValue> value = convert(key, node, recipe);
  ASHLAR_REQUIRE(value.has_value(), kConfig, "{}: {} is {}; expected {}{}", source, key.name,
                 shown(node), expected_of(key), integer_hint(key, node));
  const std::string problem = range_problem(key, *value, key.name);
  ASHLAR_REQUIRE(problem.empty(), kConfig, "{}: {}", source, problem);
  key.set(recipe, *value);
}

// The TOML value of an override.  Text that is no TOML is a string; so is any scalar where a text
// belongs (train.run_dir=2026), because nobody quotes twice on a command line.
toml::table override_table(const Key& key, const std::string& text) {
  toml::table parsed;
  const bool bracketed = text.starts_with('[') || text.starts_with('{') || text.starts_with('"');
  try {
    parsed = toml::parse("value = " + text);
  } catch (const toml::parse_error& error) {
    ASHLAR_REQUIRE(!bracketed, kConfig, "{}: {}={}: {}; expected {}", kCommandLine, key.name,
                   one_line(text), one_line(error.description(), 200), expected_of(key));
    return toml::table{{"value", text}};
  }
  const bool wants_text = key.type == KeyType::kText || key.type == KeyType::kWord ||
                          key.type == KeyType::kBlend || key.type == KeyType::kLayers ||
                          key.type == KeyType::kTexts;
  const toml::node& node = *parsed.get("value");
  const bool scalar = !node.is_string() && !node.is_array() && !node.is_table();
  if (parsed.size() != 1 || (wants_text && scalar)) return toml::table{{"value", text}};
  return parsed;
}

// Puts the override into `table` and returns the name of its key.
std::string apply_override(toml::table& table, const std::string& assignment) {
  const size_t equals = assignment.find('=');
  ASHLAR_REQUIRE(equals != std::string::npos, kConfig,
                 "{}: \"{}\" is no override; expected section.key=value", kCommandLine,
                 one_line(assignment));
  const std::string name = assignment.substr(0, equals), text = assignment.substr(equals + 1);
  const Key* key = find_key(name);
  if (key == nullptr) refuse_key(kCommandLine, name, one_line(text));
  toml::table* parent = &table;
  for (const std::string& part : split(section_of(name), '.')) {
    if (parent->get(part) == nullptr) parent->insert(part, toml::table{});
    parent = parent->get(part)->as_table();
  }
  const std::string last = name.substr(section_of(name).size() + 1);
  parent->insert_or_assign(last, *override_table(*key, text).get("value"));
  return name;
}

// Derives keys that the recipe does not state from others.
template <typename Has>
void fill_model_defaults(ModelKeys& model, Has has) {
  if (!has("model.layer_types"))
    model.layer_types = expand_layer_pattern("hybrid", model.num_hidden_layers);
  const bool cca = model.has_mixer(CcaSpec::kKind);
  if (!has("model.residual")) model.residual = cca ? Residual::kScaled : Residual::kPlain;
  if (!has("model.partial_rotary_factor")) model.partial_rotary_factor = cca ? 0.5 : 1.0;
  if (!has("model.rope_type") && model.rope_scaling.original_positions > 0)
    model.rope_scaling.type = RopeType::kLlama3;
  if (!model.has_mixer(LinearSpec::kKind)) return;
  if (!has("model.linear_num_key_heads")) model.linear.num_key_heads = model.num_attention_heads;
  if (!has("model.linear_num_value_heads"))
    model.linear.num_value_heads = model.linear.num_key_heads;
  if (!has("model.linear_key_head_dim")) model.linear.key_head_dim = model.head_dim;
  if (!has("model.linear_value_head_dim")) model.linear.value_head_dim = model.linear.key_head_dim;
}

// A number of blocks that differs from the given model's is reported by its own key, not by theirs.
template <typename Has>
void fit_layers(ModelKeys& model, Has has) {
  if (has("model.layer_types")) return;
  const size_t period = model.layer_types.size();
  model.layer_types.resize(size_t(model.num_hidden_layers));
  for (size_t l = period; l < model.layer_types.size(); ++l)
    model.layer_types[l] = model.layer_types[l - period];
}

Recipe parse(const std::string& toml, const std::string& source,
             std::span<const std::string> overrides, Retired retired, const FindModel& find) {
  toml::table table = parse_toml(toml, source);
  reject_unknown(table, "", source, retired);
  std::set<std::string> overridden;
  for (const std::string& assignment : overrides)
    overridden.insert(apply_override(table, assignment));
  const auto read = [&](const Key& key, Recipe& recipe) {
    const toml::node* node = table.at_path(key.name).node();
    if (node) set_key(recipe, key, *node, overridden.contains(key.name) ? kCommandLine : source);
    return node != nullptr;
  };

  Recipe recipe;
  recipe.source = source;
  for (const char* name : {"init.model", "train.run_dir"}) read(*find_key(name), recipe);
  std::optional<GivenModel> given;
  if (find && !recipe.init.model.empty()) given = find(recipe);
  if (given) recipe.model = keys_of(given->model, given->place);
  for (const Key& key : recipe_keys()) {
    const bool stated = read(key, recipe);
    ASHLAR_REQUIRE(stated || given || !key.required, kConfig,
                   "{}: {} is missing; expected {}, or init.model to take it from", source,
                   key.name, expected_of(key));
  }
  const auto has = [&](const char* name) { return bool(table.at_path(name)); };
  given ? fit_layers(recipe.model, has) : fill_model_defaults(recipe.model, has);
  if (recipe.data.num_streams == 0)
    recipe.data.num_streams = default_num_streams(recipe.train.global_batch);
  if (given && int64_t(recipe.model.layer_types.size()) == recipe.model.num_hidden_layers)
    require_sizes(recipe, *given);
  validate(recipe);
  return recipe;
}

}  // namespace

Recipe parse_recipe(const std::string& toml, const std::string& source,
                    std::span<const std::string> overrides, const FindModel& find) {
  return parse(toml, source, overrides, Retired::kRefused, find);
}

Recipe parse_saved_recipe(const std::string& toml, const std::string& source) {
  return parse(toml, source, {}, Retired::kReadPast, {});
}

Recipe load_recipe(const std::string& path, std::span<const std::string> overrides,
                   const FindModel& find) {
  const auto files = posix_files();
  const std::optional<FileInfo> info = files->stat(path, LinkPolicy::kFollow);
  ASHLAR_REQUIRE(info.has_value(), kConfig, "{}: there is no such recipe; expected a TOML file",
                 path);
  ASHLAR_REQUIRE(info->type == FileInfo::Type::kFile, kConfig,
                 "{}: this is not a plain file; expected a TOML recipe", path);
  ASHLAR_REQUIRE(info->size_bytes <= kMaxRecipeBytes, kConfig,
                 "{}: the file has {} bytes; expected a recipe of at most {} bytes", path,
                 info->size_bytes, kMaxRecipeBytes);
  return parse_recipe(read_text(*files, path, kMaxRecipeBytes), path, overrides, find);
}

}  // namespace ashlar
