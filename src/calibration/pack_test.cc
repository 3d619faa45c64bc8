// Packs against their sources: exact passes give the source's bits, sparse ones depend on nothing but pack
// and tokens, and damaged packs are refused.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "calibration/carried_for_test.h"
#include "calibration/opt_for_test.h"
#include "format/gguf.h"
#include "format/gguf_writer.h"
#include "ganglion/engine.h"
#include "ganglion/pack.h"

namespace ganglion {
namespace {

namespace fs = std::filesystem;

// Makes and removes a folder for a test's packs.
class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("ganglion_pack_test_" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// Models that are written when they are first asked for.
class Written {
 public:
  ~Written() {
    if (!path_.empty()) fs::remove_all(path_);
  }
  std::string opt(const std::string& name) {
    if (path_.empty()) {
      path_ = fs::temp_directory_path() / ("ganglion_pack_test_models_" + std::to_string(::getpid()));
      fs::create_directories(path_);
    }
    const fs::path path = path_ / (name + ".gguf");
    const bool q4 = name.find("q4_0") != std::string::npos;
    const base::TensorType type = q4 ? base::TensorType::kQ4_0 : base::TensorType::kF32;
    const fs::path vocabulary = fs::path(GANGLION_FIXTURES) / "models" / "llama-fatrelu-f32.gguf";
    const bool biased = name.find("unbiased") == std::string::npos;
    if (!fs::exists(path)) {
      const Status status = calibration::OptForTest::write(vocabulary, type, path, biased);
      EXPECT_TRUE(status.ok()) << status.message();
    }
    return path.string();
  }

 private:
  fs::path path_;
};

std::string fixture(const std::string& name) {
  static Written written;
  if (name.rfind("opt-", 0) == 0) return written.opt(name);
  const fs::path own = fs::path(GANGLION_FIXTURES) / "models" / (name + ".gguf");
  if (fs::exists(own)) return own.string();
  const fs::path shared = fs::path(GANGLION_SHARED_FIXTURES) / "models" / (name + ".gguf");
  return fs::exists(shared) ? shared.string() : "";
}

PackReport pack(const std::string& model, const std::string& output, uint32_t rank, const std::string& down,
                const std::string& sparsify = "", bool slim = false) {
  PackOptions options;
  options.sparsify = sparsify;
  options.slim = slim;
  options.model_path = model;
  options.output_path = output;
  options.memory = "2G";  // Sanitizers keep what was freed for a while.
  options.tokens = 700;
  options.random_tokens = true;
  options.rank = rank;
  options.down = down;
  Result<PackReport> report = pack_model(options, nullptr, nullptr);
  EXPECT_TRUE(report.ok()) << report.status().message();
  return report.ok() ? report.take() : PackReport{};
}

// The bits of all logits of an evaluation.
class Keep final : public LogitSink {
 public:
  void logits(size_t, std::span<const float> logits) override {
    values.insert(values.end(), logits.begin(), logits.end());
  }
  std::vector<float> values;
};

struct Way {
  std::string memory = "1G";
  int threads = 2;
  bool io_uring = true;
  bool exact = false;
  size_t generated_at_once = 1;
  Phase phase = Phase::kGeneration;
  SparseParts parts = SparseParts::kAll;
};

const std::vector<int32_t> kPrompt = {1, 17, 9, 200, 33, 5};
const std::vector<int32_t> kGenerated = {4, 7, 250, 19, 88, 101, 3, 64, 12, 150, 33, 9};

// Logits of a prompt, then of tokens as a generation would evaluate them.
std::vector<float> logits_of(const std::string& path, const Way& way) {
  EngineOptions options;
  options.model_path = path;
  options.memory = way.memory;
  options.threads = way.threads;
  options.io_uring = way.io_uring;
  options.exact = way.exact;
  options.sparse_parts = way.parts;
  options.context = 256;
  options.chunk = 16;
  options.logit_rows = 4;
  auto engine = Engine::open(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  if (!engine.ok()) return {};
  const Status loaded = engine.value()->load(nullptr, nullptr);
  EXPECT_TRUE(loaded.ok()) << loaded.message();
  auto session = engine.value()->new_session().take();
  Keep keep;
  EXPECT_TRUE(session->evaluate(kPrompt, nullptr, &keep).ok());
  for (size_t at = 0; at < kGenerated.size(); at += way.generated_at_once) {
    const size_t count = std::min(way.generated_at_once, kGenerated.size() - at);
    const Status status =
        session->evaluate(std::span<const int32_t>(kGenerated).subspan(at, count), nullptr, &keep, way.phase);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  return keep.values;
}

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << what;
}

class Pack : public testing::TestWithParam<const char*> {};

TEST_P(Pack, ExactPassesGiveTheBitsOfTheSourceAtAnyBudget) {
  const std::string model = fixture(GetParam());
  if (model.empty()) GTEST_SKIP() << "SKIPPED: " << GetParam() << " is only in the shared fixtures";
  const std::vector<float> source = logits_of(model, {});
  for (const uint32_t rank : {32U, 0U}) {
    const Folder folder;
    pack(model, folder.file("m.gguf"), rank, "q6");
    for (const char* memory : {"1G", "min"})
      expect_same_bits(source, logits_of(folder.file("m.gguf"), {.memory = memory, .exact = true}), memory);
  }
}

TEST_P(Pack, SparsePassesDependOnNothingButPackAndTokens) {
  const std::string model = fixture(GetParam());
  if (model.empty()) GTEST_SKIP() << "SKIPPED: " << GetParam() << " is only in the shared fixtures";
  const Folder folder;
  const std::string path = folder.file("m.gguf");
  pack(model, path, 32, "q6");
  const std::vector<float> all = logits_of(path, {});
  expect_same_bits(all, logits_of(path, {.memory = "min"}), "no neuron in memory");
  expect_same_bits(all, logits_of(path, {.memory = "min", .threads = 1}), "one thread");
  expect_same_bits(all, logits_of(path, {.memory = "min", .threads = 5, .io_uring = false}), "pread pool");
  expect_same_bits(all, logits_of(path, {.generated_at_once = 5}), "five rows at once");
  for (const SparseParts parts :
       {SparseParts::kBundles, SparseParts::kNeuronCache, SparseParts::kClusterPipeline}) {
    for (const char* memory : {"min", "1G"})
      expect_same_bits(all, logits_of(path, {.memory = memory, .parts = parts}), "parts left out");
  }
  expect_same_bits(all, logits_of(path, {.memory = "min", .generated_at_once = 12}),
                   "all rows at once, streamed");
}

TEST_P(Pack, WithoutAPredictorOnlyTheRoundingOfDownRowsDiffersFromTheSource) {
  const std::string model = fixture(GetParam());
  if (model.empty() || std::string(GetParam()).find("f32") == std::string::npos)
    GTEST_SKIP() << "needs a model in F32";
  const Folder folder;
  pack(model, folder.file("m.gguf"), 0, "f32");
  const std::vector<float> source = logits_of(model, {});
  const std::vector<float> sparse = logits_of(folder.file("m.gguf"), {});
  ASSERT_EQ(source.size(), sparse.size());
  float most = 0;
  for (size_t i = 0; i < source.size(); ++i) most = std::max(most, std::abs(source[i] - sparse[i]));
  EXPECT_LE(most, 3e-3F);
  EXPECT_GT(most, 0.0F) << "the sparse path was not taken";
}

TEST_P(Pack, WithoutAPredictorSparsePassesDependOnPackAndTokensAlone) {
  const std::string model = fixture(GetParam());
  if (model.empty()) GTEST_SKIP() << "SKIPPED: " << GetParam() << " is only in the shared fixtures";
  const Folder folder;
  const std::string path = folder.file("m.gguf");
  pack(model, path, 0, "q8");
  const std::vector<float> all = logits_of(path, {});
  expect_same_bits(all, logits_of(path, {.memory = "min", .threads = 3}), "streamed");
  expect_same_bits(all, logits_of(path, {.memory = "min", .generated_at_once = 5}), "five rows at once");
}

TEST_P(Pack, SlimOnesTakeAllNeuronsByTheirBundles) {
  const std::string model = fixture(GetParam());
  if (model.empty()) GTEST_SKIP() << "SKIPPED: " << GetParam() << " is only in the shared fixtures";
  const bool f32 = std::string(GetParam()).find("f32") != std::string::npos;
  std::vector<float> of_any_rank;
  for (const uint32_t rank : {32U, 0U}) {
    const Folder folder;
    const std::string path = folder.file("m.gguf");
    pack(model, folder.file("whole.gguf"), rank, f32 ? "f32" : "q8");
    pack(model, path, rank, f32 ? "f32" : "q8", "", true);
    EXPECT_LT(fs::file_size(path), fs::file_size(folder.file("whole.gguf")));
    const std::vector<float> exact = logits_of(path, {.exact = true});
    if (of_any_rank.empty()) of_any_rank = exact;
    expect_same_bits(exact, of_any_rank, "with and without predictors");
    expect_same_bits(exact, logits_of(path, {.memory = "min", .threads = 3, .exact = true}), "streamed");
    expect_same_bits(exact, logits_of(path, {.exact = true, .generated_at_once = 5}), "five rows at once");
    const std::vector<float> sparse = logits_of(path, {});
    if (rank == 0) {
      expect_same_bits(exact, sparse, "all gates are computed, so that no neuron is left out");
    } else {
      EXPECT_NE(exact, sparse) << "predictors had no say";
    }
    expect_same_bits(sparse, logits_of(path, {.memory = "min", .threads = 1, .io_uring = false}),
                     "one thread");
  }
  if (!f32) return;  // Others round the activated product to 8 bits where bundles do not.
  const std::vector<float> source = logits_of(model, {});
  ASSERT_EQ(source.size(), of_any_rank.size());
  for (size_t i = 0; i < source.size(); ++i) EXPECT_NEAR(source[i], of_any_rank[i], 3e-3F);
}

TEST(PackModel, SlimSiluPacksLeaveNothingOutWhereAllIsAskedFor) {
  const std::string model = fixture("llama-rope3-f32");
  const Folder folder;
  pack(model, folder.file("m.gguf"), 0, "f32", "cats:0.5", true);
  const std::vector<float> source = logits_of(model, {});
  const std::vector<float> exact = logits_of(folder.file("m.gguf"), {.memory = "min", .exact = true});
  const std::vector<float> sparse = logits_of(folder.file("m.gguf"), {});
  float most = 0;
  float lossy = 0;
  for (size_t i = 0; i < source.size(); ++i) {
    most = std::max(most, std::abs(source[i] - exact[i]));
    lossy = std::max(lossy, std::abs(source[i] - sparse[i]));
  }
  EXPECT_LE(most, 3e-3F);
  EXPECT_GT(lossy, 10 * most);
}

TEST(PackModel, SmallSiluActivationsAreLeftOutWhereAsked) {
  for (const char* name : {"llama-rope3-f32", "llama-q4_0", "olmoe-f32", "qwen3moe-f32"}) {
    const std::string model = fixture(name);
    if (model.empty()) continue;  // Only some are in a clone without the shared fixtures.
    const Folder folder;
    const std::string path = folder.file("m.gguf");
    const PackReport report = pack(model, path, 0, "f32", "cats:0.5");
    EXPECT_EQ(report.left_out, 0.5);
    for (const PackLayerReport& layer : report.layers) EXPECT_NEAR(layer.active, 0.5, 0.05) << name;
    const std::vector<float> source = logits_of(model, {});
    expect_same_bits(source, logits_of(path, {.exact = true}), "exact");
    expect_same_bits(source, logits_of(path, {.memory = "min", .exact = true}), "exact, streamed");
    const std::vector<float> half = logits_of(path, {});
    expect_same_bits(half, logits_of(path, {.memory = "min", .threads = 3}), "streamed");
    expect_same_bits(half, logits_of(path, {.generated_at_once = 5}), "five rows at once");
    // The fewer are left out, the nearer.
    pack(model, path, 0, "f32", "cats:0.0001");
    const std::vector<float> nearly_all = logits_of(path, {});
    double far = 0;
    double near = 0;
    for (size_t i = 0; i < source.size(); ++i) {
      far += static_cast<double>(std::abs(half[i] - source[i]));
      near += static_cast<double>(std::abs(nearly_all[i] - source[i]));
    }
    EXPECT_GT(far, 0) << "the sparse path was not taken";
    EXPECT_LT(near, far / 10) << name;
  }
}

TEST(PackModel, AsManySiluActivationsAreLeftOutAsTheDivergenceAllows) {
  const Folder folder;
  PackOptions options;
  options.model_path = fixture("llama-rope3-f32");
  options.output_path = folder.file("m.gguf");
  options.memory = "2G";
  options.tokens = 700;
  options.sparsify = "cats";
  double last = 2;
  for (const double divergence : {10.0, 0.0005}) {
    options.divergence = divergence;
    const Result<PackReport> report = pack_model(options, nullptr, nullptr);
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_LT(report.value().left_out, last);
    EXPECT_TRUE(report.value().divergence <= divergence || report.value().left_out == 0.1);
    last = report.value().left_out;
    EngineOptions engine;
    engine.model_path = options.output_path;
    engine.memory = "1G";
    const auto opened = Engine::open(engine);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    char name[16];
    std::snprintf(name, sizeof name, "cats:%.2f", report.value().left_out);
    EXPECT_EQ(opened.value()->plan().sparsity, name);
    ASSERT_FALSE(opened.value()->plan().notes.empty());
    EXPECT_NE(opened.value()->plan().notes.back().find("lossy"), std::string::npos);
  }
  for (const char* text : {"cats:", "cats:0", "cats:1", "cats:x", "dogs"}) {
    options.sparsify = text;
    EXPECT_EQ(pack_model(options, nullptr, nullptr).status().code(), Code::kInvalidArgument) << text;
  }
  options.sparsify = "cats:0.5";
  options.model_path = fixture("llama-relu-q4_0");
  EXPECT_EQ(pack_model(options, nullptr, nullptr).status().code(), Code::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Models, Pack,
                         testing::Values("llama-relu-q4_0", "llama-relu-q4_k_m", "llama-drelu-q4_0",
                                         "llama-relu-f32", "llama-drelu-f32", "llama-fatrelu-f32",
                                         "smallthinker-f32", "smallthinker-q8_0", "opt-f32", "opt-q4_0",
                                         "opt-unbiased-f32"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name;
                         });

TEST(PackModel, PredictorsFindTheMassThatWasAskedFor) {
  const Folder folder;
  const PackReport report = pack(fixture("llama-relu-q4_0"), folder.file("m.gguf"), 128, "q6");
  ASSERT_EQ(report.layers.size(), 2U);
  for (const PackLayerReport& layer : report.layers) {
    EXPECT_GT(layer.mass_recall, 0.97);
    EXPECT_NEAR(layer.active, 0.5, 0.05);
    EXPECT_LT(layer.over_prediction, 1.9) << "everything is predicted";
  }
}

std::vector<uint8_t> bytes_of(const format::GgufModel& model, const format::TensorInfo& tensor) {
  std::vector<uint8_t> bytes(tensor.bytes);
  std::ifstream in(model.shards()[tensor.shard].path, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(tensor.offset));
  in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

// A pack whose first layer is that of `first` and whose others are those of `rest`.
void write_mixed(const std::string& first, const std::string& rest, const std::string& path) {
  const format::GgufModel a = format::GgufModel::open(first).take();
  const format::GgufModel b = format::GgufModel::open(rest).take();
  format::GgufWriter writer(path, 4096);
  for (const auto& [key, value] : b.metadata().values()) {
    if (key == "general.alignment") continue;
    if (key != "ganglion.pack.rank" && key != "ganglion.pack.stride") {
      writer.add_value(key, value);
      continue;
    }
    std::vector<int32_t> numbers;
    const std::vector<double> of_rest = b.metadata().numbers(key).take();
    const std::vector<double> of_first = a.metadata().numbers(key).take();
    for (const double number : of_rest) numbers.push_back(static_cast<int32_t>(number));
    numbers[0] = static_cast<int32_t>(of_first[0]);
    writer.add_ints(key, numbers);
  }
  std::vector<std::pair<const format::GgufModel*, const format::TensorInfo*>> tensors;
  for (const format::GgufModel* model : {&a, &b}) {
    for (const format::TensorInfo& tensor : model->tensors()) {
      if ((tensor.name.rfind("blk.0.", 0) == 0) == (model == &a)) tensors.emplace_back(model, &tensor);
    }
  }
  for (const auto& [model, t] : tensors)
    writer.add_tensor(t->name, t->type, {t->dims, t->dims + t->dim_count});
  ASSERT_TRUE(writer.begin_data().ok());
  for (const auto& [model, t] : tensors) ASSERT_TRUE(writer.write(bytes_of(*model, *t)).ok());
  ASSERT_TRUE(writer.finish().ok());
}

// `path`: the model with `times` as many neurons, the same over and over.
void write_wide(const std::string& model, uint32_t times, const std::string& path) {
  const format::GgufModel source = format::GgufModel::open(model).take();
  format::GgufWriter writer(path, 4096);
  for (const auto& [key, value] : source.metadata().values()) {
    if (key == "general.alignment") continue;
    if (key == "llama.feed_forward_length") {
      writer.add_uint(key, times * static_cast<uint32_t>(source.metadata().uint_required(key).take()));
    } else {
      writer.add_value(key, value);
    }
  }
  const auto repeats = [&](const format::TensorInfo& t, const char* kind) {
    return t.name.find(kind) != std::string::npos ? times : 1;
  };
  for (const format::TensorInfo& t : source.tensors()) {
    std::vector<uint64_t> dims(t.dims, t.dims + t.dim_count);
    dims[0] *= repeats(t, "ffn_down");
    if (dims.size() > 1) dims[1] *= repeats(t, "ffn_gate.") * repeats(t, "ffn_up.");
    writer.add_tensor(t.name, t.type, dims);
  }
  ASSERT_TRUE(writer.begin_data().ok());
  for (const format::TensorInfo& t : source.tensors()) {
    const std::vector<uint8_t> bytes = bytes_of(source, t);
    const size_t row = bytes.size() / (t.dim_count > 1 ? t.dims[1] : 1);
    std::vector<uint8_t> wide;
    for (uint32_t i = 0; i < repeats(t, "ffn_gate.") * repeats(t, "ffn_up."); ++i) {
      for (size_t at = 0; at < bytes.size(); at += row) {
        for (uint32_t k = 0; k < repeats(t, "ffn_down"); ++k)
          wide.insert(wide.end(), bytes.begin() + static_cast<std::ptrdiff_t>(at),
                      bytes.begin() + static_cast<std::ptrdiff_t>(at + row));
      }
    }
    ASSERT_TRUE(writer.write(wide).ok());
  }
  ASSERT_TRUE(writer.finish().ok());
}

// More groups of neurons than passes of many rows have sums for, of all three sizes.
TEST(PackModel, ManyGroupsOfNeuronsAddUp) {
  const Folder folder;
  const std::string wide = folder.file("wide.gguf");
  write_wide(fixture("llama-fatrelu-f32"), 12, wide);
  pack(wide, folder.file("m.gguf"), 0, "f32");
  const std::vector<float> source = logits_of(wide, {});
  const std::vector<float> sparse = logits_of(folder.file("m.gguf"), {});
  ASSERT_EQ(source.size(), sparse.size());
  for (size_t i = 0; i < source.size(); ++i) ASSERT_NEAR(source[i], sparse[i], 3e-3);
  for (const char* memory : {"min", "1G"}) {
    expect_same_bits(sparse, logits_of(folder.file("m.gguf"), {.memory = memory, .threads = 3}), "threads");
    expect_same_bits(sparse, logits_of(folder.file("m.gguf"), {.memory = memory, .generated_at_once = 12}),
                     "twelve rows at once");
  }
  pack(wide, folder.file("predicted.gguf"), 32, "q6");
  const std::vector<float> predicted = logits_of(folder.file("predicted.gguf"), {});
  expect_same_bits(predicted, logits_of(folder.file("predicted.gguf"), {.threads = 1}), "one thread");
  for (const char* memory : {"min", "1G"})
    expect_same_bits(predicted,
                     logits_of(folder.file("predicted.gguf"), {.memory = memory, .generated_at_once = 12}),
                     "predicted");
}

TEST(PackModel, LayersWithAndWithoutPredictorsMix) {
  for (const char* name : {"llama-relu-q4_0", "opt-q4_0"}) {
    const Folder folder;
    pack(fixture(name), folder.file("gates.gguf"), 0, "q6");
    pack(fixture(name), folder.file("predicted.gguf"), 32, "q6");
    write_mixed(folder.file("gates.gguf"), folder.file("predicted.gguf"), folder.file("mixed.gguf"));
    const std::vector<float> all = logits_of(folder.file("mixed.gguf"), {});
    expect_same_bits(all, logits_of(folder.file("mixed.gguf"), {.memory = "min"}), "no neuron in memory");
    expect_same_bits(all, logits_of(folder.file("mixed.gguf"), {.parts = SparseParts::kClusterPipeline}),
                     "no look-ahead");
    expect_same_bits(logits_of(fixture(name), {}), logits_of(folder.file("mixed.gguf"), {.exact = true}),
                     "exact");
  }
}

std::vector<float> floats_of(const format::GgufModel& model, const std::string& name) {
  const format::TensorInfo& tensor = *model.find_tensor(name);
  EXPECT_EQ(tensor.type, base::TensorType::kF32);
  const std::vector<uint8_t> bytes = bytes_of(model, tensor);
  std::vector<float> values(tensor.elements());
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST(PackModel, BiasesOfGatesAreKeptInPackOrder) {
  const Folder folder;
  const format::GgufModel source = format::GgufModel::open(fixture("opt-f32")).take();
  for (const uint32_t rank : {0U, 32U}) {
    pack(fixture("opt-f32"), folder.file("m.gguf"), rank, "f16");
    const format::GgufModel packed = format::GgufModel::open(folder.file("m.gguf")).take();
    for (const std::string p : {"blk.0.", "blk.1."}) {
      const std::vector<float> given = floats_of(source, p + "ffn_up.bias");
      const std::vector<float> kept = floats_of(packed, p + "ffn_bundle_bias.weight");
      const std::vector<uint8_t> order = bytes_of(packed, *packed.find_tensor(p + "ffn_order.weight"));
      ASSERT_EQ(kept.size(), given.size());
      for (size_t i = 0; i < kept.size(); ++i) {
        int32_t neuron = 0;
        std::memcpy(&neuron, order.data() + i * sizeof neuron, sizeof neuron);
        ASSERT_EQ(kept[i], given[static_cast<size_t>(neuron)]) << p << " neuron " << i;
      }
      EXPECT_EQ(packed.find_tensor(p + "ffn_up.bias"), nullptr);
      EXPECT_EQ(packed.find_tensor(p + "ffn_up.weight"), nullptr);
      EXPECT_EQ(floats_of(packed, p + "ffn_down.bias"), floats_of(source, p + "ffn_down.bias"));
    }
  }
}

// Means of squares, of a and of b - a.
std::pair<double, double> mean_squares(const std::vector<float>& a, const std::vector<float>& b) {
  double of_a = 0;
  double of_difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto x = static_cast<double>(a[i]);
    const double d = static_cast<double>(b[i]) - x;
    of_a += x * x / static_cast<double>(a.size());
    of_difference += d * d / static_cast<double>(a.size());
  }
  return {of_a, of_difference};
}

TEST(PackModel, BiasesDecideWhichNeuronsFireAndArePredicted) {
  const Folder folder;
  const std::string path = folder.file("m.gguf");
  for (const auto& [name, active] : {std::pair{"opt-f32", 0.19}, {"opt-unbiased-f32", 0.5}}) {
    // As many components as gates have, so that what predictors miss is their own rounding.
    const PackReport report = pack(fixture(name), path, 64, "f32");
    for (const PackLayerReport& layer : report.layers) {
      EXPECT_NEAR(layer.active, active, 0.04) << name;
      EXPECT_GT(layer.mass_recall, 0.98) << name;
      EXPECT_LT(layer.over_prediction, 1.5) << name;
    }
    const std::vector<float> source = logits_of(fixture(name), {});
    const auto [all, missed] = mean_squares(source, logits_of(path, {}));
    EXPECT_GT(missed, 0) << name;
    EXPECT_LT(missed, 1e-3 * all) << name;
  }
}

// The model with a predictor in each layer, as TurboSparse has them, that knows the gates exactly.
void write_with_predictors(const std::string& model, const std::string& path, size_t extra = 0) {
  const format::GgufModel source = format::GgufModel::open(model).take();
  format::GgufWriter writer(path);
  for (const auto& [key, value] : source.metadata().values()) {
    if (key != "general.alignment") writer.add_value(key, value);
  }
  for (const format::TensorInfo& t : source.tensors())
    writer.add_tensor(t.name, t.type, {t.dims, t.dims + t.dim_count});
  std::vector<std::vector<float>> factors;
  for (size_t layer = 0;; ++layer) {
    const std::string p = "blk." + std::to_string(layer) + ".";
    const format::TensorInfo* gate = source.find_tensor(p + "ffn_gate.weight");
    if (gate == nullptr) break;
    const std::vector<float> gates = floats_of(source, gate->name);
    const std::vector<float> norm = floats_of(source, p + "ffn_norm.weight");
    calibration::CarriedForTest carried(gates, norm, extra);
    const size_t units = 2 * carried.neurons;
    writer.add_tensor(p + "ffn_predictor_fc1.weight", base::TensorType::kF32, {carried.dim, units});
    writer.add_tensor(p + "ffn_predictor_fc2.weight", base::TensorType::kF32,
                      {units, carried.neurons + extra});
    factors.push_back(std::move(carried.fc1));
    factors.push_back(std::move(carried.fc2));
  }
  ASSERT_TRUE(writer.begin_data().ok());
  for (const format::TensorInfo& t : source.tensors()) ASSERT_TRUE(writer.write(bytes_of(source, t)).ok());
  for (const std::vector<float>& values : factors)
    ASSERT_TRUE(
        writer.write({reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)}).ok());
  ASSERT_TRUE(writer.finish().ok());
}

TEST(PackModel, PredictorsThatTheModelCarriesAreUsedWhereTheyCostLess) {
  const Folder folder;
  const std::string model = folder.file("carries.gguf");
  write_with_predictors(fixture("llama-fatrelu-f32"), model);
  PackOptions options;
  options.model_path = model;
  options.output_path = folder.file("m.gguf");
  options.memory = "2G";
  options.tokens = 700;
  options.random_tokens = true;
  options.predictor = "mlp";
  const Result<PackReport> carried = pack_model(options, nullptr, nullptr);
  ASSERT_TRUE(carried.ok()) << carried.status().message();
  EXPECT_EQ(carried.value().carried, carried.value().layers.size());
  for (const PackLayerReport& layer : carried.value().layers) {
    EXPECT_GE(layer.mass_recall, 0.99);
    EXPECT_LT(layer.over_prediction, 1.1);
  }
  // No other tensors than the pack's own: their factors are in it already.
  EXPECT_EQ(format::GgufModel::open(options.output_path).take().find_tensor("blk.0.ffn_predictor_fc1.weight"),
            nullptr);
  const std::vector<float> all = logits_of(options.output_path, {});
  expect_same_bits(all, logits_of(options.output_path, {.memory = "min", .generated_at_once = 5}),
                   "five rows at once");
  expect_same_bits(logits_of(model, {}), logits_of(options.output_path, {.exact = true}), "exact");
  // This one has a rank of twice the neurons, which costs more than computing all gates.
  options.predictor = "auto";
  const Result<PackReport> judged = pack_model(options, nullptr, nullptr);
  ASSERT_TRUE(judged.ok()) << judged.status().message();
  EXPECT_EQ(judged.value().carried, 0U);
}

TEST(PackModel, CarriedPredictorsAreRefusedWhereTheyAreWrongOrMissing) {
  const Folder folder;
  write_with_predictors(fixture("llama-fatrelu-f32"), folder.file("wrong.gguf"), 1);
  PackOptions options;
  options.output_path = folder.file("m.gguf");
  options.tokens = 100;
  options.random_tokens = true;
  const auto refusal = [&](const std::string& model, const std::string& predictor) {
    options.model_path = model;
    options.predictor = predictor;
    const Result<PackReport> report = pack_model(options, nullptr, nullptr);
    EXPECT_FALSE(report.ok());
    return report.status().message();
  };
  EXPECT_NE(refusal(folder.file("wrong.gguf"), "svd").find("ffn_predictor_fc2"), std::string::npos);
  EXPECT_NE(refusal(fixture("llama-relu-q4_0"), "mlp").find("carries no predictor"), std::string::npos);
  EXPECT_NE(refusal(fixture("llama-relu-q4_0"), "guess").find("no kind of predictor"), std::string::npos);
}

TEST(PackModel, KeepsTheVocabularyWhenItCalibratesOnText) {
  const Folder folder;
  std::ofstream(folder.file("t.txt")) << std::string(2000, 'a') + " and some words";
  PackOptions options;
  options.model_path = fixture("llama-relu-q4_0");
  options.output_path = folder.file("m.gguf");
  options.text_path = folder.file("t.txt");
  options.rank = 32;
  const Result<PackReport> report = pack_model(options, nullptr, nullptr);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_GT(report.value().tokens, 100U);
  const auto source = TextModel::open(options.model_path);
  const auto packed = TextModel::open(options.output_path);
  ASSERT_TRUE(packed.ok()) << packed.status().message();
  EXPECT_EQ(packed.value()->encode("some words", true, true).value(),
            source.value()->encode("some words", true, true).value());
}

// Defaults, but for fewer tokens.
PackReport pack_on_text(const std::string& model, const std::string& output, std::optional<uint32_t> rank,
                        double divergence) {
  PackOptions options;
  options.model_path = model;
  options.output_path = output;
  options.memory = "2G";
  options.tokens = 700;
  options.rank = rank;
  options.divergence = divergence;
  Result<PackReport> report = pack_model(options, nullptr, nullptr);
  EXPECT_TRUE(report.ok()) << report.status().message();
  return report.ok() ? report.take() : PackReport{};
}

TEST(PackModel, DefaultsStayNearExactPasses) {
  const Folder folder;
  // Rounding activations to 8 bits moves some of the likely tokens of tiny quantised models by itself.
  const struct {
    const char* name;
    double same_top;
    const char* down;
  } models[] = {{"llama-relu-f32", 0.98, "f16"},
                {"llama-drelu-f32", 0.98, "f16"},
                {"smallthinker-f32", 0.98, "f16"},
                {"opt-f32", 0.98, "f16"},
                {"llama-relu-q4_0", 0.93, "q8"}};  // A narrow one: 8 bits at least.
  for (const auto& expected : models) {
    const std::string model = fixture(expected.name);
    if (model.empty()) continue;  // Only some are in a clone without the shared fixtures.
    const PackReport report = pack_on_text(model, folder.file("m.gguf"), std::nullopt, 0.0007);
    EXPECT_GE(report.judged_tokens, 128U) << expected.name;
    EXPECT_LT(report.divergence, 0.01) << expected.name;
    EXPECT_GT(report.same_top, expected.same_top) << expected.name;
    EXPECT_EQ(report.down, expected.down) << expected.name;
  }
}

TEST(PackModel, RecallIsRaisedUntilTheDivergenceIsKept) {
  const Folder folder;
  const std::string model = fixture("llama-relu-f32");
  if (model.empty()) GTEST_SKIP() << "SKIPPED: llama-relu-f32 is only in the shared fixtures";
  const PackReport loose = pack_on_text(model, folder.file("l.gguf"), 32, 10);
  const PackReport tight = pack_on_text(model, folder.file("t.gguf"), 32, loose.divergence / 4);
  EXPECT_EQ(loose.least_divergence, 0) << "measured although it was not needed";
  EXPECT_GT(tight.least_divergence, 0);
  EXPECT_LE(tight.divergence, std::max(loose.divergence / 4, 1.5 * tight.least_divergence));
  for (size_t i = 0; i < loose.layers.size(); ++i) {
    EXPECT_GT(tight.layers[i].mass_recall, loose.layers[i].mass_recall);
    EXPECT_GT(tight.layers[i].over_prediction, loose.layers[i].over_prediction);
  }
  // The file has what the report says.
  const auto file = format::GgufModel::open(folder.file("t.gguf"));
  ASSERT_TRUE(file.ok());
  EXPECT_FLOAT_EQ(static_cast<float>(file.value().metadata().find("ganglion.pack.divergence")->float_value),
                  static_cast<float>(tight.divergence));
  EXPECT_GT(file.value().metadata().find("ganglion.pack.recall")->float_value, 0.99);
}

TEST(PackModel, RefusesWhatIsNotSparseOrAPackAlreadyAndLeavesNothingBehind) {
  const Folder folder;
  PackOptions options;
  options.model_path = fixture("llama-q4_0");
  options.output_path = folder.file("m.gguf");
  Result<PackReport> report = pack_model(options, nullptr, nullptr);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), Code::kUnsupported);
  options.overrides = {{"ganglion.ffn.activation", "str:relu"}};
  options.model_path = fixture("llama-bias-f32");
  report = pack_model(options, nullptr, nullptr);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), Code::kUnsupported);
  EXPECT_NE(report.status().message().find("a gate and biases"), std::string::npos);
  options.overrides.clear();
  options.model_path = fixture("llama-relu-q4_0");
  report = pack_model(
      options, [](void*, const char*, uint64_t done, uint64_t) { return done == 0; }, nullptr);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), Code::kCancelled);
  EXPECT_TRUE(fs::is_empty(folder.path())) << "interrupted packing left files";
  pack(options.model_path, folder.file("p.gguf"), 32, "q6");
  options.model_path = folder.file("p.gguf");
  EXPECT_EQ(pack_model(options, nullptr, nullptr).status().code(), Code::kInvalidArgument);
}

TEST(PackModel, ThresholdsOfGatesAreCheckedAndPacked) {
  const Folder folder;
  EngineOptions options;
  options.model_path = fixture("llama-fatrelu-f32");
  for (const char* bad : {"-0.1", "nan", "inf", "str:much"}) {
    options.overrides = {{"ganglion.ffn.threshold", bad}};
    const auto engine = Engine::open(options);
    EXPECT_FALSE(engine.ok()) << bad;
  }
  options.overrides = {{"ganglion.ffn.activation", "drelu"}};
  EXPECT_EQ(Engine::open(options).status().code(), Code::kUnsupported);
  // Families that would compute without it say so.
  options.model_path = fixture("smallthinker-f32");
  options.overrides = {{"ganglion.ffn.threshold", "0.1"}};
  EXPECT_EQ(Engine::open(options).status().code(), Code::kUnsupported);
  options.model_path = fixture("llama-fatrelu-f32");
  // Fewer neurons fire than with a plain ReLU.
  const PackReport high = pack(options.model_path, folder.file("m.gguf"), 32, "q6");
  ASSERT_EQ(high.layers.size(), 2U);
  for (const PackLayerReport& layer : high.layers) EXPECT_NEAR(layer.active, 0.34, 0.06);
}

// Overwrites bytes of a tensor in a copy, and returns what opening says.
// With `verify`, what loading says that compares bundles with their checksums.
std::string open_damaged(const std::string& path, const std::string& tensor, uint64_t at, const void* bytes,
                         size_t count, bool verify = false) {
  const auto file = format::GgufModel::open(path);
  EXPECT_TRUE(file.ok());
  const std::string copy = path + ".damaged";
  fs::copy_file(path, copy, fs::copy_options::overwrite_existing);
  std::fstream out(copy, std::ios::in | std::ios::out | std::ios::binary);
  out.seekp(static_cast<std::streamoff>(file.value().find_tensor(tensor)->offset + at));
  out.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(count));
  out.close();
  EngineOptions options;
  options.model_path = copy;
  options.verify_bundles = verify;
  const auto engine = Engine::open(options);
  if (engine.ok() && verify) return std::string(engine.value()->load(nullptr, nullptr).message());
  return engine.ok() ? "opened" : std::string(engine.status().message());
}

TEST(PackModel, ADamagedDownRowIsCalledOneWhereBundlesHoldNoUp) {
  const Folder folder;
  const std::string path = folder.file("m.gguf");
  const float odd = 7;
  for (const uint32_t rank : {0U, 32U}) {
    pack(fixture("opt-f32"), path, rank, "f16");
    const std::string said =
        open_damaged(path, "blk.1.ffn_bundle.weight", rank > 0 ? 300 : 40, &odd, 4, true);
    EXPECT_NE(said.find("layer 1, expert 0, neuron 0 "), std::string::npos) << said;
    EXPECT_NE(said.find("checksum of its down row is"), std::string::npos) << said;
  }
  pack(fixture("llama-relu-q4_0"), path, 0, "q6");
  const std::string said = open_damaged(path, "blk.1.ffn_bundle.weight", 40, &odd, 4, true);
  EXPECT_NE(said.find("checksum of its up and down rows is"), std::string::npos) << said;
}

TEST(PackModel, DamagedOrdersAndFrequenciesAreRefusedByName) {
  const Folder folder;
  const std::string path = folder.file("m.gguf");
  pack(fixture("llama-relu-q4_0"), path, 32, "q6");
  const int32_t beyond = 512;
  const float odd = 7;
  EXPECT_NE(open_damaged(path, "blk.0.ffn_order.weight", 40, &beyond, 4).find("ffn_order"),
            std::string::npos);
  EXPECT_NE(open_damaged(path, "blk.1.ffn_frequency.weight", 40, &odd, 4).find("ffn_frequency"),
            std::string::npos);
  EngineOptions options;
  options.model_path = path;
  options.overrides = {{"ganglion.pack.down", "q5"}};
  EXPECT_EQ(Engine::open(options).status().code(), Code::kModelFile);
  options.overrides = {{"ganglion.pack.version", "1"}};
  EXPECT_EQ(Engine::open(options).status().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace ganglion
