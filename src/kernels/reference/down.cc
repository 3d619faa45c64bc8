// Scalar kernels of transposed down rows.
#include <cmath>

#include "kernels/reference/quantize.h"
#include "kernels/reference/reference.h"

namespace ganglion::kernels {
namespace {

// Each type: kBytes of a block of 32, the block's scale, and element i as a float before scaling.
struct Q4 {
  static constexpr size_t kBytes = 18;
  static float scale(const uint8_t* block) { return half_to_float(read_u16(block)); }
  static float code(const uint8_t* block, size_t i) {
    const uint8_t byte = block[2 + i % 16];
    return static_cast<float>((i < 16 ? byte & 15 : byte >> 4) - 8);
  }
};

struct Q6 {
  static constexpr size_t kBytes = 26;
  static float scale(const uint8_t* block) { return half_to_float(read_u16(block)); }
  static float code(const uint8_t* block, size_t i) {
    const uint8_t byte = block[2 + i % 16];
    const int high = block[18 + i % 8] >> (2 * (i / 8)) & 3;
    return static_cast<float>(((i < 16 ? byte & 15 : byte >> 4) | high << 4) - 32);
  }
};

struct Q8 {
  static constexpr size_t kBytes = 34;
  static float scale(const uint8_t* block) { return half_to_float(read_u16(block)); }
  static float code(const uint8_t* block, size_t i) {
    return static_cast<float>(static_cast<int8_t>(block[2 + i]));
  }
};

struct F16 {
  static constexpr size_t kBytes = 64;
  static float scale(const uint8_t*) { return 1; }
  static float code(const uint8_t* block, size_t i) { return half_to_float(read_u16(block + 2 * i)); }
};

struct F32 {
  static constexpr size_t kBytes = 128;
  static float scale(const uint8_t*) { return 1; }
  static float code(const uint8_t* block, size_t i) { return float_from_bits(read_u32(block + 4 * i)); }
};

template <class Type>
void down_axpy(const DownArgs& args) {
  for (size_t j = 0; j < args.count; ++j) {
    for (size_t i = 0; i < args.n; ++i) {
      const size_t at = args.begin + i;
      const uint8_t* block = args.rows[j] + at / 32 * Type::kBytes;
      args.out[i] = std::fmaf(args.weights[j] * Type::scale(block), Type::code(block, at % 32), args.out[i]);
    }
  }
}

}  // namespace

const DownAxpyFn* reference_down() {
  static const DownAxpyFn kernels[kDownTypes] = {down_axpy<Q4>, down_axpy<Q6>, down_axpy<Q8>, down_axpy<F16>,
                                                 down_axpy<F32>};
  return kernels;
}

}  // namespace ganglion::kernels
