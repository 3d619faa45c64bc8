// Calibrations: what they count, that they go on after interruptions, merge exactly, and are refused where
// they do not belong.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "calibration/activation_statistics.h"
#include "calibration/calibration_file.h"
#include "calibration/calibration_text.h"
#include "calibration/calibration_tokens.h"
#include "ganglion/calibration.h"
#include "ganglion/pack.h"

namespace ganglion {
namespace {

namespace fs = std::filesystem;
using calibration::CalibrationFile;
using calibration::LayerStatistics;

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("ganglion_calibration_test_" + std::to_string(::getpid()))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(path_), fs::directory_iterator()));
  }

 private:
  fs::path path_;
};

std::string fixture(const std::string& name) {
  return (fs::path(GANGLION_FIXTURES) / "models" / (name + ".gguf")).string();
}

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

CalibrateOptions options_for(const std::string& model, const std::string& output, size_t tokens) {
  CalibrateOptions options;
  options.model_path = fixture(model);
  options.output_path = output;
  options.memory = "2G";  // Sanitizers keep what was freed for a while.
  options.tokens = tokens;
  options.random_tokens = true;
  return options;
}

CalibrationReport calibrate(const CalibrateOptions& options) {
  Result<CalibrationReport> report = calibrate_model(options, nullptr, nullptr);
  EXPECT_TRUE(report.ok()) << report.status().message();
  return report.ok() ? report.take() : CalibrationReport{};
}

std::unique_ptr<CalibrationFile> open_file(const std::string& path) {
  auto file = CalibrationFile::open(path);
  EXPECT_TRUE(file.ok()) << file.status().message();
  return file.ok() ? file.take() : nullptr;
}

TEST(CountGroups, CountsBatchesOfTokensFromDifferentPlaces) {
  uint64_t random = 1;
  for (const size_t tokens : {1, 31, 64, 65, 200, 1000}) {
    std::vector<uint64_t> bits(tokens / 64 + 2, 0);
    for (size_t t = 0; t < tokens; ++t) {
      random = random * 6364136223846793005U + 1442695040888963407U;
      if (random >> 61 == 0) bits[t / 64] |= uint64_t{1} << t % 64;
    }
    for (const uint32_t size : calibration::kBatches) {
      const size_t groups = calibration::batch_groups(tokens, size);
      size_t expected = 0;
      for (size_t g = 0; g < groups; ++g) {
        bool any = false;
        for (size_t k = 0; k < size; ++k)
          any = any || (bits[(k * groups + g) / 64] >> (k * groups + g) % 64 & 1) != 0;
        expected += any ? 1 : 0;
      }
      EXPECT_EQ(calibration::count_groups(bits.data(), tokens, size), expected) << tokens << " " << size;
    }
  }
}

TEST(CalibrationText, IsWholeAndSpreadOverShortCalibrations) {
  const std::string_view text = calibration::calibration_text();
  EXPECT_GT(text.size(), 180'000U);
  EXPECT_LT(text.size(), 260'000U);
  for (const char* word :
       {"Elizabeth", "#include", "Gregor", "\"orders\"", "Candide", "Citizen", "hidalgo", "Assistant:"})
    EXPECT_NE(text.find(word), std::string_view::npos) << word;
  const auto tokens = calibration::choose_tokens({.model_path = fixture("llama-relu-q4_0"), .tokens = 4096});
  ASSERT_TRUE(tokens.ok()) << tokens.status().message();
  EXPECT_EQ(tokens.value().size(), 4096U);
  const auto model = TextModel::open(fixture("llama-relu-q4_0"));
  const std::string seen = model.value()->decode(tokens.value(), false);
  for (const char* word : {"Mr.", "Gregor", "const", "Candide", "Quijote", "unit_price"})
    EXPECT_NE(seen.find(word), std::string::npos) << word << " is not among the tokens";
}

TEST(CalibrationTokens, TakeAllOfAShortTextAndRefuseAnEmptyOne) {
  const Folder folder;
  std::ofstream(folder.file("t.txt")) << "The quick brown fox jumps over the lazy dog, and so do we all.";
  calibration::TokenSource source = {
      .model_path = fixture("llama-relu-q4_0"), .text_path = folder.file("t.txt"), .tokens = 5000};
  const auto tokens = calibration::choose_tokens(source);
  ASSERT_TRUE(tokens.ok());
  const auto model = TextModel::open(source.model_path);
  std::string seen = model.value()->decode(tokens.value(), false);
  EXPECT_NE(seen.find("lazy dog"), std::string::npos) << seen;
  EXPECT_NE(seen.find("we all."), std::string::npos) << seen;
  std::ofstream(folder.file("t.txt"), std::ios::trunc) << "";
  EXPECT_EQ(calibration::choose_tokens(source).status().code(), Code::kInvalidArgument);
}

class Calibrate : public testing::TestWithParam<const char*> {};

TEST_P(Calibrate, CountsFitTheModel) {
  const Folder folder;
  const CalibrationReport report = calibrate(options_for(GetParam(), folder.file("c.gguf"), 700));
  EXPECT_EQ(report.tokens, 700U);
  EXPECT_EQ(folder.entries(), 1U) << "intermediate results are left";
  const auto file = open_file(folder.file("c.gguf"));
  for (size_t i = 0; i < report.layers.size(); ++i) {
    const CalibrationLayerReport& layer = report.layers[i];
    EXPECT_GT(layer.active, 0.05);
    EXPECT_LT(layer.active, 0.95);
    EXPECT_GE(layer.top_30, 0.3);
    EXPECT_GE(layer.top_50, layer.top_30);
    for (size_t b = 1; b < layer.active_by_batch.size(); ++b)
      EXPECT_GE(layer.active_by_batch[b] * 1.02, layer.active_by_batch[b - 1]);
    const auto statistics = file->statistics(i);
    ASSERT_TRUE(statistics.ok()) << statistics.status().message();
    const calibration::LayerShape& shape = file->header().layers[i];
    int64_t routed = 0;
    for (const int32_t count : statistics.value().routed) routed += count;
    EXPECT_EQ(routed, 700 * shape.used);
    for (const double sum : statistics.value().squares) EXPECT_GT(sum, 0);
  }
}

TEST_P(Calibrate, PackTakesTheFileAsItTakesItsOwnCalibration) {
  const Folder folder;
  const CalibrateOptions options = options_for(GetParam(), folder.file("c.gguf"), 700);
  calibrate(options);
  PackOptions pack;
  pack.model_path = options.model_path;
  pack.memory = "2G";
  pack.rank = 32;
  pack.tokens = 700;
  pack.random_tokens = true;
  pack.output_path = folder.file("alone.gguf");
  ASSERT_TRUE(pack_model(pack, nullptr, nullptr).ok());
  pack.calibration_path = options.output_path;
  pack.output_path = folder.file("given.gguf");
  const Result<PackReport> report = pack_model(pack, nullptr, nullptr);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report.value().tokens, 700U);
  EXPECT_EQ(contents(folder.file("alone.gguf")), contents(folder.file("given.gguf")));
}

TEST_P(Calibrate, GoesOnWhereItWasInterrupted) {
  const Folder folder;
  const CalibrateOptions whole = options_for(GetParam(), folder.file("whole.gguf"), 1500);
  calibrate(whole);
  CalibrateOptions parts = whole;
  parts.output_path = folder.file("parts.gguf");
  // Stops in the second sequence, then in the counting; tokens done before stay done.
  Result<CalibrationReport> report = calibrate_model(
      parts, [](void*, const char*, uint64_t done, uint64_t) { return done < 600; }, nullptr);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), Code::kCancelled);
  EXPECT_NE(report.status().message().find("goes on"), std::string::npos);
  EXPECT_FALSE(fs::exists(parts.output_path));
  // As a process would leave it that was killed while it wrote.
  std::ofstream(parts.output_path + ".calibrating/layer0.inputs", std::ios::app) << "torn";
  const std::string behind = parts.output_path + ".calibrating/layer1.inputs";
  fs::resize_file(behind, fs::file_size(behind) - 10);
  uint64_t first = UINT64_MAX;
  report = calibrate_model(
      parts,
      [](void* context, const char* stage, uint64_t done, uint64_t) {
        auto* first_done = static_cast<uint64_t*>(context);
        if (*first_done == UINT64_MAX) *first_done = done;
        return stage[0] != 'c' || done == 0;  // "counting activations"
      },
      &first);
  EXPECT_EQ(report.status().code(), Code::kCancelled);
  EXPECT_EQ(first, 512U) << "work was done again";
  report = calibrate_model(parts, nullptr, nullptr);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(contents(whole.output_path), contents(parts.output_path));
  EXPECT_EQ(folder.entries(), 2U) << "intermediate results are left";
}

INSTANTIATE_TEST_SUITE_P(Models, Calibrate,
                         testing::Values("llama-relu-q4_0", "llama-drelu-q4_0", "llama-fatrelu-f32",
                                         "smallthinker-q8_0"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name;
                         });

TEST(CalibrateState, OfOtherTokensIsRefusedAndNothingIsLost) {
  const Folder folder;
  CalibrateOptions options = options_for("llama-relu-q4_0", folder.file("c.gguf"), 1500);
  const auto stop = [](void*, const char*, uint64_t done, uint64_t) { return done < 600; };
  EXPECT_FALSE(calibrate_model(options, stop, nullptr).ok());
  options.tokens = 1400;
  const Result<CalibrationReport> report = calibrate_model(options, nullptr, nullptr);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), Code::kInvalidArgument);
  EXPECT_NE(report.status().message().find("unfinished"), std::string::npos) << report.status().message();
  EXPECT_TRUE(fs::exists(folder.file("c.gguf.calibrating/layer0.inputs")));
}

TEST(CalibrateState, IsNotKeptWhereThereIsNothingYet) {
  const Folder folder;
  CalibrateOptions options = options_for("llama-relu-q4_0", folder.file("c.gguf"), 100);
  options.memory = "1M";
  EXPECT_EQ(calibrate_model(options, nullptr, nullptr).status().code(), Code::kResources);
  EXPECT_EQ(folder.entries(), 0U);
}

TEST(CalibrateMemory, DoesNotChangeTheResult) {
  const Folder folder;
  CalibrateOptions options = options_for("llama-relu-q4_0", folder.file("c.gguf"), 600);
  calibrate(options);
  const std::string expected = contents(options.output_path);
  // From the least budget on, whatever this process has taken so far: weights are streamed.
  uint64_t budget = 0;
  do {
    budget += uint64_t{1} << 20;
    options.memory = std::to_string(budget);
  } while (calibrate_model(options, nullptr, nullptr).status().code() == Code::kResources);
  for (int step = 0; step < 4; ++step, budget += uint64_t{1} << 20) {
    options.memory = std::to_string(budget);
    calibrate(options);
    EXPECT_EQ(contents(options.output_path), expected) << options.memory;
  }
}

TEST(CalibrateRanks, BiggerPredictorsFindMoreForLess) {
  const Folder folder;
  CalibrateOptions options = options_for("llama-relu-q4_0", folder.file("c.gguf"), 700);
  options.ranks = {32, 128};
  const CalibrationReport report = calibrate(options);
  for (const CalibrationLayerReport& layer : report.layers) {
    ASSERT_EQ(layer.ranks.size(), 2U);
    EXPECT_EQ(layer.ranks[1].rank, 128U);
    EXPECT_GT(layer.ranks[1].mass_recall, 0.97);
    EXPECT_LT(layer.ranks[1].over_prediction, layer.ranks[0].over_prediction);
  }
  options.ranks = {33};
  EXPECT_EQ(calibrate_model(options, nullptr, nullptr).status().code(), Code::kInvalidArgument);
}

// Shards of different texts.
class Merge : public testing::Test {
 protected:
  std::string shard(const std::string& model, const std::string& name, const std::string& text,
                    size_t tokens) {
    std::ofstream(folder_.file(name + ".txt")) << text;
    CalibrateOptions options = options_for(model, folder_.file(name), tokens);
    options.random_tokens = false;
    options.text_path = folder_.file(name + ".txt");
    calibrate(options);
    return options.output_path;
  }
  Result<CalibrationReport> merge(const std::vector<std::string>& parts, const std::string& name) {
    return merge_calibrations(parts, folder_.file(name), nullptr, nullptr);
  }
  const Folder folder_;
};

TEST_F(Merge, CountsAndMomentsAddUpAndSamplesFollow) {
  const std::string text(calibration::calibration_text());
  for (const char* model : {"llama-relu-q4_0", "smallthinker-q8_0"}) {
    const std::string a = shard(model, "a", text.substr(0, 20000), 500);
    const std::string b = shard(model, "b", text.substr(60000, 20000), 333);
    const Result<CalibrationReport> report = merge({a, b}, "ab");
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_EQ(report.value().tokens, 833U);
    EXPECT_EQ(report.value().samples, 833U);
    ASSERT_TRUE(merge({b, a}, "ba").ok());
    const auto one = open_file(a);
    const auto two = open_file(b);
    const auto both = open_file(folder_.file("ab"));
    const auto turned = open_file(folder_.file("ba"));
    for (size_t i = 0; i < both->header().layers.size(); ++i) {
      const LayerStatistics x = one->statistics(i).take();
      const LayerStatistics y = two->statistics(i).take();
      const LayerStatistics sum = both->statistics(i).take();
      const LayerStatistics other = turned->statistics(i).take();
      EXPECT_EQ(sum.fired, other.fired);
      EXPECT_EQ(sum.squares, other.squares);
      for (size_t n = 0; n < sum.fired.size(); ++n) ASSERT_EQ(sum.fired[n], x.fired[n] + y.fired[n]);
      for (size_t n = 0; n < sum.squares.size(); ++n) ASSERT_EQ(sum.squares[n], x.squares[n] + y.squares[n]);
      for (size_t n = 0; n < sum.routed.size(); ++n) ASSERT_EQ(sum.routed[n], x.routed[n] + y.routed[n]);
      std::vector<uint8_t> merged, part;
      ASSERT_TRUE(both->read_row(i, false, 499, &merged).ok());
      ASSERT_TRUE(one->read_row(i, false, 499, &part).ok());
      EXPECT_EQ(merged, part);
      ASSERT_TRUE(both->read_row(i, false, 500 + 17, &merged).ok());
      ASSERT_TRUE(two->read_row(i, false, 17, &part).ok());
      EXPECT_EQ(merged, part);
    }
    PackOptions pack;
    pack.model_path = fixture(model);
    pack.output_path = folder_.file("pack.gguf");
    pack.memory = "2G";
    pack.rank = 32;
    pack.calibration_path = folder_.file("ab");
    const Result<PackReport> packed = pack_model(pack, nullptr, nullptr);
    ASSERT_TRUE(packed.ok()) << packed.status().message();
    EXPECT_EQ(packed.value().tokens, 833U);
  }
}

TEST_F(Merge, RefusesOtherModelsTheSameTokensAndSingles) {
  const std::string text(calibration::calibration_text());
  const std::string a = shard("llama-relu-q4_0", "a", text.substr(0, 5000), 200);
  const std::string b = shard("llama-drelu-q4_0", "b", text.substr(60000, 5000), 200);
  Result<CalibrationReport> report = merge({a, b}, "out");
  EXPECT_EQ(report.status().code(), Code::kInvalidArgument);
  EXPECT_NE(report.status().message().find("different models"), std::string::npos)
      << report.status().message();
  report = merge({a, a}, "out");
  EXPECT_NE(report.status().message().find("count twice"), std::string::npos) << report.status().message();
  EXPECT_EQ(merge({a}, "out").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(merge({a, fixture("llama-relu-q4_0")}, "out").status().code(), Code::kModelFile);
  EXPECT_FALSE(fs::exists(folder_.file("out")));
}

// Packs with a calibration file; what is said.
Status pack_with(const std::string& model, const std::string& calibration, const Folder& folder,
                 const std::string& memory = "2G") {
  PackOptions pack;
  pack.model_path = fixture(model);
  pack.output_path = folder.file("p.gguf");
  pack.memory = memory;
  pack.rank = 32;
  pack.calibration_path = calibration;
  const Result<PackReport> report = pack_model(pack, nullptr, nullptr);
  EXPECT_FALSE(report.ok());
  EXPECT_FALSE(fs::exists(pack.output_path));
  EXPECT_FALSE(fs::exists(pack.output_path + ".part"));
  return report.status();
}

TEST(PackWithCalibration, RefusesThatOfAnotherModelOneCutShortAndNoneAtAll) {
  const Folder folder;
  const std::string path = folder.file("c.gguf");
  calibrate(options_for("llama-relu-q4_0", path, 200));
  Status status = pack_with("llama-drelu-q4_0", path, folder);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("another model"), std::string::npos) << status.message();
  status = pack_with("llama-relu-q4_k_m", path, folder);
  EXPECT_NE(status.message().find("another model"), std::string::npos) << status.message();
  EXPECT_EQ(pack_with("llama-relu-q4_0", fixture("llama-relu-q4_0"), folder).code(), Code::kModelFile);
  status = pack_with("llama-relu-q4_0", path, folder, "3M");
  EXPECT_EQ(status.code(), Code::kResources);
  EXPECT_NE(status.message().find("fitting a layer"), std::string::npos) << status.message();
  const std::string bytes = contents(path);
  for (const size_t left : {bytes.size() - 1, bytes.size() / 2, size_t{100}, size_t{0}}) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes.substr(0, left);
    EXPECT_EQ(pack_with("llama-relu-q4_0", path, folder).code(), Code::kModelFile) << left;
  }
}

TEST(PackWithCalibration, RefusesNumbersThatCannotBe) {
  const Folder folder;
  const std::string path = folder.file("c.gguf");
  calibrate(options_for("smallthinker-q8_0", path, 200));
  const std::string bytes = contents(path);
  const auto file = format::GgufModel::open_single(path);
  ASSERT_TRUE(file.ok());
  const auto said_with = [&](const char* tensor, const std::string& value) {
    std::string damaged = bytes;
    damaged.replace(file.value().find_tensor(tensor)->offset + 16, value.size(), value);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << damaged;
    const Status status = pack_with("smallthinker-q8_0", path, folder);
    EXPECT_EQ(status.code(), Code::kModelFile);
    return status.message();
  };
  const std::string negative("\xff\xff\xff\xff", 4);
  EXPECT_NE(said_with("blk.0.ffn_fired", negative).find("ffn_fired"), std::string::npos);
  EXPECT_NE(said_with("blk.0.ffn_experts", negative).find("expert"), std::string::npos);
  EXPECT_NE(said_with("blk.1.ffn_inputs", negative).find("no numbers"), std::string::npos);
  EXPECT_NE(said_with("blk.1.ffn_input_squares", std::string(8, '\xff')).find("squares"), std::string::npos);
}

// A file with one layer whose tensors are written with the given shapes, all zeros.
std::string misshapen(const Folder& folder, uint64_t fired, uint64_t squares, uint64_t samples) {
  const std::string path = folder.file("m.gguf");
  format::GgufWriter writer(path);
  writer.add_string("general.architecture", "calibration");
  writer.add_uint("ganglion.calibration.version", 1);
  writer.add_string("ganglion.calibration.model", "0");
  writer.add_uint("ganglion.calibration.layers", 1);
  writer.add_uint("ganglion.calibration.tokens", 64);
  writer.add_uint("ganglion.calibration.samples", 64);
  writer.add_ints("ganglion.calibration.batches", {1, 2, 4, 8, 16, 32});
  writer.add_ints("ganglion.calibration.groups", {64, 32, 16, 8, 4, 2});
  writer.add_tensor("blk.0.ffn_fired", base::TensorType::kI32, {32, 1, fired});
  writer.add_tensor("blk.0.ffn_input_squares", base::TensorType::kF64, {squares});
  writer.add_tensor("blk.0.ffn_inputs", base::TensorType::kF16, {32, samples});
  EXPECT_TRUE(writer.begin_data().ok());
  EXPECT_TRUE(writer.write(std::vector<uint8_t>(32 * fired * 4 + squares * 8 + 32 * samples * 2)).ok());
  EXPECT_TRUE(writer.finish().ok());
  const auto opened = CalibrationFile::open(path);
  return opened.ok() ? "opened" : opened.status().message();
}

TEST(CalibrationFileShapes, AreCheckedAgainstEachOther) {
  const Folder folder;
  EXPECT_EQ(misshapen(folder, 6, 32, 64), "opened");
  EXPECT_NE(misshapen(folder, 5, 32, 64).find("ffn_fired"), std::string::npos);
  EXPECT_NE(misshapen(folder, 6, 64, 64).find("ffn_input_squares"), std::string::npos);
  EXPECT_NE(misshapen(folder, 6, 32, 63).find("ffn_inputs"), std::string::npos);
}

}  // namespace
}  // namespace ganglion
