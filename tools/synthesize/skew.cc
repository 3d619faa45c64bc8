#include "skew.h"

#include <cmath>
#include <numbers>

namespace ganglion::synthesize {

namespace {

constexpr size_t kGrid = 4000;

std::vector<double> quantiles(size_t count) {
  std::vector<double> t(count);
  for (size_t i = 0; i < count; ++i)
    t[i] = normal_quantile((static_cast<double>(i) + 0.5) / static_cast<double>(count));
  return t;
}

// The family's member with this tau; mu follows from the mean: E Phi(mu + tau t) = Phi(mu / sqrt(1 + tau^2)).
Skew member(double mean, double tau, const std::vector<double>& t) {
  Skew skew{.mu = normal_quantile(mean) * std::sqrt(1 + tau * tau), .tau = tau};
  double sum = 0;
  double top_30 = 0;
  double top_50 = 0;
  for (size_t i = 0; i < t.size(); ++i) {
    const double frequency = normal_cdf(skew.mu + tau * t[i]);
    sum += frequency;
    if (10 * i >= 7 * t.size()) top_30 += frequency;
    if (2 * i >= t.size()) top_50 += frequency;
  }
  skew.mean = sum / static_cast<double>(t.size());
  skew.top_30_share = top_30 / sum;
  skew.top_50_share = top_50 / sum;
  return skew;
}

}  // namespace

double normal_density(double x) {
  return std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
}

double normal_cdf(double x) {
  return std::erfc(-x / std::numbers::sqrt2) / 2;
}

double normal_quantile(double p) {
  double low = -9;
  double high = 9;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (normal_cdf(middle) < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

double rectified_mean(double mean) {
  return normal_density(mean) + mean * normal_cdf(mean);
}

double rectified_square(double mean) {
  return (1 + mean * mean) * normal_cdf(mean) + mean * normal_density(mean);
}

Skew solve_skew(double mean, double top_30_share) {
  const std::vector<double> t = quantiles(kGrid);
  double low = 0;
  double high = 20;
  for (int i = 0; i < 50; ++i) {  // The share grows with tau.
    const double middle = (low + high) / 2;
    (member(mean, middle, t).top_30_share < top_30_share ? low : high) = middle;
  }
  return member(mean, (low + high) / 2, t);
}

std::vector<float> skew_offsets(const Skew& skew, size_t count) {
  std::vector<float> offsets;
  for (const double t : quantiles(count)) offsets.push_back(static_cast<float>(skew.mu + skew.tau * t));
  return offsets;
}

}  // namespace ganglion::synthesize
