// pack_model(): source header -> a calibration, given or made -> one layer after the other fitted and
// written. Peak memory is the exact model's budget, then one layer's matrices and samples.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>

#include "base/units.h"
#include "calibration/calibration_file.h"
#include "calibration/calibration_tokens.h"
#include "calibration/pack_judge.h"
#include "calibration/pack_layer.h"
#include "calibration/plain_copy.h"
#include "calibration/sparsify.h"
#include "engine/runtime.h"
#include "ganglion/calibration.h"
#include "ganglion/pack.h"

namespace ganglion {

using base::TensorType;
using calibration::CalibratedLayer;
using calibration::CalibrationFile;
using calibration::FfnMatrices;
using calibration::Judgement;
using calibration::ModelSource;
using calibration::PackedLayer;
using format::TensorInfo;
using kernels::DownType;

namespace {

constexpr uint32_t kUsualRank = 192;
// A predictor has to save so much of the bytes that gates of all neurons are, since it costs accuracy.
constexpr double kLeastSaving = 0.25;
// Predicted neurons per active one, as a first guess.
constexpr double kUsualOverPrediction = 1.7;
constexpr size_t kJudgedTokens = 512;
// Roundings of down rows average over the width: models narrower than this get 8 bits at least.
constexpr uint32_t kNarrow = 2048;
constexpr size_t kWindow = 128;
constexpr const char* kRecallKey = "ganglion.pack.recall";
constexpr const char* kDivergenceKey = "ganglion.pack.divergence";
constexpr const char* kSameTopKey = "ganglion.pack.same_top";
constexpr const char* kLeftOutKey = "ganglion.pack.left_out";
constexpr const char* kOverPredictionKey = "ganglion.pack.over_prediction";
// Shares of SiLU activations to leave out that are tried, the most first.
constexpr double kShares[] = {0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1};

class Packer {
 public:
  Packer(const PackOptions& options, StageProgress progress, void* context)
      : options_(options), progress_(progress), context_(context) {}

  ~Packer() {
    calibration_.reset();
    if (!own_calibration_.empty()) ::unlink(own_calibration_.c_str());
  }
  Packer(const Packer&) = delete;
  Packer& operator=(const Packer&) = delete;

  Result<PackReport> run() {
    GANGLION_RETURN_IF_ERROR(open());
    GANGLION_RETURN_IF_ERROR(calibrate());
    GANGLION_RETURN_IF_ERROR(choose_ranks());
    GANGLION_RETURN_IF_ERROR(choose_judged());
    return write();
  }

 private:
  Status open() {
    GANGLION_RETURN_IF_ERROR(choose_shares());
    GANGLION_RETURN_IF_ERROR(calibration::check_recall(options_.recall));
    if (!(options_.divergence >= 0))
      return Status(Code::kInvalidArgument, "a KL divergence to keep is 0 or more");
    GANGLION_ASSIGN_OR_RETURN(source_, ModelSource::open({.model_path = options_.model_path,
                                                          .overrides = options_.overrides,
                                                          .isa = options_.isa,
                                                          .threads = options_.threads,
                                                          .allow_silu = sparsifies()}));
    GANGLION_RETURN_IF_ERROR(format::check_output(options_.output_path, {}, source_->files()));
    if (sparsifies() && source_->config().activation != model_config::FfnActivation::kSilu)
      return Status(Code::kInvalidArgument,
                    "this model's activations are sparse already: --sparsify is for SiLU");
    const auto names = kernels::down_type_names();
    down_ = options_.down == "auto" ? usual_down_type() : options_.down;
    const auto name = std::find(names.begin(), names.end(), down_);
    if (name == names.end()) {
      return Status(Code::kInvalidArgument,
                    "'" + down_ + "' is no type of down rows - use auto, q4, q6, q8, f16 or f32");
    }
    fit_ = {.down_type = static_cast<DownType>(name - names.begin()), .recall = options_.recall};
    const uint32_t rank = sparsifies() ? 0 : options_.rank.value_or(kUsualRank);
    GANGLION_RETURN_IF_ERROR(calibration::check_rank(rank));
    for (const FfnMatrices& ffn : source_->layers()) {
      if (options_.rank.has_value() && rank > std::min(ffn.dim, ffn.neurons))
        return Status(
            Code::kInvalidArgument,
            base::format("a predictor of rank %u is none for gates of %u x %u - give a lower --rank", rank,
                         ffn.neurons, ffn.dim));
      layers_.push_back(calibration::lay_out_bundles(ffn, fit_.down_type, rank));
      layers_.back().sparsified = sparsifies();
    }
    return check_room();
  }

  bool sparsifies() const { return !shares_.empty(); }

  // shares_ of "cats" or "cats:0.5".
  Status choose_shares() {
    if (options_.sparsify.empty()) return ok_status();
    if (options_.sparsify == "cats") {
      shares_.assign(std::begin(kShares), std::end(kShares));
      if (options_.random_tokens)
        return Status(Code::kInvalidArgument, "random tokens measure nothing: give a share, as in cats:0.5");
      return ok_status();
    }
    char* end = nullptr;
    const bool named = options_.sparsify.rfind("cats:", 0) == 0;
    const double share = named ? std::strtod(options_.sparsify.c_str() + 5, &end) : 0;
    if (!named || *end != 0 || !(share > 0 && share < 1)) {
      return Status(Code::kInvalidArgument, "--sparsify '" + options_.sparsify +
                                                "' is not known - write cats, or a share as in cats:0.5");
    }
    shares_ = {share};
    return ok_status();
  }

  // About as fine as the source: 6 bits are small beside the rounding of wide sources that have as few.
  std::string usual_down_type() const {
    constexpr uint64_t kElements = 1024;
    uint64_t bits = 0;
    for (const FfnMatrices& ffn : source_->layers())
      bits = std::max(bits, base::row_bytes(ffn.down->type, kElements) * 8 / kElements);
    const bool narrow = source_->config().dim < kNarrow;
    return bits >= 16 ? "f16" : bits >= 7 || narrow ? "q8" : "q6";
  }

  static double predictor_bytes(const FfnMatrices& ffn, uint32_t rank) {
    return static_cast<double>(rank * (base::row_bytes(TensorType::kQ8_0, ffn.dim) +
                                       base::row_bytes(TensorType::kQ4_0, ffn.neurons)));
  }

  // Whether the predictor that the model carries is to be used, by what a token touches of it and of gates.
  Result<bool> prefers_carried(size_t i) const {
    const FfnMatrices& ffn = layers_[i].ffn;
    if (options_.predictor != "auto") return options_.predictor == "mlp";
    if (ffn.mlp_low == nullptr || options_.rank.has_value()) return false;
    if (!calibration::check_rank(calibration::carried_rank(ffn)).ok()) return false;
    GANGLION_ASSIGN_OR_RETURN(const CalibratedLayer learnt, calibrated(i, true));
    double touched[2];
    for (const bool carried : {false, true}) {
      const uint32_t rank = carried ? calibration::carried_rank(ffn) : kUsualRank;
      GANGLION_ASSIGN_OR_RETURN(
          const PackLayerReport report,
          calibration::judge_layer(ffn, rank, carried, options_.recall, *source_, learnt.samples));
      touched[carried ? 1 : 0] = predictor_bytes(ffn, rank) + report.over_prediction * report.active *
                                                                  ffn.neurons *
                                                                  static_cast<double>(layers_[i].gate_bytes);
    }
    return touched[1] < touched[0];
  }

  Status choose_carried() {
    if (options_.predictor != "auto" && options_.predictor != "svd" && options_.predictor != "mlp")
      return Status(Code::kInvalidArgument,
                    "'" + options_.predictor + "' is no kind of predictor - use auto, svd or mlp");
    for (size_t i = 0; i < layers_.size() && !sparsifies(); ++i) {
      GANGLION_ASSIGN_OR_RETURN(const bool carried, prefers_carried(i));
      if (!carried) continue;
      const FfnMatrices& ffn = layers_[i].ffn;
      if (ffn.mlp_low == nullptr)
        return Status(Code::kInvalidArgument,
                      base::format("layer %zu carries no predictor - leave out --predictor mlp", i));
      const uint32_t rank = calibration::carried_rank(ffn);
      GANGLION_RETURN_IF_ERROR(calibration::check_rank(rank));
      layers_[i] = calibration::lay_out_bundles(ffn, fit_.down_type, rank);
      layers_[i].carried = true;
    }
    return ok_status();
  }

  // No predictor where computing all gates is hardly dearer: bundles then do without them.
  Status choose_ranks() {
    GANGLION_RETURN_IF_ERROR(choose_carried());
    if (options_.rank.has_value() || sparsifies() || options_.predictor == "mlp") return ok_status();
    for (size_t i = 0; i < layers_.size(); ++i) {
      GANGLION_ASSIGN_OR_RETURN(const CalibratedLayer learnt, calibrated(i, false));
      PackedLayer& layer = layers_[i];
      double active = 0;
      for (const float f : learnt.frequency) active += static_cast<double>(f);
      active /= static_cast<double>(uint64_t{layer.ffn.neurons} * layer.ffn.used);
      const double gates = static_cast<double>(uint64_t{layer.ffn.neurons} * layer.gate_bytes);
      const double predictor = predictor_bytes(layer.ffn, layer.rank);
      const double share = std::min(1.0, kUsualOverPrediction * active);
      if (predictor + share * gates > (1 - kLeastSaving) * gates)
        layer = calibration::lay_out_bundles(layer.ffn, fit_.down_type, 0);
    }
    return ok_status();
  }

  // Space for the output, and for a calibration of its own.
  Status check_room() const {
    uint64_t need = source_->file().file_bytes();
    if (wants_judgement()) need += uint64_t{kJudgedTokens / 2} * source_->config().vocab * sizeof(float);
    for (const PackedLayer& layer : layers_) {
      const FfnMatrices& f = layer.ffn;
      const uint64_t neurons = uint64_t{f.neurons} * f.experts;
      need += layer.stride * neurons - f.up_bytes() - (layer.rank > 0 ? f.gate->bytes : 0);
      need += uint64_t{layer.rank} * (f.dim + f.neurons) * f.experts * 17 / 16 + 28 * neurons;
      if (!options_.calibration_path.empty()) continue;
      need += 2 * options_.tokens * (f.dim * 2 + f.used * sizeof(uint32_t));
      need += neurons * calibration::kBatchCount * sizeof(int32_t);
    }
    return calibration::check_free_space(
        options_.output_path, need,
        options_.calibration_path.empty() ? "the pack and its calibration" : "the pack");
  }

  // Takes the calibration given, or makes one that lives as long as this object.
  Status calibrate() {
    std::string path = options_.calibration_path;
    if (path.empty()) {
      CalibrateOptions own;
      own.model_path = options_.model_path;
      own.output_path = path = own_calibration_ = options_.output_path + ".packing";
      own.memory = options_.memory;
      own.threads = options_.threads;
      own.isa = options_.isa;
      own.text_path = options_.text_path;
      own.random_tokens = options_.random_tokens;
      own.tokens = options_.tokens;
      own.overrides = options_.overrides;
      own.resumable = false;
      own.allow_silu = sparsifies();
      const Result<CalibrationReport> made = calibrate_model(own, progress_, context_);
      if (!made.ok()) return made.status();
    }
    GANGLION_ASSIGN_OR_RETURN(calibration_, CalibrationFile::open(path));
    GANGLION_RETURN_IF_ERROR(calibration_->check_model(*source_));
    return check_memory();
  }

  // A layer is fitted in memory: its matrices and samples have to fit the budget.
  Status check_memory() const {
    uint64_t need = 0;
    const size_t samples = calibration_->header().samples;
    for (const PackedLayer& layer : layers_)
      need = std::max(need, calibration::fitting_bytes(layer, *source_, samples));
    return calibration::check_memory(options_.memory, need,
                                     base::format("fitting a layer on %zu tokens", samples),
                                     "raise it, or calibrate on fewer tokens");
  }

  bool wants_judgement() const { return options_.divergence > 0 && !options_.random_tokens; }

  // The tokens that the pack is judged on; none where the text is too short.
  Status choose_judged() {
    if (!wants_judgement()) return ok_status();
    calibration::TokenSource text;
    text.model_path = options_.model_path;
    text.overrides = options_.overrides;
    text.text_path = options_.text_path;
    text.tokens = kJudgedTokens;
    text.piece = kWindow;
    text.between = true;
    GANGLION_ASSIGN_OR_RETURN(judged_, calibration::choose_tokens(text));
    if (judged_.size() < kWindow) judged_.clear();
    return ok_status();
  }

  Result<CalibratedLayer> calibrated(size_t layer, bool with_samples) const {
    CalibratedLayer out;
    if (with_samples) {
      GANGLION_ASSIGN_OR_RETURN(out.samples, calibration_->samples(layer, source_->kernels()));
    }
    GANGLION_ASSIGN_OR_RETURN(const calibration::LayerStatistics statistics, calibration_->statistics(layer));
    out.frequency.resize(statistics.fired.size() / calibration::kBatchCount);
    for (size_t i = 0; i < out.frequency.size(); ++i) {
      out.frequency[i] = static_cast<float>(static_cast<double>(statistics.fired[i]) /
                                            static_cast<double>(calibration_->header().tokens));
    }
    return out;
  }

  bool tell(const char* stage, uint64_t done, uint64_t total) const {
    return progress_ == nullptr || progress_(context_, stage, done, total);
  }

  void add_metadata(format::GgufWriter* writer) const {
    for (const auto& [key, value] : source_->file().metadata().values()) {
      if (key == "general.alignment" || key.rfind("split.", 0) == 0) continue;
      writer->add_value(key, value);
    }
    writer->add_uint("ganglion.pack.version", 2);
    writer->add_string("ganglion.pack.down", down_);
    if (options_.slim) writer->add_bool("ganglion.pack.slim", true);
    writer->add_uint("ganglion.pack.calibration_tokens",
                     static_cast<uint32_t>(calibration_->header().tokens));
    writer->add_float(kRecallKey, static_cast<float>(options_.recall));
    writer->add_float(kOverPredictionKey, static_cast<float>(kUsualOverPrediction));
    if (sparsifies()) {
      writer->add_string("ganglion.pack.sparsify", "cats");
      writer->add_float(kLeftOutKey, static_cast<float>(shares_[usual_share()]));
    }
    if (!judged_.empty()) {
      writer->add_float(kDivergenceKey, 0);
      writer->add_float(kSameTopKey, 0);
    }
    std::vector<int32_t> gate, up, stride, rank, carried;
    for (const PackedLayer& layer : layers_) {
      gate.push_back(static_cast<int32_t>(layer.ffn.gate->type));
      up.push_back(static_cast<int32_t>((layer.ffn.up != nullptr ? layer.ffn.up : layer.ffn.gate)->type));
      stride.push_back(static_cast<int32_t>(layer.stride));
      rank.push_back(static_cast<int32_t>(layer.rank));
      carried.push_back(layer.carried ? 1 : 0);
    }
    writer->add_ints("ganglion.pack.gate_type", gate);
    writer->add_ints("ganglion.pack.up_type", up);
    writer->add_ints("ganglion.pack.stride", stride);
    writer->add_ints("ganglion.pack.rank", rank);
    writer->add_ints("ganglion.pack.rectified", carried);
  }

  // Tensors that go into the pack as they are, in the order of the source.
  std::vector<const TensorInfo*> verbatim() const {
    std::vector<const TensorInfo*> kept;
    for (const TensorInfo& tensor : source_->file().tensors()) {
      const bool bundled = std::any_of(layers_.begin(), layers_.end(), [&](const PackedLayer& layer) {
        return layer.ffn.gate == &tensor || layer.ffn.up == &tensor || layer.ffn.mlp_low == &tensor ||
               layer.ffn.mlp_out == &tensor || layer.ffn.bias == &tensor ||
               (options_.slim && layer.ffn.down == &tensor);
      });
      if (!bundled) kept.push_back(&tensor);
    }
    return kept;
  }

  Result<PackReport> write() {
    format::GgufWriter writer(options_.output_path, 4096);
    add_metadata(&writer);
    const std::vector<const TensorInfo*> kept = verbatim();
    for (const TensorInfo* tensor : kept) {
      writer.add_tensor(tensor->name, tensor->type,
                        std::vector<uint64_t>(tensor->dims, tensor->dims + tensor->dim_count));
    }
    for (size_t i = 0; i < layers_.size(); ++i) calibration::declare_layer(layers_[i], prefix(i), &writer);
    GANGLION_RETURN_IF_ERROR(writer.begin_data());
    for (const TensorInfo* tensor : kept)
      GANGLION_RETURN_IF_ERROR(calibration::copy_tensor(source_->files()[tensor->shard], *tensor, &writer));
    PackReport report;
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (!tell("packing layers", i, layers_.size())) return Status(Code::kCancelled, "interrupted");
      GANGLION_ASSIGN_OR_RETURN(CalibratedLayer learnt, calibrated(i, true));
      if (sparsifies()) {
        GANGLION_ASSIGN_OR_RETURN(
            calibration::SparsifiedLayer sparsified,
            calibration::sparsify_layer(*source_, layers_[i].ffn, learnt.samples, shares_, usual_share()));
        learnt.frequency = std::move(sparsified.frequency);
        learnt.gate_threshold = sparsified.thresholds[usual_share()];
        gate_thresholds_.push_back(std::move(sparsified.thresholds));
      }
      GANGLION_ASSIGN_OR_RETURN(calibration::LayerThresholds thresholds,
                                calibration::write_layer(layers_[i], *source_, fit_, learnt, &writer));
      thresholds_.push_back(std::move(thresholds));
      report.ranks.push_back(layers_[i].rank);
      report.carried += layers_[i].carried ? 1 : 0;
      const PackedLayer& l = layers_[i];
      if (l.rank > 0) {
        report.predictor_bytes += l.ffn.experts * static_cast<uint64_t>(predictor_bytes(l.ffn, l.rank));
      }
    }
    report.bytes = writer.data_bytes();
    report.tokens = calibration_->header().tokens;
    report.down = down_;
    size_t level = 0;
    if (sparsifies()) report.left_out = shares_[usual_share()];
    if (!judged_.empty() && sparsifies()) {
      GANGLION_RETURN_IF_ERROR(choose_share(&writer, &report));
    } else if (!judged_.empty()) {
      GANGLION_ASSIGN_OR_RETURN(level, choose_level(&writer, &report));
    }
    for (size_t i = 0; i < layers_.size(); ++i) {
      report.layers.push_back(thresholds_[i].report(level));
      if (layers_[i].rank > 0) continue;
      report.layers[i].recall = report.layers[i].mass_recall = report.layers[i].over_prediction = 1;
    }
    double over = 0;
    double predicting = 0;
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (layers_[i].rank == 0) continue;
      over += report.layers[i].over_prediction;
      ++predicting;
    }
    if (predicting > 0) {
      GANGLION_RETURN_IF_ERROR(writer.flush());
      GANGLION_RETURN_IF_ERROR(
          writer.overwrite_float(kOverPredictionKey, static_cast<float>(over / predicting)));
    }
    GANGLION_RETURN_IF_ERROR(writer.finish());
    return report;
  }

  // Judges what the writer has written.
  calibration::PackJudge make_judge(const format::GgufWriter& writer) const {
    EngineOptions engine;
    engine.model_path = writer.part_path();
    const std::string& exact = options_.slim ? options_.model_path : engine.model_path;
    engine.memory = options_.memory;
    engine.threads = options_.threads;
    engine.isa = options_.isa;
    engine.context = kWindow;
    engine.overrides = options_.overrides;
    const size_t slash = options_.output_path.rfind('/');
    return {engine,    exact,
            judged_,   slash == std::string::npos ? "." : options_.output_path.substr(0, slash + 1),
            progress_, context_};
  }

  static Status note_judgement(const Judgement& chosen, format::GgufWriter* writer, PackReport* report) {
    report->judged_tokens = chosen.tokens;
    report->divergence = chosen.divergence;
    report->same_top = chosen.same_top;
    GANGLION_RETURN_IF_ERROR(writer->overwrite_float(kDivergenceKey, static_cast<float>(chosen.divergence)));
    return writer->overwrite_float(kSameTopKey, static_cast<float>(chosen.same_top));
  }

  // Of the shares that may be left out: what neurons are ordered by.
  size_t usual_share() const { return shares_.size() / 2; }

  // The largest share whose divergence is small enough (or the smallest one), and its thresholds in the file.
  Status choose_share(format::GgufWriter* writer, PackReport* report) {
    GANGLION_RETURN_IF_ERROR(writer->flush());
    calibration::PackJudge judge = make_judge(*writer);
    size_t low = 0;
    size_t high = shares_.size() - 1;  // Near enough, as far as is known.
    Judgement chosen;
    size_t judged = shares_.size();
    size_t written = usual_share();
    while (low < high || judged != high) {
      const size_t middle = (low + high) / 2;
      if (middle != written) GANGLION_RETURN_IF_ERROR(write_gate_thresholds(middle, writer));
      written = middle;
      GANGLION_ASSIGN_OR_RETURN(const Judgement tried, judge.judge());
      if (low < high && tried.divergence > options_.divergence) {
        low = middle + 1;
        continue;
      }
      high = judged = middle;
      chosen = tried;
    }
    if (high != written) GANGLION_RETURN_IF_ERROR(write_gate_thresholds(high, writer));
    report->left_out = shares_[high];
    GANGLION_RETURN_IF_ERROR(writer->overwrite_float(kLeftOutKey, static_cast<float>(shares_[high])));
    return note_judgement(chosen, writer, report);
  }

  Status write_gate_thresholds(size_t share, format::GgufWriter* writer) const {
    for (size_t i = 0; i < layers_.size(); ++i) {
      const float threshold = gate_thresholds_[i][share];
      GANGLION_RETURN_IF_ERROR(
          writer->overwrite_tensor(prefix(i) + "ffn_gate_threshold.weight",
                                   {reinterpret_cast<const uint8_t*>(&threshold), sizeof threshold}));
    }
    return ok_status();
  }

  // The first level of recall whose divergence is small enough, and its thresholds in the file.
  Result<size_t> choose_level(format::GgufWriter* writer, PackReport* report) {
    GANGLION_RETURN_IF_ERROR(writer->flush());
    calibration::PackJudge judge = make_judge(*writer);
    constexpr size_t kAll = calibration::kRecallLevels;
    size_t written = 0;
    const auto judge_level = [&](size_t level) -> Result<Judgement> {
      if (level != written) {
        GANGLION_RETURN_IF_ERROR(write_thresholds(level, writer));
        written = level;
      }
      return judge.judge();
    };
    GANGLION_ASSIGN_OR_RETURN(Judgement chosen, judge_level(0));
    size_t high = 0;
    const bool predicts =
        std::any_of(layers_.begin(), layers_.end(), [](const auto& l) { return l.rank > 0; });
    if (!predicts) {
      report->least_divergence = chosen.divergence;
    } else if (chosen.divergence > options_.divergence) {
      GANGLION_ASSIGN_OR_RETURN(chosen, judge_level(kAll));
      report->least_divergence = chosen.divergence;
      const double allowed = std::max(options_.divergence, 1.5 * chosen.divergence);
      size_t low = 0;  // Too far from exact passes; `high` is near enough.
      for (high = kAll; high - low > 1;) {
        const size_t middle = (low + high) / 2;
        GANGLION_ASSIGN_OR_RETURN(const Judgement tried, judge_level(middle));
        (tried.divergence > allowed ? low : high) = middle;
        if (high == middle) chosen = tried;
      }
      if (high != written) GANGLION_RETURN_IF_ERROR(write_thresholds(high, writer));
    }
    const double missed = high == kAll ? 0 : std::ldexp(1 - options_.recall, -static_cast<int>(high));
    GANGLION_RETURN_IF_ERROR(writer->overwrite_float(kRecallKey, static_cast<float>(1 - missed)));
    GANGLION_RETURN_IF_ERROR(note_judgement(chosen, writer, report));
    return high;
  }

  Status write_thresholds(size_t level, format::GgufWriter* writer) const {
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (layers_[i].rank == 0) continue;
      const std::vector<float> thresholds = thresholds_[i].at(level, source_->config().ffn_threshold);
      GANGLION_RETURN_IF_ERROR(writer->overwrite_tensor(
          prefix(i) + "ffn_predict_threshold.weight",
          {reinterpret_cast<const uint8_t*>(thresholds.data()), thresholds.size() * sizeof(float)}));
    }
    return ok_status();
  }

  static std::string prefix(size_t layer) { return "blk." + std::to_string(layer) + "."; }

  const PackOptions& options_;
  StageProgress progress_;
  void* context_;
  std::unique_ptr<ModelSource> source_;
  calibration::FitOptions fit_;
  std::string down_;
  std::vector<PackedLayer> layers_;
  std::vector<double> shares_;                       // of SiLU activations to leave out; empty: none
  std::vector<std::vector<float>> gate_thresholds_;  // [layer][share]
  std::vector<calibration::LayerThresholds> thresholds_;
  std::vector<int32_t> judged_;
  std::string own_calibration_;
  std::unique_ptr<CalibrationFile> calibration_;
};

}  // namespace

Result<PackReport> pack_model(const PackOptions& options, StageProgress progress, void* context) {
  GANGLION_RETURN_IF_ERROR(format::check_output(
      options.output_path, {options.model_path, options.calibration_path, options.text_path}));
  GANGLION_ASSIGN_OR_RETURN(const calibration::PlainCopy plain,
                            calibration::PlainCopy::make(options, progress, context));
  if (!plain.made()) return Packer(options, progress, context).run();
  PackOptions own = options;
  own.model_path = plain.path();
  if (own.down == "auto" && !plain.down().empty()) own.down = plain.down();
  Result<PackReport> report = Packer(own, progress, context).run();
  if (report.ok()) report.value().source_note = plain.note();
  return report;
}

}  // namespace ganglion
