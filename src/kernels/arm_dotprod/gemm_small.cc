// arm_neon/gemm_small.cc, compiled for the dot product instructions.
#include "kernels/arm_neon/gemm_small.cc"
