#include "engine/open_gates.h"

#include <cmath>

namespace ganglion::engine {

namespace {

constexpr double kLeastAt = -1.2784645427610738;  // SiLU falls up to here, and rises behind.

double silu(double x) {
  return x / (1 + std::exp(-x));
}

// Where SiLU is `value` between `from` and `to`, where it is less and more.
float solve(double value, double from, double to) {
  for (int i = 0; i < 80; ++i) {
    const double middle = (from + to) / 2;
    (silu(middle) < value ? from : to) = middle;
  }
  return static_cast<float>(to);
}

}  // namespace

OpenGates open_silu_gates(float threshold) {
  const auto t = static_cast<double>(threshold);
  OpenGates open;
  open.above = solve(t, 0, t + 2);
  if (-t > silu(kLeastAt)) {
    open.low = solve(-t, kLeastAt, -100);
    open.high = solve(-t, kLeastAt, 0);
  }
  return open;
}

}  // namespace ganglion::engine
