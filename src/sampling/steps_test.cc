// Each step against a naive version in float64 over full sorts, and against hand calculations.
#include "sampling/steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "sampling/history.h"
#include "sampling/mirostat.h"

namespace ganglion::sampling {
namespace {

using Pairs = std::vector<std::pair<int32_t, double>>;  // Token and probability, best first.

Candidates make(const std::vector<float>& logits) {
  Candidates candidates(logits.size());
  candidates.assign(logits);
  return candidates;
}

std::vector<float> random_logits(std::mt19937& random, size_t count, double spread) {
  std::normal_distribution<double> normal(0, spread);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = static_cast<float>(normal(random));
  return logits;
}

Pairs naive_softmax(const std::vector<float>& logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - max);
  Pairs pairs;
  for (size_t i = 0; i < logits.size(); ++i) {
    pairs.emplace_back(static_cast<int32_t>(i), std::exp(logits[i] - max) / sum);
  }
  std::stable_sort(pairs.begin(), pairs.end(), [](auto& a, auto& b) { return a.second > b.second; });
  return pairs;
}

std::set<int32_t> tokens(const Candidates& candidates) {
  std::set<int32_t> result;
  for (const Candidate& item : candidates.items()) result.insert(item.token);
  return result;
}

std::set<int32_t> first(const Pairs& pairs, size_t count) {
  std::set<int32_t> result;
  for (size_t i = 0; i < std::min(count, pairs.size()); ++i) result.insert(pairs[i].first);
  return result;
}

TEST(Random, IsXoshiroSeededBySplitmix) {
  // First outputs of splitmix64 for seed 0 are published; the state is four of them.
  constexpr uint64_t kState[] = {0xe220a8397b1dcdafU, 0x6e789e6aa1b965f4U, 0x06c45d188009454fU,
                                 0xf88bb8a8724c81ecU};
  Random random(0);
  EXPECT_EQ(random.next(), std::rotl(kState[0] + kState[3], 23) + kState[0]);
  double sum = 0;
  for (int i = 0; i < 10000; ++i) {
    const double value = random.uniform();
    ASSERT_GE(value, 0);
    ASSERT_LT(value, 1);
    sum += value;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.02);
}

TEST(Steps, DropWhatIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  const Candidates candidates = make({std::nanf(""), 1, infinity, -infinity, 2});
  EXPECT_EQ(tokens(candidates), (std::set<int32_t>{1, 4}));
}

TEST(Steps, TopKKeepsTheBestLowestIdsFirst) {
  Candidates candidates = make({1, 3, 3, 0, 3, 2});
  top_k(candidates, 2);
  ASSERT_EQ(candidates.size(), 2U);
  EXPECT_EQ(candidates[0].token, 1);
  EXPECT_EQ(candidates[1].token, 2);
  top_k(candidates, 0);
  EXPECT_EQ(candidates.size(), 2U) << "0 is off";
}

TEST(Steps, CutOffsAgreeWithTheNaiveOnes) {
  std::mt19937 random(1);
  for (int round = 0; round < 60; ++round) {
    const auto logits = random_logits(random, 1 + random() % 3000, 0.5 + round % 5);
    const Pairs pairs = naive_softmax(logits);
    const size_t k = 1 + random() % 100;
    Candidates by_k = make(logits);
    top_k(by_k, k);
    EXPECT_EQ(tokens(by_k), first(pairs, k));

    const double p = 0.05 + 0.9 * static_cast<double>(random() % 1000) / 1000;
    double mass = 0;
    size_t nucleus = 0;
    while (nucleus < pairs.size() && mass < p) mass += pairs[nucleus++].second;
    Candidates by_p = make(logits);
    top_p(by_p, p, 0);
    EXPECT_EQ(tokens(by_p), first(pairs, nucleus));

    size_t likely = 0;
    while (likely < pairs.size() && pairs[likely].second >= p * pairs[0].second) ++likely;
    Candidates by_min = make(logits);
    min_p(by_min, p, 0);
    EXPECT_EQ(tokens(by_min), first(pairs, likely));
    by_min = make(logits);
    min_p(by_min, p, likely + 3);
    EXPECT_EQ(tokens(by_min), first(pairs, likely + 3)) << "min_keep";
  }
}

TEST(Steps, TypicalPAndTopNSigmaAgreeWithTheNaiveOnes) {
  std::mt19937 random(2);
  TypicalP typical;
  for (int round = 0; round < 40; ++round) {
    const auto logits = random_logits(random, 2 + random() % 500, 2);
    Pairs pairs = naive_softmax(logits);
    double entropy = 0;
    for (const auto& pair : pairs) entropy -= pair.second * std::log(pair.second);
    std::stable_sort(pairs.begin(), pairs.end(), [&](auto& a, auto& b) {
      return std::fabs(-std::log(a.second) - entropy) < std::fabs(-std::log(b.second) - entropy);
    });
    const double p = 0.3 + 0.01 * round;
    double mass = 0;
    size_t count = 0;
    while (count < pairs.size() && mass <= p) mass += pairs[count++].second;
    Candidates candidates = make(logits);
    typical.apply(candidates, p, 0);
    EXPECT_EQ(tokens(candidates), first(pairs, count));

    double mean = 0;
    for (const float logit : logits) mean += logit;
    mean /= static_cast<double>(logits.size());
    double variance = 0;
    for (const float logit : logits) variance += (logit - mean) * (logit - mean);
    variance /= static_cast<double>(logits.size());
    const double lowest = *std::max_element(logits.begin(), logits.end()) - 1.5 * std::sqrt(variance);
    std::set<int32_t> near;
    for (size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] >= lowest) near.insert(static_cast<int32_t>(i));
    }
    candidates = make(logits);
    top_n_sigma(candidates, 1.5);
    EXPECT_EQ(tokens(candidates), near);
  }
}

TEST(Steps, XtcRemovesAllButTheLastOfTheLikely) {
  // Probabilities 0.4, 0.3, 0.2, 0.1.
  const std::vector<float> logits = {std::log(0.2F), std::log(0.4F), std::log(0.1F), std::log(0.3F)};
  Random random(1);
  Candidates candidates = make(logits);
  xtc(candidates, {.probability = 1, .threshold = 0.15, .min_keep = 0}, random);
  EXPECT_EQ(tokens(candidates), (std::set<int32_t>{0, 2}));
  candidates = make(logits);
  xtc(candidates, {.probability = 1, .threshold = 0.35, .min_keep = 0}, random);
  EXPECT_EQ(candidates.size(), 4U) << "one above the threshold is none too many";
  candidates = make(logits);
  xtc(candidates, {.probability = 1, .threshold = 0.15, .min_keep = 3}, random);
  EXPECT_EQ(candidates.size(), 4U) << "min_keep";
  int hits = 0;
  for (int i = 0; i < 2000; ++i) {
    candidates = make(logits);
    xtc(candidates, {.probability = 0.25, .threshold = 0.15, .min_keep = 0}, random);
    hits += candidates.size() == 2;
  }
  EXPECT_NEAR(hits, 500, 80);
}

TEST(Steps, TemperatureDividesAndFollowsTheEntropy) {
  Candidates candidates = make({1, 2, 4});
  temperature(candidates, {.temperature = 0.5, .range = 0, .exponent = 1});
  EXPECT_FLOAT_EQ(candidates[2].logit, 8);
  // Equal logits: the entropy is at its maximum, so the divisor is temperature + range.
  candidates = make({3, 3, 3});
  temperature(candidates, {.temperature = 1, .range = 0.5, .exponent = 2});
  EXPECT_NEAR(candidates[0].logit, 3 / 1.5, 1e-6);
  // Two candidates of 0.75 and 0.25.
  const double relative = -(0.75 * std::log(0.75) + 0.25 * std::log(0.25)) / std::log(2.0);
  candidates = make({std::log(0.75F), std::log(0.25F)});
  temperature(candidates, {.temperature = 1, .range = 0.4, .exponent = 1.5});
  EXPECT_NEAR(candidates[0].logit, std::log(0.75) / (0.6 + 0.8 * std::pow(relative, 1.5)), 1e-6);
  // A range down to 0 and no entropy at all: only the best is left.
  candidates = make({500, 0, 0});
  temperature(candidates, {.temperature = 1, .range = 1, .exponent = 1});
  EXPECT_EQ(candidates.size(), 1U);
}

TEST(Steps, DrawFollowsTheProbabilities) {
  const Candidates candidates = make({std::log(0.5F), std::log(0.3F), std::log(0.2F)});
  const Softmax softmax = candidates.softmax();
  EXPECT_EQ(draw(candidates, softmax, 0), 0U);
  EXPECT_EQ(draw(candidates, softmax, 0.499), 0U);
  EXPECT_EQ(draw(candidates, softmax, 0.501), 1U);
  EXPECT_EQ(draw(candidates, softmax, 0.799), 1U);
  EXPECT_EQ(draw(candidates, softmax, 0.9999999), 2U);
}

TEST(Penalties, CountWithinTheWindowInAnyOrderOfTheCandidates) {
  const std::vector<float> logits = {2, -2, 1, 1, 0.5F};
  for (const bool sorted : {false, true}) {
    History history(4, {}, nullptr);
    for (const int32_t token : {3, 3, 0, 1, 1, 2}) history.add(token);  // The window holds 0 1 1 2.
    Penalties penalties({.window = 4, .repeat = 2, .presence = 0.25, .frequency = 0.5});
    Candidates candidates = make(logits);
    if (sorted) candidates.sort_first(5);
    penalties.apply(candidates, history);
    std::map<int32_t, float> result;
    for (const Candidate& item : candidates.items()) result[item.token] = item.logit;
    EXPECT_FLOAT_EQ(result[0], 2 / 2.0F - 0.25F - 0.5F);
    EXPECT_FLOAT_EQ(result[1], -2 * 2.0F - 0.25F - 1.0F);
    EXPECT_FLOAT_EQ(result[2], 0.5F - 0.25F - 0.5F);
    EXPECT_FLOAT_EQ(result[3], 1) << "outside the window";
    EXPECT_FLOAT_EQ(result[4], 0.5F);
  }
}

/// Tokens are letters: 0 is "a".
class Letters : public TokenBytes {
 public:
  std::string_view bytes(int32_t token) const override {
    constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz.";
    return kLetters.substr(static_cast<size_t>(token), 1);
  }
};

std::map<int32_t, float> dry_costs(std::string_view text, std::vector<std::string> breakers, int64_t window,
                                   size_t allowed) {
  const Letters letters;
  History history(window, std::move(breakers), &letters);
  for (const char c : text) history.add(c == '.' ? 26 : c - 'a');
  Dry dry({.window = window, .multiplier = 1, .base = 2, .allowed_length = allowed});
  Candidates candidates = make(std::vector<float>(27, 0));
  dry.apply(candidates, history);
  std::map<int32_t, float> costs;
  for (const Candidate& item : candidates.items()) {
    if (item.logit != 0) costs[item.token] = -item.logit;
  }
  return costs;
}

TEST(Dry, CostsByTheLengthOfTheRepetition) {
  using Costs = std::map<int32_t, float>;
  EXPECT_EQ(dry_costs("abcdxabc", {}, -1, 2), (Costs{{3, 2.0F}})) << "abc again, d would make it abcd";
  EXPECT_EQ(dry_costs("abcdxabc", {}, -1, 3), (Costs{{3, 1.0F}}));
  EXPECT_EQ(dry_costs("abcdxabc", {}, -1, 4), Costs{});
  EXPECT_EQ(dry_costs("abcdxabc", {}, 5, 2), Costs{}) << "the first abc is outside of the window";
  EXPECT_EQ(dry_costs("abcdxabc", {"b"}, -1, 2), Costs{}) << "only c stands after the breaker";
  EXPECT_EQ(dry_costs("abcdxabc", {"b"}, -1, 1), (Costs{{3, 1.0F}}));
  EXPECT_EQ(dry_costs("abcdxabc", {"xa"}, -1, 2), (Costs{{3, 1.0F}})) << "a breaker of two tokens ends in a";
  EXPECT_EQ(dry_costs("abyabzab", {}, -1, 2), (Costs{{24, 1.0F}, {25, 1.0F}}));
  EXPECT_EQ(dry_costs("aaaa", {}, -1, 2), (Costs{{0, 2.0F}})) << "overlapping";
}

TEST(Dry, AgreesWithTheNaiveSearch) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    std::string text;
    for (size_t i = 0; i < 1 + random() % 40; ++i)
      text.push_back(random() % 7 == 0 ? '.' : "abc"[random() % 3]);
    std::map<int32_t, size_t> longest;
    const size_t n = text.size();
    for (size_t i = 0; i + 1 < n; ++i) {
      size_t length = 0;
      while (length <= i && text[i - length] == text[n - 1 - length] && text[n - 1 - length] != '.') ++length;
      const int32_t token = text[i + 1] == '.' ? 26 : text[i + 1] - 'a';
      if (length >= 2) longest[token] = std::max(longest[token], length);
    }
    std::map<int32_t, float> expected;
    for (const auto& [token, length] : longest) expected[token] = std::exp2(static_cast<float>(length - 2));
    EXPECT_EQ(dry_costs(text, {"."}, -1, 2), expected) << text;
  }
}

TEST(Mirostat, SecondVersionCutsAtMuAndLearns) {
  // 0.5, 0.25, 0.125, 0.125: 1, 2, 3 and 3 bits.
  Candidates candidates = make({std::log(0.5F), std::log(0.25F), std::log(0.125F), std::log(0.125F)});
  Mirostat mirostat(
      {.version = 2, .tau = 1.25, .eta = 0.5, .vocab_size = 4});  // mu = 2.5 bits: two are left.
  Random random(3);
  const size_t index = mirostat.choose(candidates, random);
  ASSERT_EQ(candidates.size(), 2U);
  const double surprise = -std::log2(candidates[index].token == 0 ? 2.0 / 3 : 1.0 / 3);
  EXPECT_NEAR(mirostat.mu(), 2.5 - 0.5 * (surprise - 1.25), 1e-6);
  mirostat.reset();
  EXPECT_EQ(mirostat.mu(), 2.5);
}

TEST(Mirostat, FirstVersionEstimatesKFromZipfsLaw) {
  constexpr size_t kVocab = 1000;
  constexpr double kExponent = 1.5;
  std::vector<float> logits(kVocab);
  for (size_t i = 0; i < kVocab; ++i)
    logits[i] = static_cast<float>(-kExponent * std::log(static_cast<double>(i + 1)));
  Candidates candidates = make(logits);
  Mirostat mirostat({.version = 1, .tau = 2, .eta = 0.1, .vocab_size = kVocab});
  Random random(3);
  (void)mirostat.choose(candidates, random);
  const double k = std::pow(0.5 * 16 / (1 - std::pow(1000.0, -0.5)), 1 / kExponent);
  EXPECT_EQ(candidates.size(), static_cast<size_t>(k));
}

TEST(Mirostat, BothVersionsBringTheSurpriseNearTheAim) {
  for (const int version : {1, 2}) {
    std::mt19937 source(9);
    Mirostat mirostat({.version = version, .tau = 3, .eta = 0.1, .vocab_size = 2000});
    Random random(4);
    double total = 0;
    constexpr int kRounds = 600;
    for (int i = 0; i < kRounds; ++i) {
      Candidates candidates = make(random_logits(source, 2000, 3));
      const size_t index = mirostat.choose(candidates, random);
      const Softmax softmax = candidates.softmax();
      if (i >= 100) total -= softmax.log_probability(candidates[index].logit) / std::log(2.0);
    }
    EXPECT_NEAR(total / (kRounds - 100), 3, 0.4) << "version " << version;
  }
}

TEST(Mirostat, FlatAndSingleCandidatesAreNoTrouble) {
  for (const int version : {1, 2}) {
    Mirostat mirostat({.version = version, .tau = 0, .eta = 1, .vocab_size = 3});
    Random random(1);
    for (const auto& logits :
         {std::vector<float>{1, 1, 1}, std::vector<float>{5}, std::vector<float>{0, -1e30F, 1e30F}}) {
      Candidates candidates = make(logits);
      EXPECT_LT(mirostat.choose(candidates, random), candidates.size());
    }
  }
}

}  // namespace
}  // namespace ganglion::sampling
