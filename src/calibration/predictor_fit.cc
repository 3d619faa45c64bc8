#include "calibration/predictor_fit.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <mutex>

#include "base/units.h"
#include "calibration/dense_rows.h"

namespace ganglion::calibration {

using base::TensorType;

namespace {

constexpr size_t kFitTokens = 2048;    // Of the subspace.
constexpr size_t kGramNeurons = 4096;  // Enough to find the tokens' principal directions.
constexpr size_t kNeuronBlock = 512;   // Neurons whose pre-activations are in memory at once.
constexpr size_t kOversampling = 16;
constexpr int kIterations = 8;
// Worths that are tried, each twice the one before.
constexpr size_t kWorths = 40;
// Tokens that an up projection's mean square is taken over.
constexpr size_t kUpTokens = 256;
// A predicted neuron that is in memory costs a hundredth of one that is read: a gate row from memory against
// a request. Which ones will be in memory is judged by rank: surely the first 30 %, surely not the last 40 %.
constexpr double kMemoryPrice = 0.01;
constexpr double kSurelyResident = 0.3;
constexpr double kSurelyNot = 0.6;

class Fitter {
 public:
  explicit Fitter(const FitInput& in)
      : in_(in),
        tokens_(in.inputs.size() / in.dim),
        fit_tokens_(std::min(tokens_, kFitTokens)),
        step_(fit_tokens_ > 0 ? tokens_ / fit_tokens_ : 1),
        gate_x_(*in.kernels, *in.threads, in.gate_type, tokens_, in.dim, in.inputs.data(), in.dim),
        up_x_(*in.kernels, *in.threads, in.up_type, up_tokens(in, tokens_), in.dim, in.inputs.data(),
              in.dim) {}

  Predictor run() {
    result_.frequency.assign(in_.neurons, 0);
    result_.offset.assign(in_.neurons, 0);
    result_.sigma.assign(in_.neurons, 0);
    result_.value.assign(in_.neurons, 0);
    if (in_.rank > 0) {
      result_.low.assign(in_.rank * base::row_bytes(TensorType::kQ8_0, in_.dim), 0);
      result_.out.assign(in_.neurons * in_.rank, 0);
    }
    if (tokens_ == 0) return result_;
    if (in_.rank == 0) {
      count_only();
      return result_;
    }
    if (in_.mlp_low.empty()) {
      factorise(token_directions());
    } else {
      take_mlp();
    }
    judge_worths();
    return result_;
  }

 private:
  // Tokens that products with ups are needed of.
  static size_t up_tokens(const FitInput& in, size_t tokens) {
    if (in.rectified_up) return tokens;
    return in.up.empty() ? 0 : std::min(tokens, kUpTokens);
  }

  float bias(size_t neuron) const { return in_.bias.empty() ? 0 : in_.bias[neuron]; }

  // Gate (and up) of a block of neurons for all tokens; fired(t, r) says whether a neuron fires.
  struct Block {
    Block(size_t tokens, size_t rows, const FitInput& in)
        : gate(tokens, rows),
          up(in.rectified_up ? tokens : 0, rows),
          rectified_up(in.rectified_up),
          threshold(in.threshold) {}
    bool fired(size_t t, size_t r) const { return gate[t][r] > threshold && (!rectified_up || up[t][r] > 0); }
    float value(size_t t, size_t r) const { return rectified_up ? gate[t][r] * up[t][r] : gate[t][r]; }
    Rows gate;
    Rows up;
    bool rectified_up;
    float threshold;
  };

  // out [x rows][weights rows]
  void multiply(const Rows& weights, const Rows& x, Rows* out) const {
    calibration::multiply(*in_.kernels, *in_.threads, TensorType::kF32,
                          {.weights = reinterpret_cast<const uint8_t*>(weights[0]),
                           .weight_stride = weights.stride() * sizeof(float),
                           .rows = weights.rows(),
                           .n = weights.cols(),
                           .x = reinterpret_cast<const uint8_t*>(x[0]),
                           .x_stride = x.stride() * sizeof(float),
                           .tokens = x.rows(),
                           .out = (*out)[0],
                           .out_stride = out->stride()});
  }

  // out [count][rows]: pre-activations of neurons [first, first + rows) for every `step`-th token.
  void pre_activations(bool up, size_t first, size_t rows, size_t step, size_t count, Rows* out) const {
    const TensorType type = up ? in_.up_type : in_.gate_type;
    calibration::multiply(*in_.kernels, *in_.threads,
                          {.type = type,
                           .data = (up ? in_.up : in_.gate).data() + first * base::row_bytes(type, in_.dim),
                           .rows = rows,
                           .n = in_.dim},
                          up ? up_x_ : gate_x_, count, out, step);
  }

  // Orthonormal directions [rank][fit tokens] in which the neurons' pre-activations vary most over the
  // tokens.
  Rows token_directions() {
    const size_t blocks = base::ceil_div(std::min(in_.neurons, kGramNeurons), kNeuronBlock);
    const size_t apart = base::ceil_div(in_.neurons, blocks);
    Rows samples(fit_tokens_, blocks * kNeuronBlock);
    for (size_t b = 0; b < blocks; ++b) {
      const size_t first = std::min(b * apart, in_.neurons - std::min(in_.neurons, kNeuronBlock));
      const size_t rows = std::min(kNeuronBlock, in_.neurons);
      Rows part(fit_tokens_, rows);
      pre_activations(false, first, rows, step_, fit_tokens_, &part);
      for (size_t t = 0; t < fit_tokens_; ++t)
        std::memcpy(samples[t] + b * kNeuronBlock, part[t], rows * sizeof(float));
    }
    Rows gram(fit_tokens_, fit_tokens_);
    multiply(samples, samples, &gram);
    Rows v(std::min<size_t>(in_.rank + kOversampling, fit_tokens_), fit_tokens_);
    uint64_t random = 88172645463325252U;
    for (size_t k = 0; k < v.rows(); ++k) {
      for (size_t t = 0; t < fit_tokens_; ++t) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        v[k][t] = static_cast<float>(static_cast<int64_t>(random)) * 0x1p-63F;
      }
    }
    orthonormalise(&v);
    Rows next(v.rows(), fit_tokens_);
    for (int i = 0; i < kIterations; ++i) {
      multiply(gram, v, &next);
      std::swap(v, next);
      orthonormalise(&v);
    }
    Rows directions(in_.rank, fit_tokens_);  // Rows beyond what the tokens span stay zero.
    for (size_t k = 0; k < std::min<size_t>(in_.rank, v.rows()); ++k)
      std::memcpy(directions[k], v[k], fit_tokens_ * sizeof(float));
    return directions;
  }

  // Modified Gram-Schmidt, twice; what vanishes becomes zero.
  void orthonormalise(Rows* v) const {
    const size_t n = v->cols();
    const auto dot = [n](const float* a, const float* b) {
      float lanes[16] = {};
      for (size_t i = 0; i + 16 <= n; i += 16) {
        for (size_t k = 0; k < 16; ++k) lanes[k] += a[i + k] * b[i + k];
      }
      double sum = 0;
      for (size_t i = n / 16 * 16; i < n; ++i) sum += static_cast<double>(a[i] * b[i]);
      for (const float lane : lanes) sum += static_cast<double>(lane);
      return sum;
    };
    for (size_t k = 0; k < v->rows(); ++k) {
      float* a = (*v)[k];
      const double before = std::sqrt(dot(a, a));
      const double norm = before;
      if (norm > 0) {
        for (size_t i = 0; i < n; ++i) a[i] = static_cast<float>(a[i] / norm);
      }
      const double left = std::sqrt(dot(a, a));
      if (left > 0) {
        for (size_t i = 0; i < n; ++i) a[i] = static_cast<float>(a[i] / left);
      }
      in_.threads->parallel_for(v->rows() - k - 1, 16, [&](size_t begin, size_t end, int) {
        for (size_t j = k + 1 + begin; j < k + 1 + end; ++j) {
          const auto along = static_cast<float>(dot((*v)[j], a));
          for (size_t i = 0; i < n; ++i) (*v)[j][i] -= along * a[i];
        }
      });
    }
  }

  // gate ~ out * low: out = Y V (each neuron's part along the directions), low = (out^T out)^-1 out^T gate.
  void factorise(const Rows& directions) {
    const size_t rank = in_.rank;
    Rows out(rank, in_.neurons);  // transposed
    for (size_t first = 0; first < in_.neurons; first += kNeuronBlock) {
      const size_t rows = std::min(kNeuronBlock, in_.neurons - first);
      Rows by_token(fit_tokens_, rows);
      pre_activations(false, first, rows, step_, fit_tokens_, &by_token);
      Rows by_neuron(rows, fit_tokens_);
      for (size_t t = 0; t < fit_tokens_; ++t) {
        for (size_t r = 0; r < rows; ++r) {
          by_neuron[r][t] = by_token[t][r];
          result_.frequency[first + r] += by_token[t][r] + bias(first + r) > in_.threshold
                                              ? 1.0F
                                              : 0.0F;  // For prices; counted well later.
        }
      }
      Rows part(rank, rows);
      multiply(by_neuron, directions, &part);
      for (size_t k = 0; k < rank; ++k) std::memcpy(out[k] + first, part[k], rows * sizeof(float));
    }
    Rows moment(rank, rank);
    multiply(out, out, &moment);
    Rows low(rank, in_.dim);
    project_gate(out, &low);
    solve(moment, &low);
    // Both factors get the square root of a component's size, so that few bits serve both.
    std::vector<float> balance(rank, 0);
    for (size_t k = 0; k < rank; ++k) {
      const float size = std::sqrt(std::max(moment[k][k], 0.0F));
      balance[k] = size > 0 ? 1 / std::sqrt(size) : 0;
      for (size_t d = 0; d < in_.dim; ++d) low[k][d] *= std::sqrt(size);
      keep_low(k, low[k]);
    }
    for (size_t k = 0; k < rank; ++k) {
      float* to = &result_.out[k * in_.neurons];
      for (size_t f = 0; f < in_.neurons; ++f) to[f] = out[k][f] * balance[k];
    }
    round_out();
  }

  void keep_low(size_t k, const float* row) {
    kernels::quantize_down_row(kernels::DownType::kQ8, row, in_.dim,
                               result_.low.data() + k * base::row_bytes(TensorType::kQ8_0, in_.dim));
  }

  // Blocks of the file hold neurons in another order, but round about as well.
  void round_out() {
    std::vector<uint8_t> row(kernels::down_row_bytes(kPredictorType, in_.neurons));
    for (size_t k = 0; k < in_.rank; ++k) {
      float* to = &result_.out[k * in_.neurons];
      kernels::quantize_down_row(kPredictorType, to, in_.neurons, row.data());
      in_.kernels->dequantize[static_cast<size_t>(TensorType::kQ4_0)](row.data(), in_.neurons, to);
    }
  }

  // The carried predictor's factors, each neuron's scores scaled to its gate by least squares over the
  // tokens.
  void take_mlp() {
    const size_t width = in_.mlp_low.size() / in_.dim;
    for (size_t k = 0; k < width; ++k) {
      keep_low(k, in_.mlp_low.data() + k * in_.dim);
      for (size_t f = 0; f < in_.neurons; ++f) result_.out[k * in_.neurons + f] = in_.mlp_out[f * width + k];
    }
    const Rows low = low_products();
    for (size_t first = 0; first < in_.neurons; first += kNeuronBlock) {
      const size_t rows = std::min(kNeuronBlock, in_.neurons - first);
      Block block(tokens_, rows, in_);
      fill(first, rows, &block);
      const Rows scores = scores_of(low, first, rows);
      for (size_t r = 0; r < rows; ++r) {
        const float scale = slope(block, scores, r);
        for (size_t k = 0; k < width; ++k) result_.out[k * in_.neurons + first + r] *= scale;
      }
    }
    round_out();
  }

  // Of the line through (score, gate) that misses gates least.
  float slope(const Block& block, const Rows& scores, size_t r) const {
    double score = 0, gate = 0, square = 0, product = 0;
    for (size_t t = 0; t < tokens_; ++t) {
      const auto s = static_cast<double>(scores[t][r]);
      const auto g = static_cast<double>(block.gate[t][r]);
      score += s;
      gate += g;
      square += s * s;
      product += s * g;
    }
    const auto n = static_cast<double>(tokens_);
    const double spread = square - score * score / n;
    return spread > 1e-12 * square ? static_cast<float>((product - score * gate / n) / spread) : 0;
  }

  // [tokens][rank]: what the first factor makes of the inputs.
  Rows low_products() const {
    Rows low(tokens_, in_.rank);
    const Activations x(*in_.kernels, *in_.threads, TensorType::kQ8_0, tokens_, in_.dim, in_.inputs.data(),
                        in_.dim);
    calibration::multiply(
        *in_.kernels, *in_.threads,
        {.type = TensorType::kQ8_0, .data = result_.low.data(), .rows = in_.rank, .n = in_.dim}, x, tokens_,
        &low);
    if (in_.mlp_low.empty()) return low;
    for (size_t t = 0; t < tokens_; ++t) {
      for (size_t k = 0; k < in_.rank; ++k) low[t][k] = std::max(low[t][k], 0.0F);
    }
    return low;
  }

  // [tokens][rows]: scores of neurons [first, first + rows).
  Rows scores_of(const Rows& low, size_t first, size_t rows) const {
    Rows out(rows, in_.rank);
    for (size_t k = 0; k < in_.rank; ++k) {
      for (size_t r = 0; r < rows; ++r) out[r][k] = result_.out[k * in_.neurons + first + r];
    }
    Rows scores(tokens_, rows);
    multiply(out, low, &scores);
    return scores;
  }

  // low [rank][D] = out^T gate, block by block of neurons.
  void project_gate(const Rows& out, Rows* low) const {
    const size_t bytes = base::row_bytes(in_.gate_type, in_.dim);
    Rows part(in_.rank, in_.dim);
    for (size_t first = 0; first < in_.neurons; first += kNeuronBlock) {
      const size_t rows = std::min(kNeuronBlock, in_.neurons - first);
      Rows columns(in_.dim, rows);
      Rows weights(rows, in_.dim);
      in_.threads->parallel_for(rows, 16, [&](size_t begin, size_t end, int) {
        for (size_t r = begin; r < end; ++r) {
          in_.kernels->dequantize[static_cast<size_t>(in_.gate_type)](in_.gate.data() + (first + r) * bytes,
                                                                      in_.dim, weights[r]);
        }
      });
      in_.threads->parallel_for(in_.dim, 64, [&](size_t begin, size_t end, int) {
        for (size_t r = 0; r < rows; ++r) {
          for (size_t d = begin; d < end; ++d) columns[d][r] = weights[r][d];
        }
      });
      Rows x(in_.rank, rows);
      for (size_t k = 0; k < in_.rank; ++k) std::memcpy(x[k], out[k] + first, rows * sizeof(float));
      multiply(columns, x, &part);
      for (size_t k = 0; k < in_.rank; ++k) {
        for (size_t d = 0; d < in_.dim; ++d) (*low)[k][d] += part[k][d];
      }
    }
  }

  // low = moment^-1 low, by Cholesky with a little added to the diagonal.
  void solve(const Rows& moment, Rows* low) const {
    const size_t n = in_.rank;
    std::vector<double> l(n * n, 0);
    double trace = 0;
    for (size_t i = 0; i < n; ++i) trace += static_cast<double>(moment[i][i]);
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j <= i; ++j) {
        double sum = static_cast<double>(moment[i][j]) + (i == j ? 1e-9 * trace + 1e-30 : 0);
        for (size_t k = 0; k < j; ++k) sum -= l[i * n + k] * l[j * n + k];
        l[i * n + j] = i == j ? std::sqrt(std::max(sum, 1e-30)) : sum / l[j * n + j];
      }
    }
    in_.threads->parallel_for(in_.dim, 64, [&](size_t begin, size_t end, int) {
      std::vector<double> x(n);
      for (size_t d = begin; d < end; ++d) {
        for (size_t i = 0; i < n; ++i) {
          double sum = static_cast<double>((*low)[i][d]);
          for (size_t k = 0; k < i; ++k) sum -= l[i * n + k] * x[k];
          x[i] = sum / l[i * n + i];
        }
        for (size_t i = n; i-- > 0;) {
          double sum = x[i];
          for (size_t k = i + 1; k < n; ++k) sum -= l[k * n + i] * x[k];
          x[i] = sum / l[i * n + i];
          (*low)[i][d] = static_cast<float>(x[i]);
        }
      }
    });
  }

  void fill(size_t first, size_t rows, Block* block) {
    pre_activations(false, first, rows, 1, tokens_, &block->gate);
    if (in_.rectified_up) pre_activations(true, first, rows, 1, tokens_, &block->up);
    for (size_t t = 0; t < tokens_ && !in_.bias.empty(); ++t) {
      for (size_t r = 0; r < rows; ++r) block->gate[t][r] += in_.bias[first + r];
    }
    for (size_t r = 0; r < rows; ++r) result_.frequency[first + r] = 0;
    for (size_t t = 0; t < tokens_; ++t) {
      for (size_t r = 0; r < rows; ++r) result_.frequency[first + r] += block->fired(t, r) ? 1.0F : 0.0F;
    }
    for (size_t r = 0; r < rows; ++r) result_.frequency[first + r] /= static_cast<float>(tokens_);
  }

  void count_only() {
    for (size_t first = 0; first < in_.neurons; first += kNeuronBlock) {
      const size_t rows = std::min(kNeuronBlock, in_.neurons - first);
      Block block(tokens_, rows, in_);
      fill(first, rows, &block);
    }
    sum_up_frequencies();
    for (Predictor::Level& level : result_.levels) level.over_prediction = 1 / std::max(result_.active, 1e-9);
  }

  void sum_up_frequencies() {
    double active = 0;
    for (const float f : result_.frequency) active += static_cast<double>(f);
    result_.active = active / static_cast<double>(in_.neurons);
    result_.top_30 = top_30_share(result_.frequency);
  }

  // What a worth finds, summed over neurons. A prediction counts where it begins; sums run later.
  struct Tally {
    double mass = 0;
    double found = 0;
    double predicted = 0;
  };

  void judge_worths() {
    const std::vector<double> prices = read_prices();
    const Rows low = low_products();
    std::vector<Tally> tallies(kWorths + 1);  // The last one: not predicted at any worth.
    for (size_t first = 0; first < in_.neurons; first += kNeuronBlock) {
      const size_t rows = std::min(kNeuronBlock, in_.neurons - first);
      Block block(tokens_, rows, in_);
      fill(first, rows, &block);
      const std::vector<double> up_squares = mean_up_squares(first, rows, block);
      Rows scores = scores_of(low, first, rows);
      std::mutex mutex;
      in_.threads->parallel_for(rows, 8, [&](size_t begin, size_t end, int) {
        std::vector<Tally> mine(kWorths + 1);
        for (size_t r = begin; r < end; ++r) {
          const size_t f = first + r;
          const auto norm = static_cast<double>(in_.down_norm[f]);
          if (!in_.mlp_low.empty() || !in_.bias.empty()) result_.offset[f] = centre(block, &scores, r);
          result_.sigma[f] = deviation(block, scores, r);
          result_.value[f] = static_cast<float>(norm * norm * up_squares[r] / prices[f]);
          tally(block, scores, f, r, mine.data());
        }
        const std::lock_guard<std::mutex> lock(mutex);
        for (size_t w = 0; w <= kWorths; ++w) {
          tallies[w].mass += mine[w].mass;
          tallies[w].found += mine[w].found;
          tallies[w].predicted += mine[w].predicted;
        }
      });
    }
    for (size_t w = 1; w <= kWorths; ++w) {
      tallies[w].mass += tallies[w - 1].mass;
      tallies[w].found += tallies[w - 1].found;
      tallies[w].predicted += tallies[w - 1].predicted;
    }
    choose_levels(tallies);
  }

  void choose_levels(const std::vector<Tally>& tallies) {
    sum_up_frequencies();
    const Tally& all = tallies[kWorths];
    size_t w = 0;
    for (size_t i = 0; i < kRecallLevels; ++i) {
      const double miss = std::ldexp(1 - in_.recall, -static_cast<int>(i));
      while (w + 1 < kWorths && tallies[w].mass < (1 - miss) * all.mass) ++w;
      result_.levels[i] = {.worth = worth(w),
                           .recall = all.found > 0 ? tallies[w].found / all.found : 1,
                           .mass_recall = all.mass > 0 ? tallies[w].mass / all.mass : 1,
                           .over_prediction = all.found > 0 ? tallies[w].predicted / all.found : 0};
    }
  }

  static double worth(size_t i) { return std::ldexp(1.0, static_cast<int>(i) - 20); }

  // By neuron: what predicting it costs, from its place in the order of frequencies.
  std::vector<double> read_prices() const {
    std::vector<uint32_t> order(in_.neurons);
    for (size_t f = 0; f < in_.neurons; ++f) order[f] = static_cast<uint32_t>(f);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return result_.frequency[a] > result_.frequency[b]; });
    std::vector<double> prices(in_.neurons);
    for (size_t i = 0; i < order.size(); ++i) {
      const double place = static_cast<double>(i) / static_cast<double>(order.size());
      const double absent = std::clamp((place - kSurelyResident) / (kSurelyNot - kSurelyResident), 0.0, 1.0);
      prices[order[i]] = kMemoryPrice + (1 - kMemoryPrice) * absent;
    }
    return prices;
  }

  // [rows] of what a gate is multiplied by; a rectified up only counts where it is positive.
  std::vector<double> mean_up_squares(size_t first, size_t rows, const Block& block) const {
    if (in_.up.empty()) return std::vector<double>(rows, 1);
    const size_t count = std::min(tokens_, kUpTokens);
    Rows own(in_.rectified_up ? 0 : count, rows);
    if (!in_.rectified_up) pre_activations(true, first, rows, 1, count, &own);
    const Rows& up = in_.rectified_up ? block.up : own;
    std::vector<double> squares(rows, 1e-12);
    for (size_t t = 0; t < up.rows(); ++t) {
      for (size_t r = 0; r < rows; ++r) {
        const auto value = static_cast<double>(in_.rectified_up ? std::max(up[t][r], 0.0F) : up[t][r]);
        squares[r] += value * value / static_cast<double>(up.rows());
      }
    }
    return squares;
  }

  // Adds what scores miss of gates on the mean.
  float centre(const Block& block, Rows* scores, size_t r) const {
    double miss = 0;
    for (size_t t = 0; t < tokens_; ++t) miss += static_cast<double>(block.gate[t][r] - (*scores)[t][r]);
    const auto offset = static_cast<float>(miss / static_cast<double>(tokens_));
    for (size_t t = 0; t < tokens_; ++t) (*scores)[t][r] += offset;
    return offset;
  }

  float deviation(const Block& block, const Rows& scores, size_t r) const {
    double squares = 0;
    for (size_t t = 0; t < tokens_; ++t) {
      const auto miss = static_cast<double>(block.gate[t][r] - scores[t][r]);
      squares += miss * miss;
    }
    return static_cast<float>(std::sqrt(squares / static_cast<double>(tokens_)));
  }

  // Adds each token's activation of a neuron to the least worth that predicts it.
  void tally(const Block& block, const Rows& scores, size_t neuron, size_t r, Tally* tallies) const {
    float thresholds[kWorths];  // descending
    for (size_t w = 0; w < kWorths; ++w)
      thresholds[w] = threshold_for(result_.sigma[neuron], result_.value[neuron], worth(w), in_.threshold);
    for (size_t t = 0; t < tokens_; ++t) {
      const float score = scores[t][r];
      const float* least = std::partition_point(thresholds, thresholds + kWorths,
                                                [score](float threshold) { return score <= threshold; });
      Tally& tally = tallies[least - thresholds];
      tally.predicted += 1;
      if (!block.fired(t, r)) continue;
      tally.found += 1;
      tally.mass += static_cast<double>(block.value(t, r) * in_.down_norm[neuron]);
    }
  }

  const FitInput& in_;
  size_t tokens_;
  size_t fit_tokens_;
  size_t step_;
  Activations gate_x_;
  Activations up_x_;
  Predictor result_;
};

}  // namespace

double top_30_share(std::span<const float> frequency) {
  std::vector<float> sorted(frequency.begin(), frequency.end());
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  double all = 0;
  double top = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    all += static_cast<double>(sorted[i]);
    if (i < sorted.size() * 3 / 10) top += static_cast<double>(sorted[i]);
  }
  return all > 0 ? top / all : 0;
}

float threshold_for(float sigma, float value, double worth, float gate_threshold) {
  const double deviation = std::max(static_cast<double>(sigma), 1e-9);
  const auto least = static_cast<double>(gate_threshold);
  // E[v^2; v > least] of a gate v that is normal around `score`; it grows with the score.
  const auto expected_square = [=](double score) {
    constexpr double kRootHalf = 0.70710678118654752;
    constexpr double kNormal = 0.39894228040143268;
    const double a = (score - least) / deviation;
    return (score * score + deviation * deviation) * 0.5 * std::erfc(-a * kRootHalf) +
           deviation * (score + least) * kNormal * std::exp(-a * a / 2);
  };
  const double wanted = 1 / std::max(worth * static_cast<double>(value), 1e-300);
  double low = least - 8 * deviation;
  double high = least + 8 * deviation + std::sqrt(wanted);
  for (int i = 0; i < 32; ++i) {
    const double middle = (low + high) / 2;
    (expected_square(middle) < wanted ? low : high) = middle;
  }
  return static_cast<float>(std::min(high, static_cast<double>(FLT_MAX)));
}

uint64_t predictor_fit_bytes(size_t neurons, size_t dim, uint32_t rank, size_t tokens) {
  const uint64_t fit = std::min(tokens, kFitTokens);
  const uint64_t gram = fit * (std::min(neurons, kGramNeurons) + 2 * kNeuronBlock + fit);
  const uint64_t subspace = 3 * (rank + kOversampling) * fit;
  const uint64_t factors = uint64_t{rank} * (2 * neurons + 3 * dim + rank) + 2 * kNeuronBlock * dim;
  const uint64_t blocks = uint64_t{tokens} * (2 * kNeuronBlock + rank) + 4 * neurons;
  return sizeof(float) * (std::max(gram, blocks) + subspace + factors);
}

Predictor fit_predictor(const FitInput& input) {
  return Fitter(input).run();
}

}  // namespace ganglion::calibration
