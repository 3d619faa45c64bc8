// Every model of the fixtures against independent references: logits, greedy continuations, likelihood, and
// the same bits whatever the budget, chunk and number of threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "ganglion/engine.h"

namespace ganglion {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Golden {
  std::string name;
  fs::path folder;
  json facts;
};

// Names tests in reports.
void PrintTo(const Golden& golden, std::ostream* out) {
  *out << golden.name;
}

// The fixtures of this repository, and those beside it that are too large to ship.
std::vector<Golden> goldens() {
  std::vector<Golden> all;
  for (const fs::path& root :
       {fs::path(GANGLION_FIXTURES) / "models", fs::path(GANGLION_SHARED_FIXTURES) / "models"}) {
    if (!fs::exists(root)) continue;
    for (const auto& entry : fs::directory_iterator(root)) {
      if (entry.path().extension() != ".json") continue;
      std::ifstream in(entry.path());
      json facts = json::parse(in);
      if (!facts.contains("long")) continue;
      const std::string name = facts["name"];
      const bool seen = std::any_of(all.begin(), all.end(), [&](const Golden& g) { return g.name == name; });
      if (!seen) all.push_back({name, root, facts});
    }
  }
  std::sort(all.begin(), all.end(), [](const Golden& a, const Golden& b) { return a.name < b.name; });
  return all;
}

std::vector<float> read_floats(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::vector<float> out(bytes.size() / 4);
  std::memcpy(out.data(), bytes.data(), out.size() * 4);
  return out;
}

struct Opened {
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Session> session;
};

std::string path_of(const Golden& golden) {
  return (golden.folder / golden.facts["gguf"].get<std::string>()).string();
}

Opened open(const Golden& golden, EngineOptions options) {
  options.model_path = path_of(golden);
  auto engine = Engine::open(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  if (!engine.ok()) return {};
  Opened opened{engine.take(), nullptr};
  const Status loaded = opened.engine->load(nullptr, nullptr);
  EXPECT_TRUE(loaded.ok()) << loaded.message();
  opened.session = opened.engine->new_session().take();
  return opened;
}

uint64_t least_budget(const Golden& golden, EngineOptions options) {
  options.model_path = path_of(golden);
  options.memory = "min";
  return Engine::open(options).take()->plan().budget_bytes;
}

class AllLogits : public LogitSink {
 public:
  void logits(size_t position, std::span<const float> values) override {
    if (rows.size() <= position) rows.resize(position + 1);
    rows[position].assign(values.begin(), values.end());
  }
  void hidden(size_t layer, std::span<const float> values) override {
    if (layers.size() <= layer) layers.resize(layer + 1);
    layers[layer].assign(values.begin(), values.end());
  }
  std::vector<std::vector<float>> rows;
  std::vector<std::vector<float>> layers;
};

EngineOptions exact_options() {
  EngineOptions options;
  options.memory = "1G";
  options.kv_type = "f32";
  options.threads = 2;
  options.logit_rows = 8;
  return options;
}

// Agreement that the references state for each file type (fixtures' README): largest difference of a logit.
double tolerance(const Golden& golden) {
  const std::string& name = golden.name;
  // No engine with 8-bit activations had been compared with this one. Ours is exact on its dequantised
  // weights (1e-5); the rest is the rounding of activations, alone above 0.45 in one logit of 960.
  if (name == "llama-relu-q4_k_m") return 0.5;
  if (name.rfind("gemma", 0) == 0) return 1e-4;
  if (name.find("-f32") != std::string::npos) return 1e-4;
  if (name.find("-f16") != std::string::npos) return 8e-3;
  if (name.find("-bf16") != std::string::npos) return 6e-2;
  return 0.45;
}

class GoldenTest : public ::testing::TestWithParam<Golden> {};

TEST_P(GoldenTest, LogitsHiddenStatesAndLikelihoodAgree) {
  const Golden& golden = GetParam();
  const json& facts = golden.facts["long"];
  Opened opened = open(golden, exact_options());
  ASSERT_NE(opened.session, nullptr);
  AllLogits all;
  const auto tokens = facts["tokens"].get<std::vector<int32_t>>();
  const Status status = opened.session->evaluate(tokens, nullptr, &all);
  ASSERT_TRUE(status.ok()) << status.message();

  const auto hidden = read_floats(golden.folder / facts["hidden_file"].get<std::string>());
  const size_t dim = facts["hidden_shape"][1];
  double worst_hidden = 0;
  for (size_t layer = 0; layer < facts["hidden_shape"][0].get<size_t>(); ++layer) {
    double worst = 0;
    for (size_t i = 0; i < dim; ++i) {
      worst = std::max(worst, std::abs(static_cast<double>(hidden[layer * dim + i] - all.layers[layer][i])));
    }
    worst_hidden = std::max(worst_hidden, worst);
    if (worst > 0.5) ADD_FAILURE() << "the input of layer " << layer << " is off by " << worst;
  }
  const auto expected = read_floats(golden.folder / facts["logits_file"].get<std::string>());
  const auto positions = facts["positions"].get<std::vector<size_t>>();
  const size_t vocab = facts["logits_shape"][1];
  double worst = 0;
  double squares = 0;
  for (size_t p = 0; p < positions.size(); ++p) {
    for (size_t i = 0; i < vocab; ++i) {
      const double off = static_cast<double>(expected[p * vocab + i] - all.rows[positions[p]][i]);
      worst = std::max(worst, std::abs(off));
      squares += off * off;
    }
  }
  EXPECT_LE(worst, tolerance(golden));
  EXPECT_LE(std::sqrt(squares / static_cast<double>(positions.size() * vocab)),
            std::min(0.105, tolerance(golden)));
  double nll = 0;
  for (size_t i = 1; i < tokens.size(); ++i) {
    const std::vector<float>& row = all.rows[i - 1];
    const float largest = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (const float value : row) sum += std::exp(static_cast<double>(value - largest));
    nll += std::log(sum) + static_cast<double>(largest - row[static_cast<size_t>(tokens[i])]);
  }
  nll /= static_cast<double>(tokens.size() - 1);
  EXPECT_NEAR(nll, facts["mean_nll"].get<double>(), tolerance(golden) < 0.1 ? tolerance(golden) / 2 : 0.03);
  RecordProperty("worst_logit", std::to_string(worst));
  std::printf("             %-26s logits %.1e, hidden %.1e, nll %+.1e\n", golden.name.c_str(), worst,
              worst_hidden, nll - facts["mean_nll"].get<double>());
}

TEST_P(GoldenTest, GreedyContinuationAgreesOutsideNearTies) {
  const Golden& golden = GetParam();
  const json& facts = golden.facts["short"];
  Opened opened = open(golden, exact_options());
  ASSERT_NE(opened.session, nullptr);
  ASSERT_TRUE(opened.session->evaluate(facts["tokens"].get<std::vector<int32_t>>()).ok());
  const auto greedy = facts["greedy"].get<std::vector<int32_t>>();
  const bool quantised = tolerance(golden) > 0.1;
  for (size_t step = 0; step < greedy.size(); ++step) {
    const auto logits = opened.session->logits();
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    const bool near_tie =
        quantised && (facts["margin"][step].get<double>() < 0.3 ||
                      (facts.contains("router_margin") && facts["router_margin"][step].get<double>() < 0.1));
    if (!near_tie) {
      EXPECT_EQ(best, greedy[step]) << "step " << step;
    }
    ASSERT_TRUE(opened.session->evaluate({&greedy[step], 1}).ok());  // The reference's own token.
  }
}

// Logits of the last position after evaluating `tokens` in parts of `part`.
std::vector<float> last_logits(Session& session, const std::vector<int32_t>& tokens, size_t part) {
  session.reset();
  for (size_t at = 0; at < tokens.size(); at += part) {
    const size_t count = std::min(part, tokens.size() - at);
    const Status status = session.evaluate({tokens.data() + at, count});
    EXPECT_TRUE(status.ok()) << status.message();
  }
  return {session.logits().begin(), session.logits().end()};
}

TEST_P(GoldenTest, SameBitsForEveryBudgetChunkThreadCountAndQueue) {
  const Golden& golden = GetParam();
  const auto tokens = golden.facts["long"]["tokens"].get<std::vector<int32_t>>();
  EngineOptions options;
  options.memory = "1G";
  options.threads = 1;
  options.context = 128;
  Opened resident = open(golden, options);
  ASSERT_NE(resident.session, nullptr);
  ASSERT_FALSE(resident.engine->plan().streams);
  const std::vector<float> expected = last_logits(*resident.session, tokens, tokens.size());
  for (const size_t part : {size_t{1}, size_t{2}, size_t{7}, size_t{64}}) {
    EXPECT_EQ(last_logits(*resident.session, tokens, part), expected) << "parts of " << part;
  }
  options.memory = "min";
  options.threads = 3;
  options.chunk = 16;
  for (const bool io_uring : {true, false}) {
    options.io_uring = io_uring;
    Opened streamed = open(golden, options);
    ASSERT_NE(streamed.session, nullptr);
    for (const size_t part : {size_t{1}, size_t{64}}) {
      EXPECT_EQ(last_logits(*streamed.session, tokens, part), expected) << "streamed, parts of " << part;
    }
  }
}

TEST_P(GoldenTest, SameBitsWhileTheBudgetChanges) {
  const Golden& golden = GetParam();
  const auto tokens = golden.facts["long"]["tokens"].get<std::vector<int32_t>>();
  EngineOptions options;
  options.memory = "1G";
  options.context = 512;
  options.chunk = 16;
  Opened opened = open(golden, options);
  ASSERT_NE(opened.session, nullptr);
  const std::vector<float> expected = last_logits(*opened.session, tokens, tokens.size());
  opened.session->reset();
  const uint64_t least = least_budget(golden, options);
  const uint64_t budgets[] = {least + (uint64_t{8} << 20), least + (uint64_t{12} << 20), uint64_t{1} << 30};
  for (size_t i = 0; i < tokens.size(); ++i) {
    const Status changed = opened.engine->set_budget(budgets[i % 3]);
    ASSERT_TRUE(changed.ok()) << changed.message();
    ASSERT_TRUE(opened.session->evaluate({&tokens[i], 1}).ok());
    EXPECT_LE(opened.engine->plan().planned_bytes, budgets[i % 3]);
  }
  EXPECT_EQ(std::vector<float>(opened.session->logits().begin(), opened.session->logits().end()), expected);
  const uint64_t before = opened.engine->plan().budget_bytes;
  EXPECT_EQ(opened.engine->set_budget(uint64_t{10} << 20).code(), Code::kResources);
  EXPECT_EQ(opened.engine->plan().budget_bytes, before) << "refused, and nothing changed";
  ASSERT_TRUE(opened.session->evaluate({&tokens[0], 1}).ok());
}

TEST_P(GoldenTest, SameBitsWhileKvCacheAndScratchGrowAndShrink) {
  const Golden& golden = GetParam();
  const auto some = golden.facts["long"]["tokens"].get<std::vector<int32_t>>();
  std::vector<int32_t> tokens;
  while (tokens.size() < 450) tokens.insert(tokens.end(), some.begin(), some.end());
  tokens.resize(450);
  EngineOptions options;
  options.memory = "1G";
  options.context = 512;
  options.chunk = 64;
  std::vector<float> expected;
  {
    Opened whole = open(golden, options);
    ASSERT_NE(whole.session, nullptr);
    expected = last_logits(*whole.session, tokens, tokens.size());
  }
  options.model_path = path_of(golden);
  // What the process takes beside the model varies a little, under sanitizers by megabytes.
  uint64_t budget = least_budget(golden, options);
  do {
    budget += uint64_t{1} << 20;
    options.memory = std::to_string(budget);
  } while (Engine::open(options).status().code() == Code::kResources);
  options.memory = std::to_string(budget + (uint64_t{2} << 20));
  Opened tight = open(golden, options);
  ASSERT_NE(tight.session, nullptr);
  // Prompts and answers in turn.
  for (size_t at = 0; at < tokens.size();) {
    for (const size_t part : {size_t{90}, size_t{1}, size_t{1}, size_t{30}}) {
      const size_t count = std::min(part, tokens.size() - at);
      if (count == 0) break;
      const Status status = tight.session->evaluate({tokens.data() + at, count});
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_LE(tight.engine->plan().planned_bytes, tight.engine->plan().budget_bytes);
      at += count;
    }
  }
  EXPECT_EQ(std::vector<float>(tight.session->logits().begin(), tight.session->logits().end()), expected);
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest, ::testing::ValuesIn(goldens()), [](const auto& test) {
  std::string name = test.param.name;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
});

}  // namespace
}  // namespace ganglion
