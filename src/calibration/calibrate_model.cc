// calibrate_model(): tokens through the exact model, their FFN inputs kept on the disk; layer by layer
// counted; all written into one file. Each step's results stay on the disk until the file is complete.
#include <algorithm>
#include <cstring>
#include <memory>

#include "base/units.h"
#include "calibration/activation_samples.h"
#include "calibration/activation_statistics.h"
#include "calibration/calibration_file.h"
#include "calibration/calibration_report.h"
#include "calibration/calibration_tokens.h"
#include "calibration/pack_layer.h"
#include "ganglion/calibration.h"

namespace ganglion {

using calibration::ActivationSamples;
using calibration::CalibrationFile;
using calibration::CalibrationHeader;
using calibration::LayerStatistics;
using calibration::ModelSource;

namespace {

class Calibrator {
 public:
  Calibrator(const CalibrateOptions& options, StageProgress progress, void* context)
      : options_(options), progress_(progress), context_(context) {}

  Result<CalibrationReport> run() {
    GANGLION_RETURN_IF_ERROR(open());
    const Status status = compute();
    if (status.code() == Code::kCancelled && options_.resumable) {
      return Status(Code::kCancelled, "interrupted - what is done stays in '" + folder() +
                                          "', the same command goes on from it");
    }
    GANGLION_RETURN_IF_ERROR(status);
    samples_->finish();
    GANGLION_ASSIGN_OR_RETURN(const std::unique_ptr<CalibrationFile> file,
                              CalibrationFile::open(options_.output_path));
    GANGLION_ASSIGN_OR_RETURN(CalibrationReport report, calibration::report_calibration(*file));
    GANGLION_RETURN_IF_ERROR(judge_ranks(*file, &report));
    return report;
  }

 private:
  std::string folder() const { return options_.output_path + ".calibrating"; }

  Status open() {
    GANGLION_RETURN_IF_ERROR(calibration::check_recall(options_.recall));
    for (const uint32_t rank : options_.ranks) GANGLION_RETURN_IF_ERROR(calibration::check_rank(rank));
    if (options_.tokens > kMostCalibrationTokens) {
      return Status(Code::kInvalidArgument,
                    base::format("%zu tokens are more than one run takes - at most %zu; calibrate parts of a "
                                 "text and merge them",
                                 options_.tokens, kMostCalibrationTokens));
    }
    GANGLION_ASSIGN_OR_RETURN(source_, ModelSource::open({.model_path = options_.model_path,
                                                          .overrides = options_.overrides,
                                                          .isa = options_.isa,
                                                          .threads = options_.threads,
                                                          .allow_silu = options_.allow_silu}));
    GANGLION_RETURN_IF_ERROR(format::check_output(
        options_.output_path, {options_.model_path, options_.text_path}, source_->files()));
    GANGLION_ASSIGN_OR_RETURN(tokens_, calibration::choose_tokens({.model_path = options_.model_path,
                                                                   .overrides = options_.overrides,
                                                                   .text_path = options_.text_path,
                                                                   .random = options_.random_tokens,
                                                                   .tokens = options_.tokens,
                                                                   .vocab = source_->config().vocab}));
    GANGLION_ASSIGN_OR_RETURN(header_.model, source_->fingerprint());
    GANGLION_ASSIGN_OR_RETURN(header_.model_name, source_->file().metadata().string_or("general.name", ""));
    header_.tokens = tokens_.size();
    header_.samples = std::min(tokens_.size(), calibration::kMostSamples);
    for (const uint32_t batch : calibration::kBatches)
      header_.groups.push_back(calibration::batch_groups(tokens_.size(), batch));
    header_.sources = {calibration::token_fingerprint(tokens_)};
    header_.layers = calibration::layer_shapes(*source_);
    // Kept on the disk until the end, and written once more into the file.
    uint64_t spilled = 0;
    for (const calibration::LayerShape& layer : header_.layers)
      spilled += tokens_.size() * (layer.dim * 2 + layer.used * sizeof(uint32_t));
    EngineOptions engine;
    engine.model_path = options_.model_path;
    engine.memory = options_.memory;
    engine.threads = options_.threads;
    engine.isa = options_.isa;
    engine.overrides = options_.overrides;
    const std::string identity = header_.model + " " + header_.sources[0];
    GANGLION_ASSIGN_OR_RETURN(
        samples_,
        ActivationSamples::open(
            {.engine = engine, .folder = folder(), .identity = identity, .keep_folder = options_.resumable},
            *source_, tokens_.size()));
    spilled -= std::min(spilled, samples_->kept_bytes());
    return calibration::check_free_space(options_.output_path, spilled + calibration_bytes(header_),
                                         "the calibration and its intermediate results");
  }

  bool tell(const char* stage, uint64_t done, uint64_t total) const {
    return progress_ == nullptr || progress_(context_, stage, done, total);
  }

  Status compute() {
    GANGLION_RETURN_IF_ERROR(samples_->collect(tokens_, [&](uint64_t done, uint64_t total) {
      return tell("running the exact model", done, total);
    }));
    for (size_t i = 0; i < header_.layers.size(); ++i) {
      const auto stop = [&] { return !tell("counting activations", i, header_.layers.size()); };
      LayerStatistics statistics;
      if (read_kept(i, &statistics)) continue;
      GANGLION_ASSIGN_OR_RETURN(statistics, calibration::count_layer(*source_, *samples_, i, stop));
      GANGLION_RETURN_IF_ERROR(keep(i, statistics));
    }
    return write();
  }

  // Statistics of a layer as one run of bytes: counts, routed, squares.
  Status keep(size_t layer, const LayerStatistics& statistics) const {
    std::vector<uint8_t> bytes;
    const auto add = [&](const void* from, size_t count) {
      const auto* begin = static_cast<const uint8_t*>(from);
      bytes.insert(bytes.end(), begin, begin + count);
    };
    add(statistics.fired.data(), statistics.fired.size() * sizeof(int32_t));
    add(statistics.routed.data(), statistics.routed.size() * sizeof(int32_t));
    add(statistics.squares.data(), statistics.squares.size() * sizeof(double));
    return platform::write_file_atomically(samples_->path(layer, "statistics"), bytes);
  }

  bool read_kept(size_t layer, LayerStatistics* statistics) const {
    const calibration::LayerShape& shape = header_.layers[layer];
    const Result<platform::File> file = platform::File::open(samples_->path(layer, "statistics"));
    statistics->fired.resize(calibration::kBatchCount * shape.experts * shape.neurons);
    statistics->routed.resize(shape.experts);
    statistics->squares.resize(shape.dim);
    const size_t fired = statistics->fired.size() * sizeof(int32_t);
    const size_t routed = statistics->routed.size() * sizeof(int32_t);
    const size_t squares = statistics->squares.size() * sizeof(double);
    if (!file.ok() || file.value().size() != fired + routed + squares) return false;
    std::vector<uint8_t> bytes(fired + routed + squares);
    if (!file.value().read_exact(0, bytes).ok()) return false;
    std::memcpy(statistics->fired.data(), bytes.data(), fired);
    std::memcpy(statistics->routed.data(), bytes.data() + fired, routed);
    std::memcpy(statistics->squares.data(), bytes.data() + fired + routed, squares);
    return true;
  }

  Status write() {
    format::GgufWriter writer(options_.output_path);
    declare_calibration(header_, &writer);
    GANGLION_RETURN_IF_ERROR(writer.begin_data());
    for (size_t i = 0; i < header_.layers.size(); ++i) {
      if (!tell("writing", i, header_.layers.size())) return Status(Code::kCancelled, "interrupted");
      LayerStatistics statistics;
      if (!read_kept(i, &statistics))
        return Status(Code::kIo, "cannot read '" + samples_->path(i, "statistics") + "' back");
      GANGLION_RETURN_IF_ERROR(write_statistics(statistics, header_.layers[i].moe, &writer));
      GANGLION_RETURN_IF_ERROR(copy_rows(i, "inputs", size_t{header_.layers[i].dim} * 2, &writer));
      if (header_.layers[i].moe)
        GANGLION_RETURN_IF_ERROR(copy_rows(i, "experts", header_.layers[i].used * sizeof(uint32_t), &writer));
    }
    return writer.finish();
  }

  // The rows of the sampled tokens.
  Status copy_rows(size_t layer, const char* kind, size_t row_bytes, format::GgufWriter* writer) const {
    GANGLION_ASSIGN_OR_RETURN(const platform::File file, platform::File::open(samples_->path(layer, kind)));
    std::vector<uint8_t> rows;
    constexpr size_t kAtOnce = 512;
    for (size_t first = 0; first < header_.samples; first += kAtOnce) {
      const size_t count = std::min(kAtOnce, header_.samples - first);
      rows.resize(count * row_bytes);
      for (size_t i = 0; i < count; ++i) {
        const size_t token = calibration::sample_token(first + i, header_.samples, header_.tokens);
        GANGLION_RETURN_IF_ERROR(
            file.read_exact(token * row_bytes, std::span(rows).subspan(i * row_bytes, row_bytes)));
      }
      GANGLION_RETURN_IF_ERROR(writer->write(rows));
    }
    return ok_status();
  }

  Status judge_ranks(const CalibrationFile& file, CalibrationReport* report) const {
    for (size_t i = 0; i < header_.layers.size() && !options_.ranks.empty(); ++i) {
      GANGLION_ASSIGN_OR_RETURN(const calibration::LayerSamples samples, file.samples(i, source_->kernels()));
      for (const uint32_t rank : options_.ranks) {
        if (rank > source_->layers()[i].dim) continue;  // More than a gate can have.
        if (!tell("judging predictors", i, header_.layers.size()))
          return Status(Code::kCancelled, "interrupted - '" + options_.output_path +
                                              "' is complete, predictors were not all judged");
        GANGLION_ASSIGN_OR_RETURN(
            const PackLayerReport fit,
            calibration::judge_layer(source_->layers()[i], rank, false, options_.recall, *source_, samples));
        report->layers[i].ranks.push_back({rank, fit.recall, fit.mass_recall, fit.over_prediction});
      }
    }
    return ok_status();
  }

  const CalibrateOptions& options_;
  StageProgress progress_;
  void* context_;
  std::unique_ptr<ModelSource> source_;
  std::vector<int32_t> tokens_;
  CalibrationHeader header_;
  std::unique_ptr<ActivationSamples> samples_;
};

}  // namespace

Result<CalibrationReport> calibrate_model(const CalibrateOptions& options, StageProgress progress,
                                          void* context) {
  return Calibrator(options, progress, context).run();
}

}  // namespace ganglion
