#include "profile/kernel_rate.h"

#include <vector>

#include "kernels/kernel_table.h"
#include "kernels/random_blocks.h"
#include "platform/clock.h"

namespace ganglion::profile {

double measure_kernel(base::TensorType type, const std::string& isa, size_t tokens, int64_t duration_ns) {
  constexpr size_t kRows = 64;
  constexpr size_t kColumns = 2048;
  const kernels::KernelTable* table = kernels::select_table(isa);
  if (table == nullptr) table = &kernels::reference_table();
  const kernels::ActivationForm form = kernels::activation_form(type);
  const size_t row_bytes = base::row_bytes(type, kColumns);
  const size_t x_bytes = kernels::activation_row_bytes(form, kColumns);
  std::vector<uint8_t> weights(kRows * row_bytes);
  uint64_t random = 7;
  kernels::fill_random_blocks(type, kRows * kColumns, &random, weights.data());
  std::vector<float> floats(kColumns);
  kernels::fill_random_floats(kColumns, &random, floats.data());
  constexpr size_t kAlign = 64;
  std::vector<uint8_t> x(tokens * x_bytes + kAlign);
  uint8_t* aligned = x.data() + (kAlign - reinterpret_cast<uintptr_t>(x.data()) % kAlign) % kAlign;
  for (size_t t = 0; t < tokens; ++t)
    table->store_activation(form, floats.data(), kColumns, aligned + t * x_bytes);
  std::vector<float> out(tokens * kRows);
  const kernels::MatmulArgs args = {weights.data(), row_bytes, kRows,      kColumns, aligned,
                                    x_bytes,        tokens,    out.data(), kRows};
  const int64_t start = platform::now_ns();
  double done = 0;
  while (platform::now_ns() - start < duration_ns) {
    table->matmul[static_cast<size_t>(type)](args);
    done += static_cast<double>(kRows * kColumns * tokens);
  }
  return done * 1e9 / static_cast<double>(platform::now_ns() - start);
}

}  // namespace ganglion::profile
