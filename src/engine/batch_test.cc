// Several sessions in one pass: each gets what it would get alone; forks; the cache's room for them.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "ganglion/engine.h"

namespace ganglion {
namespace {

std::unique_ptr<Engine> open(const std::string& model, size_t sequences, const std::string& memory = "1G") {
  EngineOptions options;
  options.model_path = std::string(GANGLION_FIXTURES) + "/models/" + model + ".gguf";
  options.memory = memory;
  options.threads = 2;
  options.context = 128;
  options.chunk = 16;
  options.sequences = sequences;
  auto engine = Engine::open(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  const Status loaded = engine.value()->load(nullptr, nullptr);
  EXPECT_TRUE(loaded.ok()) << loaded.message();
  return engine.take();
}

std::vector<int32_t> prompt(size_t sequence) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < 3 + 20 * sequence; ++i)
    tokens.push_back(static_cast<int32_t>((7 + 13 * i + 31 * sequence) % 200 + 3));
  return tokens;
}

int32_t token(size_t sequence, size_t step) {
  return static_cast<int32_t>((5 + 17 * step + 41 * sequence) % 200 + 3);
}

bool same(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && !a.empty() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

class Batch : public testing::TestWithParam<const char*> {};

TEST_P(Batch, EachSessionGetsTheBitsThatItGetsAlone) {
  constexpr size_t kSequences = 3;
  constexpr size_t kSteps = 5;
  std::vector<std::vector<float>> alone;
  for (size_t s = 0; s < kSequences; ++s) {
    auto engine = open(GetParam(), 1);
    auto session = engine->new_session().take();
    ASSERT_TRUE(session->evaluate(prompt(s)).ok());
    for (size_t step = 0; step < kSteps; ++step) {
      const int32_t next = token(s, step);
      ASSERT_TRUE(session->evaluate({&next, 1}, nullptr, nullptr, Phase::kGeneration).ok());
    }
    alone.emplace_back(session->logits().begin(), session->logits().end());
  }
  for (const char* memory : {"1G", "min"}) {
    auto engine = open(GetParam(), kSequences, memory);
    std::vector<std::unique_ptr<Session>> sessions;
    for (size_t s = 0; s < kSequences; ++s) {
      sessions.push_back(engine->new_session().take());
      ASSERT_TRUE(sessions[s]->evaluate(prompt(s)).ok());
    }
    Session* const all[] = {sessions[0].get(), sessions[1].get(), sessions[2].get()};
    for (size_t step = 0; step < kSteps; ++step) {
      const int32_t tokens[] = {token(0, step), token(1, step), token(2, step)};
      const Status status = engine->evaluate_batch(all, tokens, Phase::kGeneration);
      ASSERT_TRUE(status.ok()) << status.message();
    }
    for (size_t s = 0; s < kSequences; ++s)
      EXPECT_TRUE(same(sessions[s]->logits(), alone[s])) << memory << ", sequence " << s;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Batch,
                         testing::Values("llama-q4_0", "gemma3-f32", "deepseek2-f32", "gpt-oss-mxfp4_moe"));

TEST(BatchFork, CopiesGoOnByThemselves) {
  auto engine = open("llama-q4_0", 2);
  auto first = engine->new_session().take();
  ASSERT_TRUE(first->evaluate(prompt(1)).ok());
  auto second = engine->new_session().take();
  ASSERT_TRUE(second->fork_from(*first).ok());
  EXPECT_EQ(second->position(), first->position());
  EXPECT_TRUE(same(second->logits(), first->logits()));
  Session* const both[] = {first.get(), second.get()};
  const int32_t different[] = {9, 77};
  ASSERT_TRUE(engine->evaluate_batch(both, different, Phase::kGeneration).ok());
  EXPECT_FALSE(same(second->logits(), first->logits()));
  // The fork is as a session that has read the same tokens by itself.
  auto fresh_engine = open("llama-q4_0", 1);
  auto fresh = fresh_engine->new_session().take();
  ASSERT_TRUE(fresh->evaluate(prompt(1)).ok());
  ASSERT_TRUE(fresh->evaluate({&different[1], 1}).ok());
  EXPECT_TRUE(same(second->logits(), fresh->logits()));
}

TEST(BatchContext, IsPlannedForAllAndOverflowsChangeNothing) {
  auto engine = open("llama-q4_0", 2);
  auto first = engine->new_session().take();
  auto second = engine->new_session().take();
  const std::vector<int32_t> full(128, 11);
  const std::vector<int32_t> half(64, 12);
  ASSERT_TRUE(first->evaluate(full).ok());
  ASSERT_TRUE(second->evaluate(half).ok());
  const std::vector<float> before(second->logits().begin(), second->logits().end());
  Session* const both[] = {second.get(), first.get()};
  const int32_t tokens[] = {5, 6};
  EXPECT_EQ(engine->evaluate_batch(both, tokens, Phase::kGeneration).code(), Code::kContextOverflow);
  EXPECT_EQ(second->position(), half.size());
  EXPECT_TRUE(same(second->logits(), before));
  ASSERT_TRUE(second->evaluate(half).ok());
  // Both are full now; a third finds no room, until one is gone.
  auto third = engine->new_session().take();
  EXPECT_EQ(third->evaluate(half).code(), Code::kResources);
  second.reset();
  third->reset();
  EXPECT_TRUE(third->evaluate(half).ok());
}

}  // namespace
}  // namespace ganglion
