// Drafts change passes, never the text.
#include "ganglion/generation.h"

#include <gtest/gtest.h>

#include <string>

#include "ganglion/engine.h"

namespace ganglion {
namespace {

constexpr size_t kTokens = 60;

struct Opened {
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Session> session;
};

Opened open(const std::string& model, size_t context = 256) {
  EngineOptions options;
  options.model_path = std::string(GANGLION_FIXTURES) + "/models/" + model + ".gguf";
  options.memory = "1G";
  options.threads = 2;
  options.context = context;
  options.logit_rows = 9;
  Opened opened;
  auto engine = Engine::open(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  opened.engine = engine.take();
  EXPECT_TRUE(opened.engine->load(nullptr, nullptr).ok());
  opened.session = opened.engine->new_session().take();
  return opened;
}

// What follows a prompt, drafted by `drafter` (null: by nobody).
std::vector<int32_t> generate(const std::string& model, float temperature, Session* drafter,
                              GenerationStats* stats) {
  const Opened opened = open(model);
  SamplingOptions sampling;
  sampling.temperature = temperature;
  sampling.seed = 7;
  auto sampler = Sampler::create(sampling, opened.engine->text().vocab_size(), &opened.engine->text());
  EXPECT_TRUE(sampler.ok());
  const size_t drafted = drafter != nullptr ? 8 : 0;
  Generator generator(*opened.session, *sampler.value(),
                      {.most_drafted = drafted, .always_draft = true, .drafter = drafter});
  const std::vector<int32_t> prompt = {1, 17, 9, 200, 33, 5};
  EXPECT_TRUE(generator.prompt({}, prompt, nullptr).ok());
  std::vector<int32_t> text;
  while (text.size() < kTokens) {
    const auto step = generator.step(kTokens - text.size(), nullptr);
    EXPECT_TRUE(step.ok()) << step.status().message();
    if (!step.ok()) break;
    text.insert(text.end(), step.value().begin(), step.value().end());
  }
  *stats = generator.stats();
  return text;
}

TEST(ModelDraft, AnyDrafterGivesTheSameText) {
  for (const float temperature : {0.0F, 1.0F}) {
    GenerationStats stats;
    const std::vector<int32_t> alone = generate("llama-q4_0", temperature, nullptr, &stats);
    EXPECT_EQ(stats.drafted, 0U);
    for (const char* name : {"llama-q4_0", "llama-q2_k", "llama-relu-q4_0"}) {
      const Opened drafter = open(name);
      // Something is in the session already: it starts afresh.
      ASSERT_TRUE(drafter.session->evaluate(std::vector<int32_t>{3, 4}).ok());
      EXPECT_EQ(generate("llama-q4_0", temperature, drafter.session.get(), &stats), alone) << name;
    }
  }
}

TEST(ModelDraft, TheSameModelIsAlwaysRight) {
  const Opened drafter = open("llama-q4_0");
  GenerationStats stats;
  generate("llama-q4_0", 0, drafter.session.get(), &stats);
  EXPECT_EQ(stats.accepted, stats.drafted);
  EXPECT_EQ(stats.passes + stats.accepted + 1, stats.tokens);
}

TEST(ModelDraft, AFullContextOfTheDrafterEndsItsDraftsOnly) {
  const Opened drafter = open("llama-q4_0", 32);
  GenerationStats stats;
  const std::vector<int32_t> alone = generate("llama-q4_0", 0, nullptr, &stats);
  EXPECT_EQ(generate("llama-q4_0", 0, drafter.session.get(), &stats), alone);
}

TEST(ModelDraft, VocabulariesAreCompared) {
  EXPECT_TRUE(same_vocabulary(open("llama-q4_0").engine->text(), open("llama-q2_k").engine->text()));
}

}  // namespace
}  // namespace ganglion
