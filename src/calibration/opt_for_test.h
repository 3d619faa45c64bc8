// A tiny OPT for tests: an FFN without a gate, layer norms, learned positions and biases everywhere, random
// weights. About a fifth of its neurons fire, as their biases have it.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "format/gguf.h"
#include "format/gguf_writer.h"
#include "kernels/kernel_table.h"

namespace ganglion::calibration {

/// Random numbers, the same each time.
class NoiseForTest {
 public:
  /// About normal.
  float next(float mean, float deviation) {
    double sum = 0;
    for (int i = 0; i < 12; ++i) {
      state_ ^= state_ << 13;
      state_ ^= state_ >> 7;
      state_ ^= state_ << 17;
      sum += static_cast<double>(state_ >> 11) * 0x1p-53;
    }
    return mean + deviation * static_cast<float>(sum - 6);
  }

 private:
  uint64_t state_ = 88172645463325252U;
};

class OptForTest {
 public:
  static constexpr uint64_t kDim = 64;
  static constexpr uint64_t kFfn = 416;  // More than two groups of sums.
  static constexpr uint64_t kLayers = 2;
  static constexpr uint64_t kContext = 512;

  /// With the vocabulary of `vocabulary`, a model file; large matrices in `type`: F32, Q4_0 or Q8_0. FFN
  /// biases are left out where `biased` is false.
  static base::Status write(const std::string& vocabulary, base::TensorType type, const std::string& path,
                            bool biased = true) {
    return OptForTest(type, path, biased).run(vocabulary);
  }

 private:
  struct Tensor {
    std::string name;
    base::TensorType type;
    std::vector<uint64_t> dims;
    float mean;
    float deviation;
  };

  OptForTest(base::TensorType type, const std::string& path, bool biased)
      : type_(type), biased_(biased), writer_(path) {}

  base::Status run(const std::string& vocabulary) {
    GANGLION_ASSIGN_OR_RETURN(const format::GgufModel source, format::GgufModel::open(vocabulary));
    for (const auto& [key, value] : source.metadata().values()) {
      if (key.rfind("tokenizer.", 0) == 0) writer_.add_value(key, value);
    }
    const uint64_t vocab = source.find_tensor("token_embd.weight")->dims[1];
    writer_.add_string("general.architecture", "opt");
    writer_.add_uint("opt.vocab_size", static_cast<uint32_t>(vocab));
    writer_.add_uint("opt.context_length", kContext);
    writer_.add_uint("opt.embedding_length", kDim);
    writer_.add_uint("opt.block_count", kLayers);
    writer_.add_uint("opt.feed_forward_length", kFfn);
    writer_.add_uint("opt.attention.head_count", 4);
    writer_.add_float("opt.attention.layer_norm_epsilon", 1e-5F);
    writer_.add_string("ganglion.ffn.activation", "relu");
    declare(vocab);
    for (const Tensor& t : tensors_) writer_.add_tensor(t.name, t.type, t.dims);
    GANGLION_RETURN_IF_ERROR(writer_.begin_data());
    for (const Tensor& t : tensors_) GANGLION_RETURN_IF_ERROR(fill(t));
    return writer_.finish();
  }

  void declare(uint64_t vocab) {
    const auto matrix = [&](const std::string& name, uint64_t rows, uint64_t cols) {
      tensors_.push_back({name, type_, {cols, rows}, 0, 1 / std::sqrt(static_cast<float>(cols))});
    };
    const auto vector = [&](const std::string& name, uint64_t size, float mean, float deviation) {
      tensors_.push_back({name, base::TensorType::kF32, {size}, mean, deviation});
    };
    const auto norm = [&](const std::string& name) {
      vector(name + ".weight", kDim, 1, 0.2F);
      vector(name + ".bias", kDim, 0, 0.2F);
    };
    tensors_.push_back({"token_embd.weight", base::TensorType::kF32, {kDim, vocab}, 0, 0.6F});
    tensors_.push_back({"position_embd.weight", base::TensorType::kF32, {kDim, kContext}, 0, 0.3F});
    for (uint64_t i = 0; i < kLayers; ++i) {
      const std::string p = "blk." + std::to_string(i) + ".";
      norm(p + "attn_norm");
      for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output"}) {
        matrix(p + name + ".weight", kDim, kDim);
        vector(p + name + ".bias", kDim, 0, 0.2F);
      }
      norm(p + "ffn_norm");
      matrix(p + "ffn_up.weight", kFfn, kDim);
      if (biased_) vector(p + "ffn_up.bias", kFfn, -1, 0.5F);
      matrix(p + "ffn_down.weight", kDim, kFfn);
      if (biased_) vector(p + "ffn_down.bias", kDim, 0, 0.3F);
    }
    norm("output_norm");
  }

  base::Status fill(const Tensor& t) {
    std::vector<float> row(t.dims[0]);
    std::vector<uint8_t> bytes(base::row_bytes(t.type, row.size()));
    const kernels::DownType form = t.type == base::TensorType::kF32    ? kernels::DownType::kF32
                                   : t.type == base::TensorType::kQ8_0 ? kernels::DownType::kQ8
                                                                       : kernels::DownType::kQ4;
    for (uint64_t r = 0; r < (t.dims.size() > 1 ? t.dims[1] : 1); ++r) {
      for (float& value : row) value = noise_.next(t.mean, t.deviation);
      kernels::quantize_down_row(form, row.data(), row.size(), bytes.data());
      GANGLION_RETURN_IF_ERROR(writer_.write(bytes));
    }
    return base::ok_status();
  }

  base::TensorType type_;
  bool biased_;
  format::GgufWriter writer_;
  std::vector<Tensor> tensors_;
  NoiseForTest noise_;
};

}  // namespace ganglion::calibration
