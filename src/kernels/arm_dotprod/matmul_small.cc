// arm_neon/matmul_small.cc, compiled for the dot product instructions.
#include "kernels/arm_neon/matmul_small.cc"
