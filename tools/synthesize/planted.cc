#include "planted.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "kernels/kernel_table.h"
#include "kernels/random_blocks.h"
#include "quantize.h"

namespace ganglion::synthesize {

namespace {

// The share of the normalised input's energy along u, and the growth of the residual's energy per layer.
// Together: adjacent FFN inputs have a cosine of c^2 + s^2 / sqrt(growth) = 0.975.
constexpr double kAlongEnergy = 0.25;
constexpr double kGrowth = 1.07;
constexpr double kAttentionEnergy = 0.05;  // Of what the FFN adds, at the first position, later less.
constexpr double kUpPositive = 0.8;
constexpr double kLowRankShare = 0.92;
// Of the activations, for the top 30 %: published are 80 %, and 94 % for the top half. Rounding to 4 bits and
// tokens that differ in their share of u take away about one percentage point of what is planted.
constexpr double kTopShare = 0.81;
constexpr float kNormDeviation = 0.05F;
constexpr double kHeadNorm = 2;  // Of output rows: a token's logits have a deviation of sqrt(3).
constexpr size_t kGroup = 16;
constexpr size_t kLanes = 8;

uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15ull)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 31) * 0x94d049bb133111ebull;
  return (x ^ x >> 29) | 1;  // Random states must not be 0.
}

// Sums of four random bytes, two from each number: nearly normal, mean 0.
void fill_normal(uint64_t seed, float deviation, std::span<float> out) {
  constexpr uint32_t kBytes = 0x00ff00ff;
  // A byte has variance (2^16 - 1) / 12, four have this deviation:
  const float unit = deviation / std::sqrt(65535.0F / 3);
  const auto value = [unit](uint32_t bits) {
    const uint32_t pairs = (bits & kBytes) + (bits >> 8 & kBytes);
    return unit * static_cast<float>(static_cast<int32_t>((pairs & 0xffff) + (pairs >> 16)) - 510);
  };
  size_t i = 0;
  for (; i + 2 <= out.size(); i += 2) {
    const uint64_t random = kernels::next_random(&seed);
    out[i] = value(static_cast<uint32_t>(random));
    out[i + 1] = value(static_cast<uint32_t>(random >> 32));
  }
  if (i < out.size()) out[i] = value(static_cast<uint32_t>(kernels::next_random(&seed)));
}

// In lanes, so that compilers make vectors of it.
double dot(std::span<const float> a, std::span<const float> b) {
  float lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= a.size(); i += kLanes) {
    for (size_t k = 0; k < kLanes; ++k) lanes[k] += a[i + k] * b[i + k];
  }
  double sum = 0;
  for (const float lane : lanes) sum += static_cast<double>(lane);
  for (; i < a.size(); ++i) sum += static_cast<double>(a[i] * b[i]);
  return sum;
}

// row = scale * row + shift * direction
void combine(std::span<float> row, double scale, double shift, std::span<const float> direction) {
  const auto a = static_cast<float>(scale);
  const auto b = static_cast<float>(shift);
  for (size_t i = 0; i < row.size(); ++i) row[i] = a * row[i] + b * direction[i];
}

// Over softmax weights of the best `used` of `experts` standard normal logits, divided by their sum.
double mean_square_weights(uint32_t experts, uint32_t used, uint64_t seed) {
  if (experts == 0) return 1;
  constexpr int kDraws = 2000;
  std::vector<float> logits(experts);
  double total = 0;
  for (int draw = 0; draw < kDraws; ++draw) {
    fill_normal(mix(seed, static_cast<uint64_t>(draw)), 1, logits);
    std::partial_sort(logits.begin(), logits.begin() + used, logits.end(), std::greater<>());
    double sum = 0;
    double squares = 0;
    for (uint32_t i = 0; i < used; ++i) {
      const double weight = std::exp(static_cast<double>(logits[i]));
      sum += weight;
      squares += weight * weight;
    }
    total += squares / (sum * sum);
  }
  return total / kDraws;
}

}  // namespace

uint32_t planted_rank(uint64_t dim, uint64_t ffn) {
  return static_cast<uint32_t>(std::min<uint64_t>({192, dim / 4, ffn / 4}));
}

PlantedRows::PlantedRows(const Request& request, platform::ThreadPool& threads)
    : shape_(request.shape),
      drelu_(request.activation == "drelu"),
      seed_(request.seed),
      threads_(threads),
      gate_per_active_(drelu_ ? 1 / kUpPositive : 1),
      skew_(solve_skew(request.active_share() * gate_per_active_, kTopShare)),
      sorted_offsets_(skew_offsets(skew_, request.shape.ffn)),
      along_(request.shape.dim),
      route_energy_(mean_square_weights(request.shape.experts, request.shape.experts_used, request.seed)),
      buffers_(static_cast<size_t>(threads.size())),
      rank_(planted_rank(request.shape.dim, request.shape.ffn)) {
  fill_normal(mix(seed_, 1), 1, along_);
  combine(along_, 1 / std::sqrt(dot(along_, along_)), 0, along_);
  // Variances fall slowly, by a factor of 3.6 over 192 components, as those of trained gates do.
  double sum = 0;
  for (uint32_t k = 0; k < rank_; ++k) sum += 1 / std::sqrt(k + 16.0);
  // What a truncated SVD finds of the noise counts as well: rank / D + rank / F of it.
  const double found = static_cast<double>(rank_) / shape_.dim + static_cast<double>(rank_) / shape_.ffn;
  const double share = (kLowRankShare - found) / (1 - found);
  for (uint32_t k = 0; k < rank_; ++k)
    component_deviation_.push_back(static_cast<float>(std::sqrt(share / std::sqrt(k + 16.0) / sum)));
  noise_ = static_cast<float>(std::sqrt(1 - share));
}

uint64_t PlantedRows::row_seed(uint64_t index) const {
  return mix(slice_seed_, index + 16);
}

// Energy of the residual before the current layer's FFN, of an embedding's.
double PlantedRows::growth_before() const {
  return std::pow(kGrowth, tensor_.layer);
}

void PlantedRows::begin_slice(const Declared& tensor, uint64_t number, uint64_t slice) {
  tensor_ = tensor;
  slice_seed_ = mix(mix(seed_, number + 1000), slice);
  for (Buffers& buffers : buffers_) buffers.rows.resize(kGroup * tensor.row);
  if (tensor.role == Role::kGate || tensor.role == Role::kDown) {
    offsets_ = sorted_offsets_;
    uint64_t random = mix(mix(seed_, tensor.layer + 500), slice);
    for (size_t i = offsets_.size() - 1; i > 0; --i)
      std::swap(offsets_[i], offsets_[(kernels::next_random(&random) >> 32) * (i + 1) >> 32]);
  }
  if (tensor.role == Role::kGate) prepare_gate();
  if (tensor.role == Role::kDown) prepare_down();
}

void PlantedRows::prepare_gate() {
  const size_t stride = kernels::activation_row_bytes(kernels::ActivationForm::kF32, rank_);
  for (Buffers& buffers : buffers_) buffers.components = AlignedBytes(kGroup * stride);
  basis_.resize(tensor_.row * rank_);
  const auto deviation = static_cast<float>(1 / std::sqrt(static_cast<double>(tensor_.row)));
  threads_.parallel_for(tensor_.row, 64, [&](size_t begin, size_t end, int) {
    for (size_t d = begin; d < end; ++d) {
      fill_normal(mix(slice_seed_ ^ 0x5a5a, d), deviation, {basis_.data() + d * rank_, rank_});
    }
  });
}

// Mean and variance of each neuron's activation follow from b_i; the deviation of the random columns follows
// from the energy that the layer shall add.
void PlantedRows::prepare_down() {
  const double up = normal_quantile(kUpPositive);
  const double up_mean = drelu_ ? rectified_mean(up) : up;
  const double up_square = drelu_ ? rectified_square(up) : 1 + up * up;
  mean_activation_.resize(offsets_.size());
  double variance = 0;
  for (size_t i = 0; i < offsets_.size(); ++i) {
    const auto b = static_cast<double>(offsets_[i]);
    const double mean = rectified_mean(b) * up_mean;
    variance += rectified_square(b) * up_square - mean * mean;
    mean_activation_[i] = static_cast<float>(mean);
  }
  mean_energy_ = dot(mean_activation_, mean_activation_);
  const double dim = shape_.dim;
  const double added = (1 - kAlongEnergy) * dim * growth_before() * (kGrowth - 1);
  noise_down_ = static_cast<float>(std::sqrt(added / (route_energy_ * dim * variance)));
  mean_along_ = std::sqrt(kAlongEnergy * dim * growth_before()) * (std::sqrt(kGrowth) - 1);
}

// rows [count][D] += components [count][rank] x basis^T
void PlantedRows::add_low_rank(uint64_t begin, uint64_t count, Buffers& buffers) {
  const kernels::KernelTable& table = *kernels::available_tables()[0];
  const size_t stride = kernels::activation_row_bytes(kernels::ActivationForm::kF32, rank_);
  const size_t dim = tensor_.row;
  uint8_t* x = buffers.components.bytes();
  for (size_t i = 0; i < count; ++i) {
    auto* components = reinterpret_cast<float*>(x + i * stride);
    fill_normal(mix(row_seed(begin + i), 7), 1, {components, rank_});
    for (uint32_t k = 0; k < rank_; ++k) components[k] *= component_deviation_[k];
  }
  buffers.low_rank.resize(kGroup * dim);
  table.matmul[static_cast<size_t>(base::TensorType::kF32)](
      {.weights = reinterpret_cast<const uint8_t*>(basis_.data()),
       .weight_stride = rank_ * sizeof(float),
       .rows = dim,
       .n = rank_,
       .x = x,
       .x_stride = stride,
       .tokens = count,
       .out = buffers.low_rank.data(),
       .out_stride = dim});
  for (size_t i = 0; i < count * dim; ++i) buffers.rows[i] += buffers.low_rank[i];
}

// Gives a random row its exact norm and component along u.
void PlantedRows::finish_row(uint64_t index, std::span<float> row) const {
  const double dim = shape_.dim;
  const double c = std::sqrt(kAlongEnergy);
  const double s = std::sqrt(1 - kAlongEnergy);
  double along = 0;   // Wanted component along u...
  double across = 1;  // ...and norm of the rest.
  switch (tensor_.role) {
    case Role::kEmbedding:
      along = c * std::sqrt(dim);
      across = s * std::sqrt(dim);
      break;
    case Role::kGate:
      along = static_cast<double>(offsets_[index]) / (c * std::sqrt(dim));
      across = 1 / s;
      break;
    case Role::kUp:
      along = normal_quantile(kUpPositive) / (c * std::sqrt(dim));
      across = 1 / s;
      break;
    case Role::kRouter:
      across = 1 / s;
      break;
    case Role::kHead:
      across = kHeadNorm;
      break;
    case Role::kDown: {
      const double mean = mean_along_ * static_cast<double>(along_[index]);
      combine(row, 1, (mean - dot(row, mean_activation_)) / mean_energy_, mean_activation_);
      return;
    }
    case Role::kNorm:
      for (float& value : row) value += 1;
      return;
    case Role::kQueryKey:
    case Role::kAttentionOut:
      return;
    case Role::kValue:
      break;
  }
  const double present = dot(row, along_);
  const double scale = across / std::sqrt(dot(row, row) - present * present);
  combine(row, scale, along - scale * present, along_);
}

// Deviation of a row's random elements before finish_row.
float PlantedRows::deviation() const {
  switch (tensor_.role) {
    case Role::kNorm:
      return kNormDeviation;
    case Role::kQueryKey:
      return static_cast<float>(1 / std::sqrt(static_cast<double>(tensor_.row)));
    case Role::kAttentionOut:
      return static_cast<float>(
          std::sqrt(kAttentionEnergy * (kGrowth - 1) * growth_before() / static_cast<double>(tensor_.row)));
    case Role::kDown:
      return noise_down_;
    case Role::kGate:
      return noise_ / std::sqrt(static_cast<float>(tensor_.row));
    default:
      return 1;
  }
}

void PlantedRows::write_group(uint64_t begin, uint64_t count, Buffers& buffers, uint8_t* out) {
  const size_t n = tensor_.row;
  const float noise = deviation();
  for (size_t i = 0; i < count; ++i)
    fill_normal(row_seed(begin + i), noise, {buffers.rows.data() + i * n, n});
  if (tensor_.role == Role::kGate) add_low_rank(begin, count, buffers);
  for (size_t i = 0; i < count; ++i) {
    finish_row(begin + i, {buffers.rows.data() + i * n, n});
    encode_row(tensor_.type, buffers.rows.data() + i * n, n, out + i * base::row_bytes(tensor_.type, n));
  }
}

void PlantedRows::write_rows(uint64_t begin, uint64_t count, std::span<uint8_t> out) {
  const uint64_t row_bytes = base::row_bytes(tensor_.type, tensor_.row);
  const uint64_t groups = (count + kGroup - 1) / kGroup;
  threads_.parallel_for(groups, 1, [&](size_t first, size_t last, int thread) {
    for (size_t group = first; group < last; ++group) {
      const uint64_t at = group * kGroup;
      write_group(begin + at, std::min<uint64_t>(kGroup, count - at), buffers_[static_cast<size_t>(thread)],
                  out.data() + at * row_bytes);
    }
  });
}

}  // namespace ganglion::synthesize
