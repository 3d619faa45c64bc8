// Expert routing over time: recorded by `ganglion run --record-routing`, or generated. What is generated is
// synthetic and says so in its name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace ganglion::simulator {

/// One layer of one pass: the experts that any of its tokens goes to, ascending and different.
struct Step {
  uint32_t layer = 0;
  bool begins_pass = false;
  std::vector<uint32_t> experts;
};

struct Trace {
  std::string name;
  uint32_t layers = 0;
  uint32_t experts = 0;  ///< Per layer.
  std::vector<Step> steps;

  uint32_t groups() const { return layers * experts; }
  uint32_t group(const Step& step, size_t i) const { return step.layer * experts + step.experts[i]; }
};

/// How routing is made up. Each layer has popularities rank^-exponent over its experts in an order of its
/// own; a token draws `used` different ones.
struct Family {
  std::string name;
  uint32_t layers = 8;
  uint32_t experts = 128;
  uint32_t used = 8;
  double exponent = 0;            ///< 0: uniform.
  uint32_t tokens_per_topic = 0;  ///< The order of experts changes every so many tokens; 0: never.
  uint32_t topics = 0;            ///< Topics come back in turn; 0: each is new.
  double shared_exponent = 0;     ///< Of a popularity that all topics share and that multiplies theirs.
  double repeat = 0;              ///< Probability that a choice of the token before is taken again.
};

/// The families of the report.
std::vector<Family> families();
/// The same family and seed give the same trace everywhere.
Trace generate(const Family& family, uint32_t tokens, uint64_t seed);

/// Text of a recorded trace; docs/routing_trace.md has the format. Errors: kInvalidArgument, with the line.
base::Result<Trace> parse_trace(const std::string& name, std::string_view text);

}  // namespace ganglion::simulator
