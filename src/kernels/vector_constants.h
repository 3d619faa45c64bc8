// Constants of exp and of the gated activations. All tables run the same operations on the same constants, so
// that they agree bit for bit; the operations are written out in reference/reference_table.cc.
#pragma once

namespace ganglion::kernels {

/// Below, exp is 0; above, infinity. Arguments are clamped to this range first.
static constexpr float kExpLowest = -105.0f;
static constexpr float kExpHighest = 89.0f;
static constexpr float kLog2E = 0x1.715476p+0f;
/// ln 2 in two parts, the first with few bits.
static constexpr float kLn2High = 0x1.62e4p-1f;
static constexpr float kLn2Low = 0x1.7f7d1cp-20f;
/// Adding and subtracting 1.5 * 2^23 rounds to an integer, which is then also in the low bits.
static constexpr float kRoundMagic = 0x1.8p+23f;
/// exp(r) = 1 + r + r^2 * (c0 + c1 r + .. + c4 r^4) for |r| <= ln(2) / 2, fitted for the least relative error
/// (0.06 ulp).
static constexpr float kExpC0 = 0x1.fffffcp-2f;
static constexpr float kExpC1 = 0x1.555490p-3f;
static constexpr float kExpC2 = 0x1.5558f4p-5f;
static constexpr float kExpC3 = 0x1.123a6cp-7f;
static constexpr float kExpC4 = 0x1.6a2352p-10f;
/// sqrt(2 / pi) * 2 and the cubic term of the tanh form of GELU.
static constexpr float kGeluScale = 1.5957691216057308f;
static constexpr float kGeluCubic = 0.044715f;
/// SwiGLU as gpt-oss has it: the slope of its sigmoid, and the clamp of gate and up.
static constexpr float kSwigluSlope = 1.702f;
static constexpr float kSwigluLimit = 7.0f;

/// Blocks with a smaller maximum are stored as zeros: 127 / 2^-100 is still finite.
static constexpr float kQuantFloor = 0x1p-100f;

}  // namespace ganglion::kernels
