// How often neurons fire: a skewed family of frequencies, and the normal distribution behind it. Pure.
#pragma once

#include <cstddef>
#include <vector>

namespace ganglion::synthesize {

double normal_density(double x);
double normal_cdf(double x);
/// Inverse of normal_cdf for 0 < p < 1.
double normal_quantile(double p);

/// Moments of max(0, N(mean, 1)).
double rectified_mean(double mean);
double rectified_square(double mean);

/// Neuron frequencies Phi(mu + tau * t) with t normal over the neurons ("probit-normal"): mu + tau * t is
/// how many standard deviations a neuron's pre-activation lies above 0 on average.
struct Skew {
  double mu = 0;
  double tau = 0;
  double mean = 0;          ///< Mean frequency.
  double top_30_share = 0;  ///< Share of all activations that the 30 % most frequent neurons have.
  double top_50_share = 0;
};

/// The member of the family with this mean frequency whose top 30 % have `top_30_share` of the activations.
/// For means of 0.05 to 0.2 and 0.8, the top half then has 0.93 to 0.95. Requires: 0 < mean < 0.3.
Skew solve_skew(double mean, double top_30_share);

/// The offsets mu + tau * t of `count` neurons at evenly spaced quantiles, ascending.
std::vector<float> skew_offsets(const Skew& skew, size_t count);

}  // namespace ganglion::synthesize
