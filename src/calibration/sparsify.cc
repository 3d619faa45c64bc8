#include "calibration/sparsify.h"

#include <algorithm>
#include <cmath>

#include "calibration/dense_rows.h"

namespace ganglion::calibration {

using base::Result;
using base::Status;

namespace {

constexpr size_t kMostTokens = 1024;
constexpr size_t kNeuronBlock = 512;
// Logarithmic bins, a hundredth wide; what is smaller or larger falls into the first or last.
constexpr int kBinsPerOctave = 64;
constexpr int kLeastExponent = -20;
constexpr int kMostExponent = 8;
constexpr size_t kBins = size_t{kMostExponent - kLeastExponent} * kBinsPerOctave;

size_t bin_of(float size) {
  const float at = (std::log2(std::max(size, 1e-12F)) - kLeastExponent) * kBinsPerOctave;
  return static_cast<size_t>(std::clamp(at, 0.0F, static_cast<float>(kBins - 1)));
}

class Sparsifier {
 public:
  Sparsifier(const ModelSource& source, const FfnMatrices& ffn, const LayerSamples& samples)
      : source_(source), ffn_(ffn), histograms_(static_cast<size_t>(source.threads().size()) * kBins) {
    const size_t tokens = samples.inputs.size() / ffn.dim;
    tokens_ = std::min(tokens, kMostTokens);
    for (size_t i = 0; i < tokens_; ++i) {
      const size_t t = i * tokens / tokens_;
      const auto x = samples.inputs.begin() + static_cast<ptrdiff_t>(t * ffn.dim);
      samples_.inputs.insert(samples_.inputs.end(), x, x + ffn.dim);
      if (samples.experts.empty()) continue;
      const auto routed = samples.experts.begin() + static_cast<ptrdiff_t>(t * ffn.used);
      samples_.experts.insert(samples_.experts.end(), routed, routed + ffn.used);
    }
  }

  Result<SparsifiedLayer> run(std::span<const double> shares, size_t counted) {
    GANGLION_RETURN_IF_ERROR(for_sizes([this](size_t, const Rows& sizes, size_t count) {
      source_.threads().parallel_for(sizes.rows(), 16, [&](size_t begin, size_t end, int thread) {
        uint64_t* histogram = &histograms_[static_cast<size_t>(thread) * kBins];
        for (size_t t = begin; t < end; ++t) {
          for (size_t i = 0; i < count; ++i) ++histogram[bin_of(sizes[t][i])];
        }
      });
    }));
    SparsifiedLayer layer;
    for (const double share : shares) layer.thresholds.push_back(threshold(share));
    const float least = layer.thresholds[counted];
    layer.frequency.assign(size_t{ffn_.experts} * ffn_.neurons, 0);
    GANGLION_RETURN_IF_ERROR(for_sizes([&](size_t first, const Rows& sizes, size_t count) {
      for (size_t t = 0; t < sizes.rows(); ++t) {
        for (size_t i = 0; i < count; ++i) layer.frequency[first + i] += sizes[t][i] > least ? 1.0F : 0.0F;
      }
    }));
    for (float& f : layer.frequency) f /= static_cast<float>(std::max<size_t>(tokens_, 1));
    return layer;
  }

 private:
  // Calls body(first, sizes, count) with |SiLU(gate)| [tokens of the expert][count] of neurons [first, first
  // + count), counted over all experts.
  template <typename Body>
  Status for_sizes(Body&& body) {
    std::vector<uint8_t> gate;
    const size_t bytes = base::row_bytes(ffn_.gate->type, ffn_.dim);
    const std::vector<float> ones(kNeuronBlock, 1.0F);
    const auto activate =
        source_.kernels().gated_activation[static_cast<size_t>(model_config::FfnActivation::kSilu)];
    for (uint32_t e = 0; e < ffn_.experts; ++e) {
      const std::vector<float> inputs = inputs_of_expert(samples_, ffn_, e);
      const size_t tokens = inputs.size() / ffn_.dim;
      if (tokens == 0) continue;
      GANGLION_RETURN_IF_ERROR(source_.read_slice(*ffn_.gate, e, &gate));
      const Activations x(source_.kernels(), source_.threads(), ffn_.gate->type, tokens, ffn_.dim,
                          inputs.data(), ffn_.dim);
      Rows sizes(tokens, kNeuronBlock);
      for (size_t first = 0; first < ffn_.neurons; first += kNeuronBlock) {
        const size_t count = std::min(kNeuronBlock, ffn_.neurons - first);
        multiply(source_.kernels(), source_.threads(),
                 {.type = ffn_.gate->type, .data = gate.data() + first * bytes, .rows = count, .n = ffn_.dim},
                 x, tokens, &sizes);
        source_.threads().parallel_for(tokens, 16, [&](size_t begin, size_t end, int) {
          for (size_t t = begin; t < end; ++t) {
            activate(sizes[t], ones.data(), count);
            for (size_t i = 0; i < count; ++i) sizes[t][i] = std::fabs(sizes[t][i]);
          }
        });
        body(size_t{e} * ffn_.neurons + first, sizes, count);
      }
    }
    return base::ok_status();
  }

  float threshold(double share) const {
    std::vector<uint64_t> bins(kBins);
    uint64_t all = 0;
    for (size_t i = 0; i < histograms_.size(); ++i) {
      bins[i % kBins] += histograms_[i];
      all += histograms_[i];
    }
    uint64_t below = 0;
    for (size_t bin = 0; bin < kBins; ++bin) {
      below += bins[bin];
      if (static_cast<double>(below) >= share * static_cast<double>(all))
        return std::exp2(static_cast<float>(bin + 1) / kBinsPerOctave + kLeastExponent);
    }
    return 0;
  }

  const ModelSource& source_;
  const FfnMatrices& ffn_;
  size_t tokens_;
  LayerSamples samples_;
  std::vector<uint64_t> histograms_;  // [threads][bins]
};

}  // namespace

Result<SparsifiedLayer> sparsify_layer(const ModelSource& source, const FfnMatrices& ffn,
                                       const LayerSamples& samples, std::span<const double> shares,
                                       size_t counted) {
  return Sparsifier(source, ffn, samples).run(shares, counted);
}

}  // namespace ganglion::calibration
