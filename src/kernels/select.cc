// Which tables there are, and the layout of activation rows that all of them share.
#include "kernels/kernel_table.h"

#if defined(GANGLION_KERNELS_X86)
#include <cpuid.h>
#elif defined(GANGLION_KERNELS_ARM)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "base/units.h"
#if defined(GANGLION_KERNELS_X86)
#include "kernels/x86_avx2/avx2.h"
#include "kernels/x86_avx512vnni/avx512vnni.h"
#include "kernels/x86_avxvnni/avxvnni.h"
#elif defined(GANGLION_KERNELS_ARM)
#include "kernels/arm_dotprod/dotprod.h"
#include "kernels/arm_i8mm/i8mm.h"
#include "kernels/arm_neon/neon.h"
#endif

namespace ganglion::kernels {
namespace {

#if defined(GANGLION_KERNELS_X86)
/// AVX2, FMA and F16C. The first two answers include the operating system's support for wide registers, which
/// is all that F16C needs of it; for F16C itself, not every compiler has a builtin.
bool processor_has_avx2() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

/// Not every compiler has a builtin for AVX-VNNI: leaf 7, subleaf 1.
bool processor_has_avxvnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kAvxVnni = 1U << 4;
  return processor_has_avx2() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 &&
         (eax & kAvxVnni) != 0;
}

/// The parts of AVX-512 that its table is compiled for. It also uses AVX2 kernels.
bool processor_has_avx512vnni() {
  return processor_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}
#elif defined(GANGLION_KERNELS_ARM)
bool processor_has_dotprod() {
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
}

/// The table of matrix instructions also uses kernels of the dot product ones.
bool processor_has_i8mm() {
  return processor_has_dotprod() && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
}
#endif

struct Available {
  const KernelTable* tables[4] = {};
  size_t count = 0;
};

Available find_tables() {
  Available available;
#if defined(GANGLION_KERNELS_X86)
  if (processor_has_avx512vnni()) {
    available.tables[available.count++] = &avx512vnni_table();
  }
  if (processor_has_avxvnni()) {
    available.tables[available.count++] = &avxvnni_table();
  }
  if (processor_has_avx2()) {
    available.tables[available.count++] = &avx2_table();
  }
#elif defined(GANGLION_KERNELS_ARM)
  if (processor_has_i8mm()) available.tables[available.count++] = &i8mm_table();
  if (processor_has_dotprod()) available.tables[available.count++] = &dotprod_table();
  available.tables[available.count++] = &neon_table();
#endif
  available.tables[available.count++] = &reference_table();
  return available;
}

}  // namespace

ActivationForm activation_form(TensorType weight_type) {
  switch (weight_type) {
    case TensorType::kQ4_0:
    case TensorType::kQ4_1:
    case TensorType::kQ5_0:
    case TensorType::kQ5_1:
    case TensorType::kQ8_0:
    case TensorType::kIQ4_NL:
    case TensorType::kMXFP4:
      return ActivationForm::kQ8Block32;
    case TensorType::kQ2_K:
    case TensorType::kQ3_K:
    case TensorType::kQ4_K:
    case TensorType::kQ5_K:
    case TensorType::kQ6_K:
    case TensorType::kIQ4_XS:
      return ActivationForm::kQ8Block256;
    default:
      return ActivationForm::kF32;
  }
}

size_t activation_scales_offset(size_t n) {
  return base::round_up(n, 64);
}

size_t activation_sums_offset(ActivationForm form, size_t n) {
  const size_t scales = form == ActivationForm::kQ8Block32 ? n / 32 : n / 256;
  return activation_scales_offset(n) + base::round_up(scales * sizeof(float), 64);
}

size_t activation_row_bytes(ActivationForm form, size_t n) {
  if (form == ActivationForm::kF32) return base::round_up(n * sizeof(float), 64);
  const size_t sums = form == ActivationForm::kQ8Block32 ? n / 32 : n / 16;
  return activation_sums_offset(form, n) + base::round_up(sums * sizeof(int16_t), 64);
}

std::span<const KernelTable* const> available_tables() {
  static const Available available = find_tables();
  return {available.tables, available.count};
}

const KernelTable* select_table(std::string_view name) {
  for (const KernelTable* table : available_tables()) {
    if (name.empty() || name == table->name) return table;
  }
  return nullptr;
}

}  // namespace ganglion::kernels
