// Packs whose most frequent neurons a device computes (the test double): the processor's answers within
// rounding, the same bits whatever the threads, budget, batch and faults; counted calls; memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "accelerator/self_test.h"
#include "accelerator/sim.h"
#include "calibration/opt_for_test.h"
#include "engine/open_with_device.h"
#include "ganglion/engine.h"
#include "ganglion/pack.h"

namespace ganglion {
namespace {

namespace fs = std::filesystem;
using accelerator::Sim;
using accelerator::SimFault;
using accelerator::SimOptions;

std::string fixture(const std::string& name) {
  return (fs::path(GANGLION_FIXTURES) / "models" / (name + ".gguf")).string();
}

// A model of the fixtures, or an OPT made here, as a pack, removed in the end.
class TestPack {
 public:
  explicit TestPack(const std::string& model, uint32_t rank, const std::string& sparsify = "") {
    fs::create_directories(folder_);
    PackOptions options;
    options.model_path = fixture(model);
    if (model == "opt") {
      options.model_path = (folder_ / "opt.gguf").string();
      const Status written = calibration::OptForTest::write(fixture("llama-fatrelu-f32"),
                                                            base::TensorType::kF32, options.model_path);
      EXPECT_TRUE(written.ok()) << written.message();
    }
    options.output_path = path();
    options.memory = "2G";
    options.tokens = 700;
    options.random_tokens = true;
    options.rank = rank;
    options.down = "q8";
    options.sparsify = sparsify;
    const Result<PackReport> report = pack_model(options, nullptr, nullptr);
    EXPECT_TRUE(report.ok()) << report.status().message();
  }
  ~TestPack() { fs::remove_all(folder_); }
  TestPack(const TestPack&) = delete;
  TestPack& operator=(const TestPack&) = delete;
  std::string path() const { return (folder_ / "m.gguf").string(); }

 private:
  fs::path folder_ = fs::temp_directory_path() / ("ganglion_hot_test_" + std::to_string(::getpid()));
};

struct Way {
  bool device = true;
  std::vector<uint32_t> hot = {16};
  std::string memory = "1G";
  int threads = 2;
  size_t at_once = 1;
  size_t sequences = 8;
  std::vector<SimFault> faults = {};  // counted from the first generated token
  SimOptions sim = {};
  bool exact = false;
};

struct Opened {
  std::unique_ptr<Engine> engine;
  Sim* sim = nullptr;  // owned by the engine while it is not lost
};

EngineOptions options_of(const std::string& path, const Way& way) {
  EngineOptions options;
  options.model_path = path;
  options.memory = way.memory;
  options.threads = way.threads;
  options.context = 128;
  options.kv_type = "f32";  // Else its rounding makes more of differences.
  options.chunk = 16;
  options.logit_rows = 4;
  options.sequences = way.sequences;
  options.exact = way.exact;
  if (way.device) options.hot_neurons = way.hot;
  return options;
}

Opened open(const std::string& path, const Way& way) {
  auto sim = std::make_unique<Sim>(way.sim);
  Opened opened;
  opened.sim = sim.get();
  auto engine = engine::open_with_device(
      options_of(path, way), way.device ? std::move(sim) : std::unique_ptr<accelerator::Backend>());
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  if (!engine.ok()) std::abort();
  opened.engine = engine.take();
  const Status loaded = opened.engine->load(nullptr, nullptr);
  EXPECT_TRUE(loaded.ok()) << loaded.message();
  if (!way.device) opened.sim = nullptr;
  return opened;
}

class Keep final : public LogitSink {
 public:
  void logits(size_t, std::span<const float> logits) override {
    values.insert(values.end(), logits.begin(), logits.end());
  }
  std::vector<float> values;
};

const std::vector<int32_t> kPrompt = {1, 17, 9, 200, 33, 5};
const std::vector<int32_t> kGenerated = {4, 7, 250, 19, 88, 101, 3, 64, 12, 150, 33, 9};

struct Answer {
  std::vector<float> logits;  // of kGenerated
  EngineStats stats;
  PlanSummary plan;
};

void inject(const Opened& opened, const Way& way) {
  if (way.faults.empty()) return;
  const uint64_t before = opened.sim->stats().submissions;
  for (SimFault fault : way.faults) {
    fault.submission += before;
    opened.sim->inject(fault);
  }
}

Answer answer(const std::string& path, const Way& way) {
  const Opened opened = open(path, way);
  auto session = opened.engine->new_session().take();
  EXPECT_TRUE(session->evaluate(kPrompt).ok());
  inject(opened, way);
  Keep keep;
  for (size_t at = 0; at < kGenerated.size(); at += way.at_once) {
    const size_t count = std::min(way.at_once, kGenerated.size() - at);
    const Status status =
        session->evaluate(std::span(kGenerated).subspan(at, count), nullptr, &keep, Phase::kGeneration);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  return {std::move(keep.values), opened.engine->stats(), opened.engine->plan()};
}

int32_t most_likely(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::vector<int32_t> greedy(const std::string& path, const Way& way) {
  const Opened opened = open(path, way);
  auto session = opened.engine->new_session().take();
  EXPECT_TRUE(session->evaluate(kPrompt).ok());
  inject(opened, way);
  std::vector<int32_t> text;
  for (size_t i = 0; i < 24; ++i) {
    text.push_back(most_likely(session->logits()));
    EXPECT_TRUE(session->evaluate({&text.back(), 1}, nullptr, nullptr, Phase::kGeneration).ok());
  }
  return text;
}

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << what;
}

float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  float most = 0;
  EXPECT_EQ(a.size(), b.size());
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

struct Model {
  const char* name;
  uint64_t calls_per_token;  // layers times experts used
  // Of logits, where sums are added in another order: that flips roundings of activations to 8 bits, which
  // spread (engine/golden_test.cc allows 0.45 for them).
  float tolerance;
};

void PrintTo(const Model& model, std::ostream* out) {
  *out << model.name;
}

class HotNeurons : public testing::TestWithParam<Model> {};

TEST_P(HotNeurons, ChangeNothingButRoundingWhereTheProcessorFindsEveryNeuron) {
  const TestPack pack(GetParam().name, 0);
  const Answer alone = answer(pack.path(), {.device = false});
  for (const uint32_t hot : {16U, 32U}) {
    const Answer both = answer(pack.path(), {.hot = {hot}});
    const float most = largest_difference(alone.logits, both.logits);
    EXPECT_LE(most, GetParam().tolerance) << hot;
    EXPECT_GT(most, 0.0F) << "the device computed nothing";
  }
  EXPECT_EQ(greedy(pack.path(), {.device = false}), greedy(pack.path(), {}));
}

TEST_P(HotNeurons, GiveTheSameBitsWhateverTheThreadsBudgetAndBatch) {
  for (const uint32_t rank : {0U, 32U}) {
    const TestPack pack(GetParam().name, rank);
    const Answer all = answer(pack.path(), {});
    const auto expect = [&](const Way& way, const char* what) {
      expect_same_bits(all.logits, answer(pack.path(), way).logits, what);
    };
    expect({.memory = "min"}, "no neuron in memory");
    expect({.threads = 1}, "one thread");
    expect({.memory = "min", .threads = 5}, "five threads");
    expect({.at_once = 5}, "five rows at once");
    expect({.at_once = 12}, "more rows than a call takes");
    expect({.sequences = 1}, "other graphs");
  }
}

TEST_P(HotNeurons, AreComputedByTheProcessorWhereTheDeviceFails) {
  for (const uint32_t rank : {0U, 32U}) {
    const TestPack pack(GetParam().name, rank);
    const Answer whole = answer(pack.path(), {});
    const std::vector<int32_t> text = greedy(pack.path(), {});
    for (const SimFault::Kind kind :
         {SimFault::Kind::kFail, SimFault::Kind::kHang, SimFault::Kind::kLoseDevice}) {
      for (const char* memory : {"1G", "min"}) {
        const Way way = {.memory = memory, .faults = {{kind, 5}}};
        const Answer broken = answer(pack.path(), way);
        expect_same_bits(whole.logits, broken.logits, memory);
        EXPECT_GE(broken.stats.hot_recomputed, 1U);
        EXPECT_EQ(broken.stats.device_lost.empty(), kind == SimFault::Kind::kFail);
        EXPECT_EQ(greedy(pack.path(), way), text);
      }
    }
  }
}

TEST_P(HotNeurons, TakeOneCallForEachLayerAndTokenMadeBeforeTheProcessorBegins) {
  const TestPack pack(GetParam().name, 32);
  const Answer all = answer(pack.path(), {});
  EXPECT_EQ(all.stats.hot_calls, kGenerated.size() * GetParam().calls_per_token);
  EXPECT_EQ(all.stats.hot_calls_ahead, all.stats.hot_calls);
  EXPECT_EQ(all.stats.hot_recomputed, 0U);
}

TEST_P(HotNeurons, CountAgainstTheBudgetInPlaceOfOnesInMemory) {
  const TestPack pack(GetParam().name, 32);
  for (const char* memory : {"min", "1G"}) {
    const Answer all = answer(pack.path(), {.memory = memory});
    uint64_t sum = 0;
    uint64_t hot = 0;
    for (const MemoryItem& item : all.plan.items) {
      sum += item.bytes;
      if (item.name == "hot neurons on a device") hot = item.bytes;
    }
    EXPECT_GT(hot, 0U);
    EXPECT_EQ(sum, all.plan.planned_bytes);
    EXPECT_LE(all.plan.planned_bytes, all.plan.budget_bytes);
    // What a lost device had goes to the cache.
    const Answer lost = answer(pack.path(), {.memory = memory, .faults = {{SimFault::Kind::kLoseDevice, 3}}});
    EXPECT_LE(lost.plan.planned_bytes, lost.plan.budget_bytes);
    for (const MemoryItem& item : lost.plan.items) EXPECT_NE(item.name, "hot neurons on a device");
    EXPECT_NE(lost.plan.device.find("lost"), std::string::npos) << lost.plan.device;
  }
}

// Best of four: sequences that end at different times, the batch shrinking from 4 to 1.
std::vector<std::vector<float>> best_of_four(const Opened& opened) {
  constexpr size_t kEnds[] = {12, 3, 9, 6};
  std::vector<std::unique_ptr<Session>> sessions;
  for (size_t s = 0; s < 4; ++s) {
    sessions.push_back(opened.engine->new_session().take());
    if (s == 0) {
      EXPECT_TRUE(sessions[0]->evaluate(kPrompt).ok());
    } else {
      EXPECT_TRUE(sessions[s]->fork_from(*sessions[0]).ok());
    }
  }
  for (size_t step = 0; step < 12; ++step) {
    std::vector<Session*> batch;
    std::vector<int32_t> tokens;
    for (size_t s = 0; s < 4; ++s) {
      if (step >= kEnds[s]) continue;
      batch.push_back(sessions[s].get());
      tokens.push_back(kGenerated[(step + 3 * s) % kGenerated.size()]);
    }
    const Status status = opened.engine->evaluate_batch(batch, tokens, Phase::kGeneration);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  std::vector<std::vector<float>> last;
  for (const auto& session : sessions) last.emplace_back(session->logits().begin(), session->logits().end());
  return last;
}

std::vector<float> one_of_four(const Opened& opened, size_t s, size_t end) {
  auto session = opened.engine->new_session().take();
  EXPECT_TRUE(session->evaluate(kPrompt).ok());
  for (size_t step = 0; step < end; ++step) {
    const int32_t token = kGenerated[(step + 3 * s) % kGenerated.size()];
    EXPECT_TRUE(session->evaluate({&token, 1}, nullptr, nullptr, Phase::kGeneration).ok());
  }
  return {session->logits().begin(), session->logits().end()};
}

TEST_P(HotNeurons, OfBestOfFourAreThoseOfEachSequenceAloneWithoutAGraphMadeMeanwhile) {
  constexpr size_t kEnds[] = {12, 3, 9, 6};
  const TestPack pack(GetParam().name, 0);
  for (const std::vector<uint32_t>& hot : {std::vector<uint32_t>{16}, {0, 16, 16, 32}}) {
    for (const char* memory : {"1G", "min"}) {
      const Opened opened = open(pack.path(), {.hot = hot, .memory = memory});
      const uint64_t prepared = opened.sim->stats().prepared;
      const auto last = best_of_four(opened);
      EXPECT_EQ(opened.sim->stats().prepared, prepared);
      EXPECT_GT(opened.engine->stats().hot_calls, 0U);
      for (size_t s = 0; s < 4; ++s) {
        const std::vector<float> alone = one_of_four(opened, s, kEnds[s]);
        if (hot.size() == 1) expect_same_bits(last[s], alone, memory);
        // A share that follows the batch changes the order of sums.
        EXPECT_LE(largest_difference(last[s], alone), GetParam().tolerance);
      }
    }
  }
}

TEST_P(HotNeurons, OfAShareThatFollowsTheBatchSurviveFaults) {
  const TestPack pack(GetParam().name, 32);
  const Way way = {.hot = {0, 16, 16, 32}, .at_once = 3};
  const Answer whole = answer(pack.path(), way);
  for (const SimFault::Kind kind : {SimFault::Kind::kFail, SimFault::Kind::kLoseDevice}) {
    Way broken = way;
    broken.faults = {{kind, 3}};
    expect_same_bits(whole.logits, answer(pack.path(), broken).logits, "a fault");
  }
}

INSTANTIATE_TEST_SUITE_P(Models, HotNeurons,
                         testing::Values(Model{"llama-relu-q4_0", 2, 0.1F},
                                         Model{"llama-drelu-q4_0", 2, 0.1F},
                                         Model{"llama-fatrelu-f32", 2, 2e-5F},
                                         Model{"smallthinker-f32", 10, 2e-5F},
                                         Model{"smallthinker-q8_0", 10, 0.2F}),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name;
                         });

// What a plan says of a device, or why it cannot be opened.
std::string word_on(const std::string& path, const Way& way) {
  const auto engine = engine::open_with_device(options_of(path, way), std::make_unique<Sim>(way.sim));
  if (!engine.ok()) return engine.status().message();
  const PlanSummary& plan = engine.value()->plan();
  EXPECT_EQ(plan.hot_neurons.empty(), plan.device.find("not used") != std::string::npos) << plan.device;
  return plan.device;
}

void expect_says(const std::string& text, const std::string& said) {
  EXPECT_NE(text.find(said), std::string::npos) << text;
}

TEST(HotNeuronsPlan, LeavesASlowDeviceOutAndTakesAFastOne) {
  const TestPack pack("llama-relu-q4_0", 32);
  const Answer alone = answer(pack.path(), {.device = false});
  EXPECT_EQ(alone.plan.device, "");
  Way way = {.hot = {}};
  way.sim.latency_ns = 900'000'000;
  const Answer slow = answer(pack.path(), way);
  expect_says(slow.plan.device, "device sim: not used: a call takes 900.0 ms");
  EXPECT_EQ(slow.stats.hot_calls, 0U);
  expect_same_bits(alone.logits, slow.logits, "a device that is not used");
  way.sim.latency_ns = 0;
  const Answer fast = answer(pack.path(), way);
  expect_says(fast.plan.device, "hot neurons dense on sim: ");
  EXPECT_GT(fast.stats.hot_calls, 0U);
  EXPECT_LE(fast.plan.planned_bytes, fast.plan.budget_bytes);
  way.memory = "min";
  expect_says(word_on(pack.path(), way), "the budget has no room");
}

TEST(HotNeuronsPlan, SaysWhyADeviceIsNotUsed) {
  const TestPack pack("llama-relu-q4_0", 32);
  expect_says(word_on(pack.path(), {.hot = {}, .exact = true}), "--exact");
  expect_says(word_on(pack.path(), {.hot = {16}, .exact = true}), "leave out --hot-neurons");
  expect_says(word_on(fixture("llama-relu-q4_0"), {.hot = {}}), "the model is no pack");
  expect_says(word_on(pack.path(), {.hot = {0}}), "0 hot neurons were asked for");
  expect_says(word_on(pack.path(), {.hot = {16, 32}}), "takes one, or 4 ascending ones");
  expect_says(word_on(pack.path(), {.hot = {64, 32, 16, 16}}), "takes one, or 4 ascending ones");
  Way way = {.hot = {512}};
  way.sim.capabilities.windows = {300'000, 300'000};
  expect_says(word_on(pack.path(), way), "do not fit the memory of device sim");
  way = {.hot = {}};
  way.sim.capabilities.ffn_formats.clear();
  expect_says(word_on(pack.path(), way), "cannot compute the types and shapes");
  EngineOptions options = options_of(pack.path(), {.hot = {}});
  options.device = "abacus";
  const auto engine = Engine::open(options);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().code(), Code::kInvalidArgument);
  expect_says(engine.status().message(), "'abacus'");
}

TEST(HotNeuronsPlan, NeuronsWithoutGatesStayOnTheProcessor) {
  const TestPack pack("opt", 32);
  expect_says(word_on(pack.path(), {.hot = {}}), "this model's FFN have none");
  expect_says(word_on(pack.path(), {.hot = {16}}), "leave out --hot-neurons");
}

TEST(HotNeuronsPlan, TwoWindowsHoldWhatOneDoesNot) {
  const TestPack pack("llama-relu-q4_0", 32);
  const Answer whole = answer(pack.path(), {.hot = {512}});
  Way way = {.hot = {512}};
  way.sim.capabilities.windows = {400'000, 400'000};
  expect_same_bits(whole.logits, answer(pack.path(), way).logits, "a layer in each window");
}

TEST(HotNeuronsPlan, AQueueThatIsFullIsWaitedFor) {
  const TestPack pack("smallthinker-f32", 32);
  const Answer whole = answer(pack.path(), {});
  Way way;
  way.sim.capabilities.queue_depth = 1;
  way.sim.latency_ns = 1000;
  const Answer narrow = answer(pack.path(), way);
  expect_same_bits(whole.logits, narrow.logits, "one call at a time");
  EXPECT_EQ(narrow.stats.hot_calls, whole.stats.hot_calls);
  EXPECT_LT(narrow.stats.hot_calls_ahead, whole.stats.hot_calls_ahead);
}

TEST(HotNeuronsPlan, ADeviceThatKeepsFailingIsGivenUp) {
  const TestPack pack("llama-relu-q4_0", 32);
  const Answer whole = answer(pack.path(), {});
  Way way;
  for (uint64_t call = 3; call < 23; ++call) way.faults.push_back({SimFault::Kind::kFail, call});
  const Answer broken = answer(pack.path(), way);
  expect_same_bits(whole.logits, broken.logits, "failures in a row");
  expect_says(broken.stats.device_lost, "8 calls in a row failed");
  EXPECT_EQ(broken.stats.hot_recomputed, 8U);
}

// SiLU gates are computed for all neurons: those whose activations are large contribute, wherever they are.
TEST(HotNeuronsPlan, OfSiluPacksAreThoseWithLargeActivations) {
  const TestPack pack("llama-rope3-f32", 0, "cats:0.5");
  const Answer alone = answer(pack.path(), {.device = false});
  const Answer both = answer(pack.path(), {.hot = {48}});
  EXPECT_GT(both.stats.hot_calls, 0U);
  EXPECT_LE(largest_difference(alone.logits, both.logits), 2e-5F);
  const Way lost = {.hot = {48}, .memory = "min", .faults = {{SimFault::Kind::kLoseDevice, 4}}};
  expect_same_bits(both.logits, answer(pack.path(), lost).logits, "a lost device");
}

TEST(HotNeurons, WhatADeviceComputesWronglyIsLeftOutAndNamed) {
  const TestPack pack("llama-relu-q4_0", 0);
  const Answer whole = answer(pack.path(), {});
  Way way;
  for (const accelerator::Operation& operation :
       accelerator::operations_of(accelerator::sim_capabilities())) {
    if (operation.kind == accelerator::Operation::Kind::kFfn && operation.bucket == 1)
      way.sim.broken.push_back(operation);
  }
  const Opened opened = open(pack.path(), way);
  const std::vector<std::string>& notes = opened.engine->plan().notes;
  EXPECT_TRUE(std::any_of(notes.begin(), notes.end(), [](const std::string& note) {
    return note.find("1 token") != std::string::npos && note.find("device sim") != std::string::npos;
  }));
  expect_same_bits(whole.logits, answer(pack.path(), way).logits, "single rows are calls of two");
  way.sim.broken = accelerator::operations_of(accelerator::sim_capabilities());
  const auto refused = engine::open_with_device(options_of(pack.path(), way), std::make_unique<Sim>(way.sim));
  ASSERT_FALSE(refused.ok()) << refused.value()->plan().device;
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("fails its self-test"), std::string::npos)
      << refused.status().message();
}

}  // namespace
}  // namespace ganglion
