// The AVX-VNNI table: products of 32-element blocks of its own, the rest from AVX2. Super-blocks multiply
// sums of pairs by their sub-scales, which vpdpbusd has none of.
#include "kernels/x86_avx2/avx2.h"
#include "kernels/x86_avxvnni/avxvnni.h"

namespace ganglion::kernels {
namespace {

KernelTable make_table() {
  KernelTable table = avx2_table();
  table.name = "avxvnni";
  for (const MatmulFn* part : {avxvnni_matmul_small(), avxvnni_gemm_small()}) {
    for (size_t slot = 0; slot < kTypeSlots; ++slot) {
      if (part[slot]) table.matmul[slot] = part[slot];
    }
  }
  return table;
}

}  // namespace

const KernelTable& avxvnni_table() {
  static const KernelTable table = make_table();
  return table;
}

}  // namespace ganglion::kernels
