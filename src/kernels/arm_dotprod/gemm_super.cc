// arm_neon/gemm_super.cc, compiled for the dot product instructions.
#include "kernels/arm_neon/gemm_super.cc"
