// The sampler as a whole: order of the chain, reproducibility, errors, what it allocates.
#include "ganglion/sampling.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <new>
#include <random>

namespace {
std::atomic<size_t> g_allocations{0};  // A counting allocator has no other way in.
}

[[gnu::noinline]] void* operator new(size_t bytes) {
  ++g_allocations;
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) std::abort();
  return memory;
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return operator new(bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace ganglion {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::unique_ptr<Sampler> make(const SamplingOptions& options, int32_t vocab, TokenFilter* filter = nullptr) {
  auto sampler = Sampler::create(options, vocab, nullptr, filter);
  EXPECT_TRUE(sampler.ok()) << sampler.status().message();
  return sampler.take();
}

/// Everything off but the draw.
SamplingOptions plain() {
  SamplingOptions options;
  options.temperature = 1;
  options.top_k = 0;
  options.top_p = 1;
  options.min_p = 0;
  options.seed = 1;
  return options;
}

SamplingOptions greedy() {
  SamplingOptions options;
  options.temperature = 0;
  return options;
}

std::vector<float> random_logits(std::mt19937& random, size_t count) {
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

std::vector<int32_t> generate(Sampler& sampler, int count, unsigned logit_seed = 7) {
  std::mt19937 random(logit_seed);
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) {
    auto token = sampler.sample(random_logits(random, 500));
    EXPECT_TRUE(token.ok()) << token.status().message();
    tokens.push_back(token.value());
    EXPECT_TRUE(sampler.accept(token.value()).ok());
  }
  return tokens;
}

TEST(Sampler, GreedyTakesTheBestWithTheLowestId) {
  const auto sampler = make(greedy(), 5);
  EXPECT_EQ(sampler->sample(std::vector<float>{1, 4, 4, -1, 4}).value(), 1);
  EXPECT_EQ(sampler->sample(std::vector<float>{std::nanf(""), kInfinity, 3, -kInfinity, 2}).value(), 2);
}

TEST(Sampler, GreedyHasNothingRandom) {
  SamplingOptions options = greedy();
  options.xtc_probability = 1;
  options.mirostat = 2;
  options.dynatemp_range = 1;
  options.typical_p = 0.1F;
  std::mt19937 random(3);
  const auto sampler = make(options, 500);
  for (int i = 0; i < 20; ++i) {
    const auto logits = random_logits(random, 500);
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    EXPECT_EQ(sampler->sample(logits).value(), best);
  }
}

TEST(Sampler, OneSeedGivesOneText) {
  SamplingOptions options;
  options.seed = 42;
  options.xtc_probability = 0.3F;
  options.repeat_penalty = 1.1F;
  const auto first = make(options, 500);
  const auto tokens = generate(*first, 100);
  EXPECT_EQ(first->seed(), 42U);
  EXPECT_EQ(tokens, generate(*make(options, 500), 100));
  first->reset();
  EXPECT_EQ(tokens, generate(*first, 100)) << "after reset";
  options.seed = 43;
  EXPECT_NE(tokens, generate(*make(options, 500), 100));
}

TEST(Sampler, TheTextOfASeedStaysTheSameAcrossReleases) {
  SamplingOptions options = plain();
  options.seed = 1234;
  const auto sampler = make(options, 8);
  std::vector<int32_t> tokens;
  for (int i = 0; i < 12; ++i) tokens.push_back(sampler->sample(std::vector<float>(8, 0)).value());
  EXPECT_EQ(tokens, (std::vector<int32_t>{6, 3, 7, 0, 5, 2, 2, 7, 7, 0, 7, 2}));
}

TEST(Sampler, ARandomSeedIsReportedAndReproduces) {
  SamplingOptions options = plain();
  options.seed = -1;
  const auto sampler = make(options, 500);
  EXPECT_LT(sampler->seed(), uint64_t{1} << 32U);
  const auto tokens = generate(*sampler, 50);
  options.seed = static_cast<int64_t>(sampler->seed());
  EXPECT_EQ(tokens, generate(*make(options, 500), 50));
}

TEST(Sampler, DrawsByProbability) {
  const auto sampler = make(plain(), 3);
  std::vector<int> counts(3);
  const std::vector<float> logits = {std::log(0.6F), std::log(0.3F), std::log(0.1F)};
  for (int i = 0; i < 20000; ++i) ++counts[static_cast<size_t>(sampler->sample(logits).value())];
  EXPECT_NEAR(counts[0], 12000, 300);
  EXPECT_NEAR(counts[1], 6000, 300);
  EXPECT_NEAR(counts[2], 2000, 200);
}

TEST(Sampler, StepsRunInTheOrderAskedFor) {
  // Probabilities 0.5, 0.3, 0.2. top_p 0.7 keeps two; after temperature 0.1 the first alone has more than
  // 0.7.
  SamplingOptions options = plain();
  options.top_p = 0.7F;
  options.temperature = 0.1F;
  options.n_probs = 3;
  options.post_sampling_probs = true;
  const std::vector<float> logits = {std::log(0.5F), std::log(0.3F), std::log(0.2F)};
  const auto candidates = [&](const char* samplers) {
    options.samplers = samplers;
    const auto sampler = make(options, 3);
    EXPECT_TRUE(sampler->sample(logits).ok());
    return sampler->probs().top.size();
  };
  EXPECT_EQ(candidates("top_p;temperature"), 2U);
  EXPECT_EQ(candidates("temperature;top_p"), 1U);
  EXPECT_EQ(candidates("temperature"), 3U) << "a step left out is off";
  EXPECT_EQ(candidates(""), 3U);
}

TEST(Sampler, DescribesWhatIsOn) {
  SamplingOptions options;
  options.seed = 5;
  EXPECT_EQ(make(options, 3)->describe(),
            "top_k 40 -> top_p 0.95 -> min_p 0.05 -> temperature 0.8 -> draw -> seed 5");
  EXPECT_EQ(make(greedy(), 3)->describe(), "greedy");
}

TEST(Sampler, BiasAddsAndBans) {
  SamplingOptions options = greedy();
  options.logit_bias = {{2, -kInfinity}, {0, 1.5F}, {0, 2}};
  const auto sampler = make(options, 4);
  EXPECT_EQ(sampler->sample(std::vector<float>{0, 3, 9, 1}).value(), 0);
  options.logit_bias = {{0, -kInfinity}, {1, -kInfinity}};
  const auto none = make(options, 2);
  const auto result = none->sample(std::vector<float>{1, 2});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), Code::kInvalidArgument);
}

TEST(Sampler, PenaltiesSeeThePromptButTheFilterDoesNot) {
  struct Filter : TokenFilter {
    std::vector<int32_t> accepted;
    Status mask(std::span<float> logits) override {
      logits[1] = -kInfinity;
      return ok_status();
    }
    Status accept(int32_t token) override {
      accepted.push_back(token);
      return token == 3 ? Status(Code::kInvalidArgument, "refused") : ok_status();
    }
    void reset() override { accepted.clear(); }
  } filter;
  SamplingOptions options = greedy();
  options.presence_penalty = 2;
  const auto sampler = make(options, 4, &filter);
  const std::vector<float> logits = {5, 9, 4, 0};
  EXPECT_EQ(sampler->sample(logits).value(), 0) << "1 is masked";
  sampler->add_prompt(std::vector<int32_t>{0});
  EXPECT_EQ(sampler->sample(logits).value(), 2) << "0 is penalised";
  EXPECT_TRUE(sampler->accept(2).ok());
  EXPECT_EQ(filter.accepted, (std::vector<int32_t>{2}));
  EXPECT_FALSE(sampler->accept(3).ok());
  sampler->reset();
  EXPECT_TRUE(filter.accepted.empty());
  EXPECT_EQ(sampler->sample(logits).value(), 0);
}

TEST(Sampler, ReportsLogProbabilitiesBeforeAndAfter) {
  SamplingOptions options = greedy();
  options.n_probs = 2;
  options.logit_bias = {{1, -kInfinity}};
  const std::vector<float> logits = {std::log(0.3F), std::log(0.6F), std::log(0.1F)};
  const auto before = make(options, 3);
  EXPECT_EQ(before->sample(logits).value(), 0);
  EXPECT_EQ(before->probs().chosen.token, 0);
  EXPECT_NEAR(before->probs().chosen.log_prob, std::log(0.3), 1e-6);
  ASSERT_EQ(before->probs().top.size(), 2U);
  EXPECT_EQ(before->probs().top[0].token, 1) << "the model's own view has no bias";
  EXPECT_NEAR(before->probs().top[0].log_prob, std::log(0.6), 1e-6);
  options.post_sampling_probs = true;
  const auto after = make(options, 3);
  EXPECT_EQ(after->sample(logits).value(), 0);
  EXPECT_NEAR(after->probs().chosen.log_prob, 0, 1e-6);
  EXPECT_EQ(after->probs().top.size(), 1U);
}

TEST(Sampler, SaysWhenNothingIsFinite) {
  const auto sampler = make(SamplingOptions(), 3);
  auto result = sampler->sample(std::vector<float>{std::nanf(""), kInfinity, -kInfinity});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), Code::kInternal);
  EXPECT_NE(result.status().message().find("none of 3 logits is finite"), std::string::npos);
  result = sampler->sample(std::vector<float>{1, 2});
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("2 logits for a vocabulary of 3"), std::string::npos);
}

TEST(Sampler, SurvivesAnyLogitsAndOptions) {
  std::mt19937 random(11);
  const float odd[] = {0, -0.0F, 3e38F, -3e38F, 1e-40F, kInfinity, -kInfinity, std::nanf(""), 1, -1};
  const auto pick = [&](std::initializer_list<float> values) {
    return values.begin()[random() % values.size()];
  };
  for (int round = 0; round < 3000; ++round) {
    SamplingOptions options;
    options.seed = round;
    options.temperature = pick({0, 1e-5F, 1, 1e30F});
    options.dynatemp_range = pick({0, 1, 1e30F});
    options.top_k = static_cast<int32_t>(pick({0, 1, 40}));
    options.top_p = pick({0, 0.5F, 1});
    options.min_p = pick({0, 0.5F, 1});
    options.typical_p = pick({0, 0.5F, 1});
    options.top_n_sigma = pick({-1, 0.1F, 3e38F});
    options.min_keep = static_cast<int32_t>(pick({0, 3, 1000}));
    options.repeat_penalty = pick({1, 2e-38F, 3e38F});
    options.presence_penalty = pick({0, 3e38F, -3e38F});
    options.dry_multiplier = pick({0, 3e38F});
    options.dry_base = pick({1, 3e38F});
    options.dry_sequence_breakers.clear();
    options.xtc_probability = pick({0, 1});
    options.mirostat = static_cast<int32_t>(pick({0, 1, 2}));
    options.n_probs = static_cast<int32_t>(pick({0, 5}));
    options.post_sampling_probs = pick({0, 1}) != 0;
    const auto sampler = make(options, 12);
    for (int i = 0; i < 4; ++i) {
      std::vector<float> logits(12);
      for (float& logit : logits) logit = odd[random() % std::size(odd)];
      const auto token = sampler->sample(logits);
      if (!token.ok()) continue;
      ASSERT_TRUE(std::isfinite(logits[static_cast<size_t>(token.value())]));
      ASSERT_TRUE(sampler->accept(token.value()).ok());
    }
  }
}

TEST(Sampler, AllocatesNothingPerToken) {
  SamplingOptions options;
  options.seed = 1;
  options.repeat_penalty = 1.1F;
  options.typical_p = 0.9F;
  options.dry_multiplier = 1;
  options.dry_penalty_last_n = 64;
  options.dry_sequence_breakers.clear();
  options.xtc_probability = 0.5F;
  options.n_probs = 5;
  options.logit_bias = {{3, -1}};
  const auto sampler = make(options, 500);
  (void)generate(*sampler, 200);
  std::mt19937 random(1);
  const auto logits = random_logits(random, 500);
  const size_t before = g_allocations;
  for (int i = 0; i < 200; ++i) {
    const auto token = sampler->sample(logits);
    (void)sampler->accept(token.value());
  }
  EXPECT_EQ(g_allocations, before);
  EXPECT_LT(sampler->memory_bytes(), size_t{500 * 64});
}

struct BadOption {
  const char* message;
  void (*set)(SamplingOptions&);
};

TEST(SamplingOptions, ErrorsNameFieldValueAndRange) {
  const BadOption bad[] = {
      {"temperature: nan: must be a finite number", [](auto& o) { o.temperature = std::nanf(""); }},
      {"top_k: -2: must be 0 or -1 (off) or more", [](auto& o) { o.top_k = -2; }},
      {"top_p: 1.5: must be from 0 to 1", [](auto& o) { o.top_p = 1.5F; }},
      {"min_p: -0.1: must be from 0 to 1", [](auto& o) { o.min_p = -0.1F; }},
      {"typical_p: 2: must be from 0 to 1", [](auto& o) { o.typical_p = 2; }},
      {"top_n_sigma: inf: must be a finite number", [](auto& o) { o.top_n_sigma = kInfinity; }},
      {"repeat_penalty: 0: must be above 0", [](auto& o) { o.repeat_penalty = 0; }},
      {"repeat_last_n: -3: must be -1 (all) or more", [](auto& o) { o.repeat_last_n = -3; }},
      {"presence_penalty: nan: must be a finite number", [](auto& o) { o.presence_penalty = std::nanf(""); }},
      {"frequency_penalty: inf: must be a finite number", [](auto& o) { o.frequency_penalty = kInfinity; }},
      {"dry_multiplier: -1: must be 0 or more", [](auto& o) { o.dry_multiplier = -1; }},
      {"dry_base: 0.5: must be 1 or more", [](auto& o) { o.dry_base = 0.5F; }},
      {"dry_allowed_length: -1: must be 0 or more", [](auto& o) { o.dry_allowed_length = -1; }},
      {"dry_penalty_last_n: -2: must be -1 (all) or more", [](auto& o) { o.dry_penalty_last_n = -2; }},
      {"dry_sequence_breakers: a string of 0 bytes: must have 1 to 256",
       [](auto& o) { o.dry_sequence_breakers = {""}; }},
      {"xtc_probability: 2: must be from 0 to 1", [](auto& o) { o.xtc_probability = 2; }},
      {"xtc_threshold: -1: must be from 0 to 1", [](auto& o) { o.xtc_threshold = -1; }},
      {"mirostat: 3: must be 0, 1 or 2", [](auto& o) { o.mirostat = 3; }},
      {"mirostat_tau: -1: must be 0 or more", [](auto& o) { o.mirostat_tau = -1; }},
      {"mirostat_eta: 2: must be from 0 to 1", [](auto& o) { o.mirostat_eta = 2; }},
      {"dynatemp_range: -1: must be 0 or more", [](auto& o) { o.dynatemp_range = -1; }},
      {"dynatemp_exponent: -1: must be 0 or more", [](auto& o) { o.dynatemp_exponent = -1; }},
      {"seed: -2: must be -1 (random) or more", [](auto& o) { o.seed = -2; }},
      {"n_probs: -1: must be 0 or more", [](auto& o) { o.n_probs = -1; }},
      {"min_keep: -1: must be 0 or more", [](auto& o) { o.min_keep = -1; }},
      {"logit_bias: token -1: must be 0 or more",
       [](auto& o) {
         o.logit_bias = {{-1, 0}};
       }},
      {"logit_bias: token 1: inf: must be finite or -infinity",
       [](auto& o) {
         o.logit_bias = {{1, kInfinity}};
       }},
      {"samplers: 'top_k': must not be there twice", [](auto& o) { o.samplers = "top_k;top_k"; }},
  };
  for (const BadOption& entry : bad) {
    SamplingOptions options;
    entry.set(options);
    const Status status = options.validate();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << entry.message;
    EXPECT_EQ(status.message(), entry.message);
    EXPECT_FALSE(Sampler::create(options, 10, nullptr).ok());
  }
  EXPECT_TRUE(SamplingOptions().validate().ok());
}

TEST(SamplingOptions, UnknownStepsAreRefusedWithTheKnownOnes) {
  SamplingOptions options;
  options.samplers = "top_k;topp";
  EXPECT_NE(options.validate().message().find("samplers: 'topp': must be of penalties, dry, "),
            std::string::npos);
}

TEST(SamplingOptions, WhatDependsOnTheModelIsCheckedAtCreation) {
  SamplingOptions options;
  options.logit_bias = {{10, 1}};
  EXPECT_EQ(Sampler::create(options, 10, nullptr).status().message(),
            "logit_bias: token 10: must be below 10");
  options.logit_bias.clear();
  options.dry_multiplier = 1;
  EXPECT_FALSE(Sampler::create(options, 10, nullptr).ok()) << "breakers need the bytes of tokens";
  options.dry_sequence_breakers.clear();
  EXPECT_TRUE(Sampler::create(options, 10, nullptr).ok());
}

}  // namespace
}  // namespace ganglion
