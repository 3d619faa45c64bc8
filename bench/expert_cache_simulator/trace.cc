#include "expert_cache_simulator/trace.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "base/units.h"

namespace ganglion::simulator {

using base::Code;
using base::Result;
using base::Status;

namespace {

/// splitmix64: the same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  /// In (0, 1).
  double uniform() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }

 private:
  uint64_t state_;
};

// log popularity of each expert: -exponent * log(rank) in a random order.
std::vector<double> popularity(uint32_t experts, double exponent, uint64_t seed) {
  std::vector<uint32_t> order(experts);
  std::iota(order.begin(), order.end(), 0);
  Random random(seed);
  for (uint32_t i = experts; i > 1; --i) std::swap(order[i - 1], order[random.next() % i]);
  std::vector<double> logs(experts);
  for (uint32_t i = 0; i < experts; ++i) logs[order[i]] = -exponent * std::log(i + 1.0);
  return logs;
}

// The `used` largest of log popularity plus Gumbel noise: draws without replacement. Those of `before` are
// taken again with probability `repeat` each.
std::vector<uint32_t> draw(const std::vector<double>& logs, const Family& family,
                           const std::vector<uint32_t>& before, Random* random) {
  std::vector<std::pair<double, uint32_t>> keys;
  for (uint32_t e = 0; e < family.experts; ++e)
    keys.emplace_back(logs[e] - std::log(-std::log(random->uniform())), e);
  for (const uint32_t e : before) {
    constexpr double kAboveAll = 1e6;
    if (random->uniform() < family.repeat) keys[e].first += kAboveAll;
  }
  std::partial_sort(keys.begin(), keys.begin() + family.used, keys.end(), std::greater<>());
  std::vector<uint32_t> chosen;
  for (uint32_t i = 0; i < family.used; ++i) chosen.push_back(keys[i].second);
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace

// All numbers are our choice. Exponents go from 0 (what load-balancing losses aim at) to 1.2 (more than the
// skew of words). Repeats: Mixtral's middle and upper layers send successive tokens to the same expert
// clearly more often than chance (2401.04088, section 5). Topics: fixed sets serve segments of a text well,
// but not all of it (2505.16056, local routing consistency).
std::vector<Family> families() {
  return {
      {.name = "uniform"},
      {.name = "zipf 0.4", .exponent = 0.4},
      {.name = "zipf 0.8", .exponent = 0.8},
      {.name = "zipf 1.2", .exponent = 1.2},
      {.name = "zipf 0.8, repeats 0.3", .exponent = 0.8, .repeat = 0.3},
      {.name = "topics of 32 tokens", .exponent = 1, .tokens_per_topic = 32},
      {.name = "topics of 128 tokens", .exponent = 1, .tokens_per_topic = 128},
      {.name = "topics of 512 tokens", .exponent = 1, .tokens_per_topic = 512},
      {.name = "4 topics in turn, 128 tokens", .exponent = 1, .tokens_per_topic = 128, .topics = 4},
      {.name = "shared 0.6 and topics of 128",
       .exponent = 0.6,
       .tokens_per_topic = 128,
       .shared_exponent = 0.6},
      {.name = "Mixtral shape, repeats 0.15",
       .layers = 32,
       .experts = 8,
       .used = 2,
       .exponent = 0.2,
       .repeat = 0.15},
  };
}

Trace generate(const Family& family, uint32_t tokens, uint64_t seed) {
  Trace trace{family.name, family.layers, family.experts, {}};
  Random random(seed);
  std::vector<std::vector<double>> logs(family.layers);
  std::vector<std::vector<uint32_t>> before(family.layers);
  for (uint32_t token = 0; token < tokens; ++token) {
    const uint32_t period = family.tokens_per_topic;
    if (token == 0 || (period > 0 && token % period == 0)) {
      uint64_t topic = period == 0 ? 0 : token / period;
      if (family.topics > 0) topic %= family.topics;
      for (uint32_t layer = 0; layer < family.layers; ++layer) {
        logs[layer] = popularity(family.experts, family.exponent, seed + 1 + (topic << 20) + layer);
        const auto shared = popularity(family.experts, family.shared_exponent, seed + (1ULL << 50) + layer);
        for (uint32_t e = 0; e < family.experts; ++e) logs[layer][e] += shared[e];
      }
    }
    for (uint32_t layer = 0; layer < family.layers; ++layer) {
      before[layer] = draw(logs[layer], family, before[layer], &random);
      trace.steps.push_back({layer, layer == 0, before[layer]});
    }
  }
  return trace;
}

namespace {

// The numbers of a line; false if it has anything else.
bool read_numbers(std::string_view line, std::vector<uint64_t>* numbers) {
  numbers->clear();
  const char* at = line.data();
  const char* const end = at + line.size();
  while (at < end) {
    uint64_t value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc() || (next < end && *next != ' ')) return false;
    numbers->push_back(value);
    at = next + (next < end ? 1 : 0);
  }
  return true;
}

Status bad_line(const std::string& name, size_t line, const char* why) {
  return Status(Code::kInvalidArgument, base::format("%s, line %zu: %s", name.c_str(), line, why));
}

}  // namespace

Result<Trace> parse_trace(const std::string& name, std::string_view text) {
  constexpr uint64_t kMost = 1 << 16;  // Layers, and experts of a layer.
  Trace trace{name, 0, 0, {}};
  std::vector<uint64_t> numbers;
  uint64_t last_pass = 0;
  size_t line_number = 0;
  while (!text.empty()) {
    const size_t length = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, length);
    text.remove_prefix(std::min(length + 1, text.size()));
    ++line_number;
    if (line.empty() || line[0] == '#') continue;
    if (!read_numbers(line, &numbers) || numbers.size() < 4)
      return bad_line(name, line_number, "not 'pass position layer expert expert ...'");
    const uint64_t pass = numbers[0];
    const uint64_t layer = numbers[2];
    if (layer >= kMost || *std::max_element(numbers.begin() + 3, numbers.end()) >= kMost)
      return bad_line(name, line_number, "a number is too large");
    const bool begins_pass = trace.steps.empty() || pass != last_pass;
    if (begins_pass || trace.steps.back().layer != layer)
      trace.steps.push_back({static_cast<uint32_t>(layer), begins_pass, {}});
    last_pass = pass;
    for (size_t i = 3; i < numbers.size(); ++i)
      trace.steps.back().experts.push_back(static_cast<uint32_t>(numbers[i]));
    trace.layers = std::max(trace.layers, static_cast<uint32_t>(layer) + 1);
  }
  if (trace.steps.empty()) return Status(Code::kInvalidArgument, name + " holds no routing");
  for (Step& step : trace.steps) {
    std::sort(step.experts.begin(), step.experts.end());
    step.experts.erase(std::unique(step.experts.begin(), step.experts.end()), step.experts.end());
    trace.experts = std::max(trace.experts, step.experts.back() + 1);
  }
  return trace;
}

}  // namespace ganglion::simulator
