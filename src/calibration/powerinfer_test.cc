// PowerInfer models, which the test makes of the plain fixtures: packed, they compute what the fixtures'
// references say; nothing else runs them; damaged ones are refused.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "calibration/carried_for_test.h"
#include "calibration/plain_copy.h"
#include "format/gguf.h"
#include "format/gguf_writer.h"
#include "ganglion/calibration.h"
#include "ganglion/convert.h"
#include "ganglion/engine.h"
#include "ganglion/inspect.h"
#include "ganglion/pack.h"
#include "kernels/kernel_table.h"
#include "platform/file.h"

namespace ganglion {
namespace {

namespace fs = std::filesystem;
using base::TensorType;
using format::GgufModel;
using format::TensorInfo;

std::string fixture(const std::string& name, const char* extension = ".gguf") {
  return (fs::path(GANGLION_FIXTURES) / "models" / (name + extension)).string();
}

std::vector<uint8_t> bytes_of(const GgufModel& model, const TensorInfo& tensor) {
  std::vector<uint8_t> bytes(tensor.bytes);
  const auto file = platform::File::open(model.shards()[tensor.shard].path);
  EXPECT_TRUE(file.ok() && file.value().read_exact(tensor.offset, bytes).ok());
  return bytes;
}

std::vector<float> floats_of(const GgufModel& model, const TensorInfo& tensor) {
  std::vector<float> values(tensor.elements());
  kernels::select_table("")->dequantize[static_cast<size_t>(tensor.type)](bytes_of(model, tensor).data(),
                                                                          values.size(), values.data());
  return values;
}

// What a file of the test is made like.
struct Made {
  std::string architecture = "llama";
  std::optional<TensorType> matrices = {};  // as the fixture has them, or dequantised to F32
  TensorType down = TensorType::kF32;       // of the transposed down matrices: F32, F16, BF16 or Q4_0
  bool keeps_keys = false;                  // ganglion.*
  bool predictors = false;
  bool plain = false;                             // the same weights as an ordinary model
  bool untransposed = false;                      // down matrices have the name and not the shape
  std::function<void(std::string&)> rename = {};  // damage
};

std::vector<uint8_t> encode(TensorType type, const std::vector<float>& values) {
  std::vector<uint8_t> out(base::row_bytes(type, values.size()));
  if (type == TensorType::kF32) std::memcpy(out.data(), values.data(), out.size());
  for (size_t i = 0; i < values.size() && type == TensorType::kBF16; ++i)
    std::memcpy(out.data() + 2 * i, reinterpret_cast<const uint8_t*>(&values[i]) + 2, 2);
  if (type == TensorType::kF16)
    kernels::quantize_down_row(kernels::DownType::kF16, values.data(), values.size(), out.data());
  if (type == TensorType::kQ4_0)  // The same blocks.
    kernels::quantize_down_row(kernels::DownType::kQ4, values.data(), values.size(), out.data());
  return out;
}

std::vector<float> transposed(const std::vector<float>& in, size_t rows) {
  const size_t cols = in.size() / rows;
  std::vector<float> out(in.size());
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < cols; ++c) out[c * rows + r] = in[r * cols + c];
  }
  return out;
}

class Maker {
 public:
  Maker(const std::string& model, const Made& made) : made_(made), source_(GgufModel::open(model).take()) {}

  void write(const std::string& path) {
    for (const TensorInfo& tensor : source_.tensors()) add(tensor);
    if (made_.predictors) add_predictors();
    format::GgufWriter writer(path);
    add_keys(&writer);
    for (const Tensor& t : tensors_) writer.add_tensor(t.name, t.type, t.dims);
    ASSERT_TRUE(writer.begin_data().ok());
    for (const Tensor& t : tensors_) ASSERT_TRUE(writer.write(t.bytes).ok());
    ASSERT_TRUE(writer.finish().ok());
    if (made_.plain) return;
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file << "PWRI";
  }

 private:
  struct Tensor {
    std::string name;
    TensorType type;
    std::vector<uint64_t> dims;
    std::vector<uint8_t> bytes;
  };

  void add_keys(format::GgufWriter* writer) const {
    const bool relu = made_.plain && made_.architecture == "llama";
    for (const auto& [key, value] : source_.metadata().values()) {
      const bool own = key.rfind("ganglion.", 0) == 0;
      if (key == "general.alignment" || key == "general.architecture" || (own && !made_.keeps_keys)) continue;
      const bool renamed = key.rfind("llama.", 0) == 0;
      base::Value changed = value;
      if (key == "opt.context_length") changed.uint_value += 2;
      writer->add_value(renamed ? made_.architecture + key.substr(5) : key, changed);
    }
    writer->add_string("general.architecture", made_.architecture);
    writer->add_float("powerinfer.sparse_threshold", 0.5F);
    if (relu && !made_.keeps_keys) writer->add_string("ganglion.ffn.activation", "relu");
  }

  void add(const TensorInfo& tensor) {
    Tensor t = {tensor.name, tensor.type, {tensor.dims, tensor.dims + tensor.dim_count}, {}};
    const size_t at = t.name.find("ffn_down.weight");
    if (at != std::string::npos) {
      const uint64_t dim = tensor.dims[1];
      std::vector<float> rows = transposed(floats_of(source_, tensor), dim);  // [F] of D
      t.type = made_.down;
      t.bytes = encode(t.type, rows);
      if (made_.plain) {  // What the file holds, not what it was made of.
        std::vector<float> held(rows.size());
        kernels::select_table("")->dequantize[static_cast<size_t>(t.type)](t.bytes.data(), held.size(),
                                                                           held.data());
        t.type = TensorType::kF32;
        t.bytes = encode(t.type, transposed(held, tensor.dims[0]));
      } else {
        if (!made_.untransposed) t.dims = {dim, tensor.dims[0]};
        t.name.replace(at, std::string::npos, "ffn_down_t.weight");
      }
    } else if (t.name == "position_embd.weight") {
      std::vector<float> values = floats_of(source_, tensor);
      values.insert(values.begin(), 2 * tensor.dims[0], 9.0F);
      t.dims[1] += 2;
      t.bytes = encode(t.type, values);
    } else if (tensor.dim_count > 1 && made_.matrices.has_value()) {
      t.type = *made_.matrices;
      t.bytes = encode(t.type, floats_of(source_, tensor));
    } else {
      t.bytes = bytes_of(source_, tensor);
    }
    if (made_.architecture == "opt" && t.name.find("ffn_down.bias") != std::string::npos)
      t.name.replace(t.name.find("down"), 4, "down_t");
    if (made_.rename) made_.rename(t.name);
    tensors_.push_back(std::move(t));
  }

  void add_predictors() {
    if (made_.architecture == "opt") {  // Of no use.
      tensors_.push_back({"blk.0.fc1.weight", TensorType::kF32, {32}, std::vector<uint8_t>(128)});
      tensors_.push_back({"blk.1.fc2.weight", TensorType::kF32, {32}, std::vector<uint8_t>(128)});
      return;
    }
    for (size_t layer = 0;; ++layer) {
      const std::string p = "blk." + std::to_string(layer) + ".";
      const TensorInfo* gate = source_.find_tensor(p + "ffn_gate.weight");
      if (gate == nullptr) return;
      const std::vector<float> gates = floats_of(source_, *gate);
      const std::vector<float> norm = floats_of(source_, *source_.find_tensor(p + "ffn_norm.weight"));
      const calibration::CarriedForTest carried(gates, norm);
      tensors_.push_back({p + "fc1.weight",
                          TensorType::kF32,
                          {carried.dim, 2 * carried.neurons},
                          encode(TensorType::kF32, carried.fc1)});
      tensors_.push_back({p + "fc2.weight",
                          TensorType::kF32,
                          {2 * carried.neurons, carried.neurons},
                          encode(TensorType::kF32, carried.fc2)});
    }
  }

  const Made& made_;
  GgufModel source_;
  std::vector<Tensor> tensors_;
};

class AllLogits final : public LogitSink {
 public:
  void logits(size_t position, std::span<const float> values) override {
    if (rows.size() <= position) rows.resize(position + 1);
    rows[position].assign(values.begin(), values.end());
  }
  std::vector<std::vector<float>> rows;
};

class PowerInfer : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("ganglion_powerinfer_test_" + std::to_string(::getpid()));
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string file(const std::string& name) const { return (root_ / name).string(); }
  std::string make(const std::string& model, const Made& made,
                   const std::string& name = "source.gguf") const {
    Maker(fs::exists(model) ? model : fixture(model), made).write(file(name));
    return file(name);
  }

  PackOptions options(const std::string& model, const std::string& output = "m.gguf") const {
    PackOptions options;
    options.model_path = model;
    options.output_path = file(output);
    options.memory = "2G";
    options.tokens = 300;
    options.random_tokens = true;
    options.rank = 32;
    return options;
  }
  PackReport pack(const PackOptions& options) const {
    Result<PackReport> report = pack_model(options, nullptr, nullptr);
    EXPECT_TRUE(report.ok()) << report.status().message();
    EXPECT_FALSE(fs::exists(options.output_path + ".plain"));
    return report.ok() ? report.take() : PackReport{};
  }

  // A prompt, then tokens as a generation would evaluate them.
  static std::vector<std::vector<float>> logits(const std::string& path, const std::vector<int32_t>& tokens,
                                                bool exact) {
    EngineOptions options;
    options.model_path = path;
    options.memory = "1G";
    options.kv_type = "f32";
    options.threads = 2;
    options.logit_rows = 4;
    options.exact = exact;
    auto engine = Engine::open(options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    if (!engine.ok()) return {};
    EXPECT_TRUE(engine.value()->load(nullptr, nullptr).ok());
    const auto session = engine.value()->new_session().take();
    AllLogits all;
    const std::span<const int32_t> span = tokens;
    const size_t prompt = exact ? span.size() : 5;
    EXPECT_TRUE(session->evaluate(span.first(prompt), nullptr, &all).ok());
    for (size_t i = prompt; i < span.size(); ++i)
      EXPECT_TRUE(session->evaluate(span.subspan(i, 1), nullptr, &all, Phase::kGeneration).ok());
    return all.rows;
  }

  static nlohmann::json facts(const std::string& model) {
    std::ifstream in(fixture(model, ".json"));
    return nlohmann::json::parse(in)["long"];
  }

  // Exact passes against the reference of a fixture, whose weights it had as floats.
  static double off_the_reference(const std::string& path, const std::string& model) {
    const nlohmann::json golden = facts(model);
    std::ifstream in(fixture(golden["logits_file"].get<std::string>(), ""), std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    std::vector<float> expected(bytes.size() / sizeof(float));
    std::memcpy(expected.data(), bytes.data(), bytes.size());
    const auto all = logits(path, golden["tokens"].get<std::vector<int32_t>>(), true);
    double worst = 0;
    size_t at = 0;
    for (const size_t position : golden["positions"].get<std::vector<size_t>>()) {
      for (const float logit : all.at(position))
        worst =
            std::max(worst, std::abs(static_cast<double>(logit) - static_cast<double>(expected.at(at++))));
    }
    EXPECT_EQ(at, expected.size());
    return worst;
  }

  void expect_refused(const std::string& model, const std::string& word) const {
    const Result<PackReport> report = pack_model(options(model), nullptr, nullptr);
    ASSERT_FALSE(report.ok()) << word;
    EXPECT_NE(report.status().message().find(word), std::string::npos) << report.status().message();
    EXPECT_EQ(report.status().message().find('\n'), std::string::npos);
    for (const char* left : {"m.gguf", "m.gguf.part", "m.gguf.plain", "m.gguf.plain.part", "m.gguf.packing"})
      EXPECT_FALSE(fs::exists(file(left))) << left;
  }

  fs::path root_;
};

// The magic alone says that gates are rectified, the architecture that ups are, too.
TEST_F(PowerInfer, PacksComputeWhatTheReferencesSay) {
  const Made relu = {.matrices = TensorType::kF32};
  pack(options(make("llama-relu-q4_0", relu)));
  EXPECT_LE(off_the_reference(file("m.gguf"), "llama-relu-q4_0"), 1e-4);
  const Made drelu = {.architecture = "bamboo", .matrices = TensorType::kF32};
  pack(options(make("llama-drelu-q4_0", drelu)));
  EXPECT_LE(off_the_reference(file("m.gguf"), "llama-drelu-q4_0"), 1e-4);
}

// With a key of its own, FATReLU's threshold, which stays.
TEST_F(PowerInfer, PacksAreThoseOfThePlainModel) {
  const std::vector<int32_t> tokens = {1, 17, 9, 200, 33, 5, 4, 7, 250, 19, 88, 101, 3, 64, 12};
  Made made = {.keeps_keys = true};
  pack(options(make("llama-fatrelu-f32", made), "own.pack.gguf"));
  made.plain = true;
  const std::string plain = make("llama-fatrelu-f32", made, "plain.gguf");
  pack(options(plain, "plain.pack.gguf"));
  EXPECT_EQ(logits(file("own.pack.gguf"), tokens, false), logits(file("plain.pack.gguf"), tokens, false));
  EXPECT_EQ(logits(file("own.pack.gguf"), tokens, true), logits(plain, tokens, true));
  EXPECT_LE(off_the_reference(file("own.pack.gguf"), "llama-fatrelu-f32"), 1e-4);
  // Where the file has no such key, as published ones, an override says it.
  PackOptions overridden = options(make("llama-fatrelu-f32", {}), "told.pack.gguf");
  overridden.overrides = {{"ganglion.ffn.threshold", "0.4"}};
  pack(overridden);
  EXPECT_LE(off_the_reference(file("told.pack.gguf"), "llama-fatrelu-f32"), 1e-4);
}

TEST_F(PowerInfer, ElementsThatStandAloneAreTransposedExactly) {
  for (const TensorType type : {TensorType::kF16, TensorType::kBF16}) {
    const std::string source = make("llama-fatrelu-f32", {.down = type, .keeps_keys = true});
    const PackReport report = pack(options(source));
    EXPECT_EQ(report.down, "f16");
    EXPECT_EQ(report.source_note.find("rounded"), std::string::npos) << report.source_note;
    const GgufModel from = GgufModel::open(source).take();
    const GgufModel to = GgufModel::open(file("m.gguf")).take();
    const TensorInfo& down_t = *from.find_tensor("blk.1.ffn_down_t.weight");
    const TensorInfo& down = *to.find_tensor("blk.1.ffn_down.weight");
    EXPECT_EQ(down.type, type);
    ASSERT_EQ(down.dims[0], down_t.dims[1]);
    ASSERT_EQ(down.dims[1], down_t.dims[0]);
    EXPECT_EQ(floats_of(to, down), transposed(floats_of(from, down_t), down_t.dims[1]));
  }
}

TEST_F(PowerInfer, RowsOfQ4BecomeTheBundlesAsTheyAre) {
  const Made made = {.matrices = TensorType::kF32, .down = TensorType::kQ4_0};
  const std::string source = make("llama-relu-q4_0", made);
  const PackReport report = pack(options(source));
  EXPECT_EQ(report.down, "q4");
  EXPECT_NE(report.source_note.find("F16, rounded from Q4_0"), std::string::npos) << report.source_note;
  const GgufModel from = GgufModel::open(source).take();
  const GgufModel to = GgufModel::open(file("m.gguf")).take();
  EXPECT_FALSE(to.powerinfer());
  for (const char* layer : {"blk.0.", "blk.1."}) {
    const TensorInfo& down = *from.find_tensor(std::string(layer) + "ffn_down_t.weight");
    const TensorInfo& bundles = *to.find_tensor(std::string(layer) + "ffn_bundle.weight");
    const std::vector<uint8_t> rows = bytes_of(from, down);
    const std::vector<uint8_t> packed = bytes_of(to, bundles);
    const std::vector<uint8_t> order_bytes =
        bytes_of(to, *to.find_tensor(std::string(layer) + "ffn_order.weight"));
    std::vector<int32_t> order(down.dims[1]);
    std::memcpy(order.data(), order_bytes.data(), order_bytes.size());
    const size_t row = base::row_bytes(TensorType::kQ4_0, down.dims[0]);
    const size_t at = 2 * base::row_bytes(TensorType::kF32, down.dims[0]);  // Behind gate and up.
    for (size_t i = 0; i < order.size(); ++i) {
      ASSERT_EQ(std::memcmp(packed.data() + i * bundles.dims[0] + at,
                            rows.data() + static_cast<size_t>(order[i]) * row, row),
                0)
          << layer << i;
    }
  }
  // Exact passes: as near as halves are.
  Made same = made;
  same.plain = true;
  const std::vector<int32_t> tokens = {1, 17, 9, 200, 33, 5, 4, 7, 250, 19};
  const auto expected = logits(make("llama-relu-q4_0", same, "plain.gguf"), tokens, true);
  const auto exact = logits(file("m.gguf"), tokens, true);
  ASSERT_EQ(exact.size(), expected.size());
  for (size_t p = 0; p < exact.size(); ++p) {
    for (size_t i = 0; i < exact[p].size(); ++i) EXPECT_NEAR(exact[p][i], expected[p][i], 1e-2);
  }
}

TEST_F(PowerInfer, ItsPredictorsCanBeUsed) {
  PackOptions carried = options(make("llama-relu-q4_0", {.predictors = true}));
  carried.rank.reset();
  carried.predictor = "mlp";
  const PackReport report = pack(carried);
  EXPECT_EQ(report.carried, report.layers.size());
  for (const PackLayerReport& layer : report.layers) EXPECT_GE(layer.mass_recall, 0.99);
  EXPECT_EQ(GgufModel::open(file("m.gguf")).take().find_tensor("blk.0.fc1.weight"), nullptr);
  carried.model_path = make("llama-relu-q4_0", {});
  EXPECT_FALSE(pack_model(carried, nullptr, nullptr).ok());
}

// Positions lose their unused rows, biases get their name back, predictors are left out.
TEST_F(PowerInfer, PlainCopiesOfOptAreTheModel) {
  const fs::path directory = fs::path(GANGLION_SHARED_FIXTURES) / "hf" / "opt";
  if (!fs::exists(directory)) GTEST_SKIP() << "NOT TESTED: " << directory << " is not beside this repository";
  const std::string model = file("opt.gguf");
  ASSERT_TRUE(convert_model(
                  {.directory = directory.string(), .output_path = model, .type = "f32", .pre_tokenizer = ""},
                  nullptr, nullptr)
                  .ok());
  const std::string source = make(model, {.architecture = "opt", .predictors = true});
  const auto verdicts = verify_model(source, {}, nullptr, nullptr);
  ASSERT_TRUE(verdicts.ok());
  EXPECT_TRUE(verdicts.value().back().status.ok()) << verdicts.value().back().status.message();
  const auto plain = calibration::PlainCopy::make(options(source), nullptr, nullptr);
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  const std::vector<int32_t> tokens = {1, 17, 9, 200, 33, 5, 4, 7, 250, 19};
  EXPECT_EQ(logits(plain.value().path(), tokens, true), logits(model, tokens, true));
  EXPECT_EQ(GgufModel::open(plain.value().path()).take().find_tensor("blk.0.fc1.weight"), nullptr);
  const auto swap_names = [](std::string& name) {
    if (name == "position_embd.weight") name = "gone";
    if (name == "output_norm.bias") name = "position_embd.weight";
  };
  const std::string damaged = make(model, {.architecture = "opt", .rename = swap_names});
  const auto refused = calibration::PlainCopy::make(options(damaged), nullptr, nullptr);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("is no table of positions"), std::string::npos);
}

TEST_F(PowerInfer, NothingElseRunsThem) {
  const std::string source = make("llama-relu-q4_0", {.predictors = true});
  EngineOptions engine;
  engine.model_path = source;
  CalibrateOptions calibrate;
  calibrate.model_path = source;
  calibrate.output_path = file("c.gguf");
  for (const Status& status :
       {Engine::open(engine).status(), calibrate_model(calibrate, nullptr, nullptr).status()}) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(exit_code(status.code()), 3);
    EXPECT_NE(status.message().find("ganglion pack -m " + source), std::string::npos) << status.message();
  }
  const auto contents = inspect_model(source);
  ASSERT_TRUE(contents.ok());
  EXPECT_TRUE(contents.value().shards[0].powerinfer);
  const auto verdicts = verify_model(source, {}, nullptr, nullptr);
  ASSERT_TRUE(verdicts.ok());
  for (const ShardVerdict& verdict : verdicts.value())
    EXPECT_TRUE(verdict.status.ok()) << verdict.status.message();
}

TEST_F(PowerInfer, DamagedOnesAreRefusedByPackAndVerify) {
  const auto renamed = [&](const std::string& from, const std::string& to) {
    return make("llama-relu-q4_0", {.rename = [from, to](std::string& name) {
                  if (name == from) name = to;
                }});
  };
  const auto expect_both = [&](const std::string& model, const std::string& word) {
    expect_refused(model, word);
    const auto verdicts = verify_model(model, {}, nullptr, nullptr);
    ASSERT_TRUE(verdicts.ok());
    EXPECT_NE(verdicts.value().back().status.message().find(word), std::string::npos);
  };
  expect_both(renamed("blk.0.ffn_down_t.weight", "blk.0.ffn_gone.weight"),
              "'blk.0.ffn_down.weight' is missing");
  expect_both(make("llama-relu-q4_0", {.untransposed = true}),
              "'blk.0.ffn_down.weight' has shape [256, 512]");
  expect_refused(renamed("blk.1.ffn_up.weight", "blk.1.ffn_down.weight"), "are both there");
  expect_refused(make("llama-relu-q4_0", {.architecture = "falcon"}), "'falcon' are not supported");
  expect_refused(renamed("blk.1.ffn_norm.weight", "blk.2.ffn_down_t.weight"), "[256] is no matrix");
  const std::string source = make("llama-relu-q4_0", {});
  fs::resize_file(source, fs::file_size(source) - 1000);
  expect_refused(source, "truncated");
}

TEST_F(PowerInfer, LeavesNothingWhenStoppedAndKeepsToItsBudget) {
  const std::string source = make("llama-relu-q4_0", {});
  for (const char* stage : {"transposing down matrices", "running the exact model", "packing layers"}) {
    const auto stop = [](void* context, const char* at, uint64_t done, uint64_t) {
      const bool in_the_middle = done > 5 || std::string(at) != "transposing down matrices";
      return !in_the_middle || std::string(at) != static_cast<const char*>(context);
    };
    std::string name = stage;
    const Result<PackReport> report = pack_model(options(source), stop, name.data());
    EXPECT_EQ(report.status().code(), Code::kCancelled) << stage;
    EXPECT_EQ(std::distance(fs::directory_iterator(root_), fs::directory_iterator()), 1) << stage;
  }
  PackOptions small = options(source);
  small.memory = "1M";
  const Result<PackReport> report = pack_model(small, nullptr, nullptr);
  EXPECT_EQ(report.status().code(), Code::kResources);
  EXPECT_NE(report.status().message().find("transposing a down matrix takes"), std::string::npos);
}

}  // namespace
}  // namespace ganglion
