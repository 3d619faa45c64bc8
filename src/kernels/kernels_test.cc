// Every table against the reference bit for bit, the reference against the fixtures and against float64.
#include "kernels/kernel_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/units.h"
#include "kernels/random_blocks.h"

namespace ganglion::kernels {
namespace {

using base::TensorTypeInfo;

std::vector<uint8_t> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<size_t> sizes(std::initializer_list<size_t> list) {
  return list;
}

/// Bytes at a 64-byte boundary, or `skew` behind one.
class Aligned {
 public:
  explicit Aligned(size_t bytes, size_t skew = 0) : storage_(bytes + 64 + skew) {
    const size_t misfit = reinterpret_cast<uintptr_t>(storage_.data()) % 64;
    data_ = storage_.data() + (64 - misfit) % 64 + skew;
  }
  uint8_t* data() { return data_; }

 private:
  std::vector<uint8_t> storage_;
  uint8_t* data_;
};

size_t slot_of(const TensorTypeInfo& info) {
  return static_cast<size_t>(info.type);
}

std::vector<TensorTypeInfo> computable_types() {
  std::vector<TensorTypeInfo> types;
  for (const TensorTypeInfo& info : base::all_tensor_types()) {
    if (info.computable) types.push_back(info);
  }
  return types;
}

std::vector<float> random_floats(size_t n, uint64_t seed) {
  std::vector<float> values(n);
  fill_random_floats(n, &seed, values.data());
  return values;
}

/// A product of one type: weights, activations in the type's form and as floats.
struct Problem {
  Problem(const TensorTypeInfo& info, size_t rows_in, size_t n_in, size_t tokens_in, uint64_t seed,
          size_t skew = 0)
      : type(info.type),
        rows(rows_in),
        n(n_in),
        tokens(tokens_in),
        stride(base::row_bytes(type, n)),
        form(activation_form(type)),
        x_stride(activation_row_bytes(form, n)),
        x(random_floats(n * tokens, seed)),
        weights(rows * stride, skew),
        stored(tokens * x_stride) {
    fill_random_blocks(type, rows * n, &seed, weights.data());
    for (size_t t = 0; t < tokens; ++t) {
      reference_table().store_activation(form, x.data() + t * n, n, stored.data() + t * x_stride);
    }
  }
  std::vector<float> run(const KernelTable& table, size_t first_token, size_t token_count,
                         bool scattered = false) {
    std::vector<float> out(token_count * (rows + 1), -1.0f);  // One float more a token: nothing may write it.
    MatmulArgs args{weights.data(), stride,      rows,       n,       stored.data() + first_token * x_stride,
                    x_stride,       token_count, out.data(), rows + 1};
    std::vector<const uint8_t*> row_list;
    if (scattered) {
      for (size_t r = 0; r < rows; ++r) row_list.push_back(args.row(r));
      args.scattered = row_list.data();
      args.weights = nullptr;
      args.weight_stride = 0;
    }
    table.matmul[static_cast<size_t>(type)](args);
    return out;
  }

  TensorType type;
  size_t rows, n, tokens, stride;
  ActivationForm form;
  size_t x_stride;
  std::vector<float> x;
  Aligned weights;
  Aligned stored;
};

/// Compares bits; reports the first difference.
void expect_same(const std::vector<float>& expected, const std::vector<float>& got, const std::string& what) {
  ASSERT_EQ(expected.size(), got.size()) << what;
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(0, memcmp(&expected[i], &got[i], 4))
        << what << " at " << i << ": " << expected[i] << " vs " << got[i];
  }
}

std::string label(const KernelTable& table, const TensorTypeInfo& info) {
  return std::string(table.name) + " " + std::string(info.name);
}

TEST(Dequantize, FixturesMatchBitForBitInEveryTable) {
  const std::string folder = std::string(GANGLION_FIXTURES) + "/quants/";
  std::ifstream file(folder + "manifest.json");
  const nlohmann::json manifest = nlohmann::json::parse(file);
  size_t compared = 0;
  for (const auto& entry : manifest.at("entries")) {
    const std::vector<uint8_t> raw = read_file(folder + entry.at("raw_file").get<std::string>());
    const std::vector<uint8_t> expected = read_file(folder + entry.at("values_file").get<std::string>());
    const TensorTypeInfo* info = base::find_tensor_type(entry.at("id").get<uint32_t>());
    ASSERT_NE(nullptr, info);
    const size_t rows = entry.at("rows").get<size_t>();
    const size_t cols = entry.at("cols").get<size_t>();
    ASSERT_EQ(rows * base::row_bytes(info->type, cols), raw.size());
    ASSERT_EQ(rows * cols * sizeof(float), expected.size());
    for (const KernelTable* table : available_tables()) {
      std::vector<float> got(cols);
      for (size_t r = 0; r < rows; ++r) {
        ASSERT_NE(nullptr, table->dequantize[slot_of(*info)]) << info->name;
        table->dequantize[slot_of(*info)](raw.data() + r * base::row_bytes(info->type, cols), cols,
                                          got.data());
        EXPECT_EQ(0, memcmp(got.data(), expected.data() + r * cols * sizeof(float), cols * sizeof(float)))
            << table->name << " " << entry.at("name") << " row " << r;
      }
    }
    ++compared;
  }
  EXPECT_GE(compared, 40u);
}

TEST(Table, HasEveryComputableTypeAndNoOther) {
  for (const KernelTable* table : available_tables()) {
    for (uint32_t number = 0; number < kTypeSlots; ++number) {
      const TensorTypeInfo* info = base::find_tensor_type(number);
      const bool computable = info && info->computable;
      EXPECT_EQ(computable, table->matmul[number] != nullptr) << number;
      EXPECT_EQ(computable, table->dequantize[number] != nullptr) << number;
    }
  }
}

TEST(Matmul, EqualsReferenceForOddShapes) {
  for (const TensorTypeInfo& info : computable_types()) {
    const size_t unit = info.block_elems == 1 ? 8 : info.block_elems;
    for (const size_t blocks : sizes({1, 3, 8, 13, 17})) {
      for (size_t rows = 1; rows <= 9; ++rows) {
        Problem problem(info, rows, blocks * unit, 7, 1000 * rows + blocks);
        const std::vector<float> expected = problem.run(reference_table(), 0, 7);
        for (const KernelTable* table : available_tables()) {
          expect_same(expected, problem.run(*table, 0, 7), label(*table, info));
        }
      }
    }
  }
}

TEST(Matmul, EqualsReferenceForEveryTokenCount) {
  for (const TensorTypeInfo& info : computable_types()) {
    for (const size_t tokens : sizes({1, 2, 3, 4, 5, 6, 7, 8, 33})) {
      Problem problem(info, 5, 1280, tokens, 77 + tokens);
      const std::vector<float> expected = problem.run(reference_table(), 0, tokens);
      for (const KernelTable* table : available_tables()) {
        expect_same(expected, problem.run(*table, 0, tokens), label(*table, info));
        expect_same(expected, problem.run(*table, 0, tokens, true), label(*table, info) + ", scattered");
      }
    }
  }
}

/// Tiles of rows and tokens, full and partial, and pieces of rows: some blocks past a piece's end.
TEST(Matmul, EqualsReferenceInTilesOfEveryShape) {
  for (const TensorTypeInfo& info : computable_types()) {
    if (activation_form(info.type) == ActivationForm::kF32) continue;
    const size_t n = info.block_elems * (info.block_elems == 32 ? 43 : 11);
    for (const size_t tokens : sizes({1, 2, 3, 4, 5, 6, 9, 33, 65, 128})) {
      for (size_t rows = 1; rows <= 33; ++rows) {
        if (tokens != 5 && rows % 8 > 1) continue;  // The reference is slow.
        if (tokens > 9 && rows != 17) continue;
        Problem problem(info, rows, n, tokens, rows + tokens, rows % 3);
        const std::vector<float> expected = problem.run(reference_table(), 0, tokens);
        for (const KernelTable* table : available_tables()) {
          expect_same(expected, problem.run(*table, 0, tokens), label(*table, info));
          expect_same(expected, problem.run(*table, 0, tokens, true), label(*table, info) + ", scattered");
        }
      }
    }
  }
}

TEST(Matmul, PlainTypesTakeScatteredRows) {
  for (const TensorTypeInfo& info : computable_types()) {
    if (activation_form(info.type) != ActivationForm::kF32) continue;
    for (const size_t tokens : sizes({1, 2, 3, 7})) {
      Problem problem(info, 11, 512, tokens, 3 + tokens);
      const std::vector<float> expected = problem.run(reference_table(), 0, tokens);
      for (const KernelTable* table : available_tables()) {
        expect_same(expected, problem.run(*table, 0, tokens, true), label(*table, info));
      }
    }
  }
}

TEST(Matmul, PlainTypesTakeAnyLength) {
  for (const TensorTypeInfo& info : computable_types()) {
    if (info.block_elems != 1) continue;
    for (size_t n = 1; n < 70; ++n) {
      Problem problem(info, 3, n, 4, n);
      const std::vector<float> expected = problem.run(reference_table(), 0, 4);
      for (const KernelTable* table : available_tables()) {
        expect_same(expected, problem.run(*table, 0, 4), label(*table, info));
      }
    }
  }
}

TEST(Matmul, OneTokenEqualsItsRowAmong512) {
  for (const TensorTypeInfo& info : computable_types()) {
    Problem problem(info, 3, 768, 512, 5);
    for (const KernelTable* table : available_tables()) {
      const std::vector<float> all = problem.run(*table, 0, 512);
      for (const size_t t : sizes({0, 1, 255, 510, 511})) {
        const std::vector<float> one = problem.run(*table, t, 1);
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(t * 4);
        expect_same({begin, begin + 3}, {one.begin(), one.begin() + 3}, label(*table, info));
      }
    }
  }
}

TEST(Matmul, WeightsMayLieAtAnyAddress) {
  for (const TensorTypeInfo& info : computable_types()) {
    Problem even(info, 4, 1536, 3, 9);
    for (const size_t skew : sizes({1, 2, 34})) {
      Problem odd(info, 4, 1536, 3, 9, skew);
      for (const KernelTable* table : available_tables()) {
        expect_same(even.run(*table, 0, 3), odd.run(*table, 0, 3), label(*table, info));
      }
    }
  }
}

TEST(Matmul, ExtremeCodesDoNotSaturate) {
  for (const TensorTypeInfo& info : computable_types()) {
    if (activation_form(info.type) == ActivationForm::kF32) continue;
    for (const int fill : {0x00, 0xff, 0x80, 0x7f, 0xf0, 0x0f}) {
      Problem problem(info, 3, 2048, 2, 3);
      std::vector<uint8_t> tame(problem.weights.data(), problem.weights.data() + 3 * problem.stride);
      // Scales stay, so that results stay finite: only bytes that no half scale uses are filled.
      for (size_t i = 0; i < tame.size(); ++i) {
        const size_t in_block = i % info.block_bytes;
        if (in_block >= 4 && in_block < std::min<size_t>(info.block_bytes, 80))
          problem.weights.data()[i] = static_cast<uint8_t>(fill);
      }
      for (size_t i = 0; i < 2 * problem.n; ++i) problem.x[i] = i % 32 < 16 ? 4.0f : -4.0f;
      if (fill == 0xff) std::fill(problem.x.begin(), problem.x.end(), -4.0f);
      for (size_t t = 0; t < 2; ++t) {
        reference_table().store_activation(problem.form, problem.x.data() + t * problem.n, problem.n,
                                           problem.stored.data() + t * problem.x_stride);
      }
      const std::vector<float> expected = problem.run(reference_table(), 0, 2);
      for (const KernelTable* table : available_tables()) {
        expect_same(expected, problem.run(*table, 0, 2), label(*table, info));
      }
    }
  }
}

/// |result - exact| <= bound: half a step of every activation times its weight, and rounding in the lanes.
TEST(Matmul, LiesWithinTheQuantisationBoundOfFloat64) {
  for (const TensorTypeInfo& info : computable_types()) {
    Problem problem(info, 4, 2048, 2, 21);
    const std::vector<float> got = problem.run(reference_table(), 0, 2);
    std::vector<float> w(problem.n);
    const size_t block = problem.form == ActivationForm::kQ8Block256 ? 256 : 32;
    for (size_t r = 0; r < problem.rows; ++r) {
      reference_table().dequantize[slot_of(info)](problem.weights.data() + r * problem.stride, problem.n,
                                                  w.data());
      for (size_t t = 0; t < 2; ++t) {
        double exact = 0, bound = 0, absolute = 0;
        for (size_t begin = 0; begin < problem.n; begin += block) {
          const float* x = problem.x.data() + t * problem.n + begin;
          double max = 0, weight_sum = 0;
          for (size_t i = 0; i < block; ++i) {
            exact += static_cast<double>(w[begin + i]) * x[i];
            absolute += std::abs(static_cast<double>(w[begin + i]) * x[i]);
            weight_sum += std::abs(static_cast<double>(w[begin + i]));
            max = std::max(max, std::abs(static_cast<double>(x[i])));
          }
          if (problem.form != ActivationForm::kF32) bound += max / 127 * 0.5001 * weight_sum;
        }
        bound += absolute * 2e-5;
        EXPECT_NEAR(exact, static_cast<double>(got[t * 5 + r]), bound) << info.name;
        EXPECT_GT(absolute, 0) << info.name;
      }
    }
  }
}

TEST(StoreActivation, TablesAgreeAndRowsAreWellFormed) {
  for (const ActivationForm form :
       {ActivationForm::kF32, ActivationForm::kQ8Block32, ActivationForm::kQ8Block256}) {
    for (const size_t n : sizes({256, 768, 2048, 2304})) {
      std::vector<float> x = random_floats(n, n);
      std::fill(x.begin() + 32, x.begin() + 64, 0.0f);
      x[100] = 1e-40f;
      const size_t bytes = activation_row_bytes(form, n);
      EXPECT_EQ(0u, bytes % 64);
      Aligned expected(bytes);
      memset(expected.data(), 0xee, bytes);
      reference_table().store_activation(form, x.data(), n, expected.data());
      for (const KernelTable* table : available_tables()) {
        Aligned got(bytes);
        memset(got.data(), 0xdd, bytes);
        table->store_activation(form, x.data(), n, got.data());
        EXPECT_EQ(0, memcmp(expected.data(), got.data(), bytes)) << table->name << " " << n;
      }
      if (form == ActivationForm::kF32) continue;
      const size_t block = form == ActivationForm::kQ8Block32 ? 32 : 256;
      const float* scales = reinterpret_cast<const float*>(expected.data() + activation_scales_offset(n));
      for (size_t i = 0; i < n; ++i) {
        const double restored =
            scales[i / block] * static_cast<double>(static_cast<int8_t>(expected.data()[i]));
        EXPECT_NEAR(x[i], restored, 0.5001 * static_cast<double>(scales[i / block]));
      }
    }
  }
}

TEST(StoreActivation, NonFiniteBlocksShowInTheScaleAndTinyOnesAreZero) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const KernelTable* table : available_tables()) {
      std::vector<float> x(96, 1.0f);
      x[40] = -bad;
      for (size_t i = 64; i < 96; ++i) x[i] = 1e-37f;
      Aligned row(activation_row_bytes(ActivationForm::kQ8Block32, 96));
      table->store_activation(ActivationForm::kQ8Block32, x.data(), 96, row.data());
      const float* scales = reinterpret_cast<const float*>(row.data() + activation_scales_offset(96));
      EXPECT_EQ(1.0f / 127.0f, scales[0]);
      EXPECT_TRUE(std::isnan(scales[1])) << table->name;
      EXPECT_EQ(0.0f, scales[2]);
      for (size_t i = 32; i < 96; ++i) EXPECT_EQ(0, row.data()[i]);
    }
  }
}

TEST(StoreActivation, ANonFiniteActivationReachesEveryProduct) {
  for (const TensorTypeInfo& info : computable_types()) {
    Problem problem(info, 2, 2304, 2, 4);
    problem.x[2300] = std::numeric_limits<float>::quiet_NaN();
    for (const KernelTable* table : available_tables()) {
      table->store_activation(problem.form, problem.x.data(), problem.n, problem.stored.data());
      const std::vector<float> out = problem.run(*table, 0, 2);
      EXPECT_TRUE(std::isnan(out[0])) << label(*table, info);
      EXPECT_FALSE(std::isnan(out[3])) << label(*table, info);
    }
  }
}

TEST(Kv, TablesAgreeForEveryTypeAndLength) {
  for (const KernelTable* table : available_tables()) {
    for (size_t kind = 0; kind < kKvTypes; ++kind) {
      for (const size_t n : sizes({32, 64, 96, 128, 160, 256, 576})) {
        for (const size_t count : sizes({1, 2, 5, 9})) {
          const size_t stride = n * sizeof(float) + 6;
          const std::vector<float> values = random_floats(n * count, n + count);
          std::vector<uint8_t> expected_rows(count * stride), rows(count * stride);
          for (size_t j = 0; j < count; ++j) {
            reference_table().kv_store[kind](values.data() + j * n, n, expected_rows.data() + j * stride);
            table->kv_store[kind](values.data() + j * n, n, rows.data() + j * stride);
          }
          ASSERT_EQ(expected_rows, rows) << table->name << " kv_store " << kind;
          const std::vector<float> q = random_floats(n, 3);
          std::vector<float> expected(count), got(count);
          reference_table().kv_dot[kind](q.data(), rows.data(), stride, count, n, expected.data());
          table->kv_dot[kind](q.data(), rows.data(), stride, count, n, got.data());
          expect_same(expected, got, "kv_dot");
          std::vector<float> expected_out = random_floats(n, 4), out = expected_out;
          reference_table().kv_axpy[kind](expected.data(), rows.data(), stride, count, n,
                                          expected_out.data());
          table->kv_axpy[kind](expected.data(), rows.data(), stride, count, n, out.data());
          expect_same(expected_out, out, "kv_axpy");
        }
      }
    }
  }
}

TEST(Kv, RowsOfFloatKindsTakeAnyLength) {
  for (const KernelTable* table : available_tables()) {
    for (size_t kind = 0; kind < 2; ++kind) {
      for (size_t n = 1; n < 50; ++n) {
        const std::vector<float> x = random_floats(n, n), q = random_floats(n, n + 1);
        std::vector<uint8_t> expected_row(4 * n), row(4 * n);
        reference_table().kv_store[kind](x.data(), n, expected_row.data());
        table->kv_store[kind](x.data(), n, row.data());
        ASSERT_EQ(expected_row, row);
        float expected = 0, got = 0;
        reference_table().kv_dot[kind](q.data(), row.data(), 4 * n, 1, n, &expected);
        table->kv_dot[kind](q.data(), row.data(), 4 * n, 1, n, &got);
        ASSERT_EQ(expected, got) << table->name << " " << n;
        std::vector<float> expected_out = q, out = q;
        reference_table().kv_axpy[kind](&expected, row.data(), 4 * n, 1, n, expected_out.data());
        table->kv_axpy[kind](&expected, row.data(), 4 * n, 1, n, out.data());
        expect_same(expected_out, out, "kv_axpy");
      }
    }
  }
}

TEST(Kv, HalfRoundingIsToNearestEvenAndKeepsSpecialValues) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {
      0.0f,     -0.0f,    1.0f,     65504.0f,   65519.9f,   65520.0f,       -1e9f,          inf,
      0x1p-14f, 0x1p-24f, 0x1p-25f, 0x1.8p-25f, 0x1.8p-24f, 1.00048828125f, 1.00146484375f, 0x1.ffep-15f};
  const std::vector<uint16_t> expected = {0,      0x8000, 0x3c00, 0x7bff, 0x7bff, 0x7c00, 0xfc00, 0x7c00,
                                          0x0400, 1,      0,      1,      2,      0x3c00, 0x3c02, 0x0400};
  for (const KernelTable* table : available_tables()) {
    std::vector<uint16_t> got(x.size());
    table->kv_store[static_cast<size_t>(KvType::kF16)](x.data(), x.size(),
                                                       reinterpret_cast<uint8_t*>(got.data()));
    EXPECT_EQ(expected, got) << table->name;
  }
}

TEST(Down, RoundsWithinAStepAndTablesAgreeForEveryTypeAndPart) {
  constexpr size_t n = 192;
  const float step[kDownTypes] = {1.0F / 8, 1.0F / 32, 1.0F / 128, 1.0F / 2048, 0};
  for (size_t kind = 0; kind < kDownTypes; ++kind) {
    const auto type = static_cast<DownType>(kind);
    const size_t bytes = down_row_bytes(type, n);
    for (const size_t count : sizes({1, 3, 4, 9})) {
      const std::vector<float> x = random_floats(n * count, count), weights = random_floats(count, 7);
      std::vector<uint8_t> stored(count * bytes);
      std::vector<const uint8_t*> rows;
      for (size_t j = 0; j < count; ++j) {
        quantize_down_row(type, x.data() + j * n, n, stored.data() + j * bytes);
        rows.push_back(stored.data() + j * bytes);
      }
      for (const KernelTable* table : available_tables()) {
        std::vector<float> row(n);
        const float one = 1;
        table->down_axpy[kind]({&one, rows.data(), 1, 0, n, row.data()});
        for (size_t i = 0; i < n; ++i) {
          float most = 0;
          for (size_t k = i / 32 * 32; k < i / 32 * 32 + 32; ++k) most = std::max(most, std::abs(x[k]));
          ASSERT_NEAR(row[i], x[i], most * step[kind] + 1e-7F) << table->name << " " << kind << " " << i;
        }
        for (const size_t begin : sizes({0, 32, 128})) {
          std::vector<float> expected = random_floats(n - begin, 5), got = expected;
          reference_table().down_axpy[kind](
              {weights.data(), rows.data(), count, begin, n - begin, expected.data()});
          table->down_axpy[kind]({weights.data(), rows.data(), count, begin, n - begin, got.data()});
          expect_same(expected, got, "down_axpy");
        }
      }
    }
  }
}

TEST(RmsNorm, IsNearFloat64AndEqualInEveryTable) {
  for (const size_t n : sizes({1, 7, 16, 100, 256, 2048, 4099})) {
    const std::vector<float> x = random_floats(n, n), weight = random_floats(n, n + 1);
    std::vector<float> expected(n);
    reference_table().rms_norm(x.data(), weight.data(), n, 1e-6f, expected.data());
    double sum = 0;
    for (const float value : x) sum += static_cast<double>(value) * value;
    const double scale = 1 / std::sqrt(sum / static_cast<double>(n) + static_cast<double>(1e-6f));
    for (size_t i = 0; i < n; ++i) {
      const double exact = x[i] * scale * weight[i];
      EXPECT_NEAR(exact, expected[i], std::abs(exact) * 2.5e-7);
    }
    for (const KernelTable* table : available_tables()) {
      std::vector<float> in_place = x;
      table->rms_norm(in_place.data(), weight.data(), n, 1e-6f, in_place.data());
      expect_same(expected, in_place, "rms_norm");
      std::vector<float> ones(n, 1.0f), expected_plain(n), plain(n);
      reference_table().rms_norm(x.data(), ones.data(), n, 1e-6f, expected_plain.data());
      table->rms_norm(x.data(), nullptr, n, 1e-6f, plain.data());
      expect_same(expected_plain, plain, "rms_norm without weight");
    }
  }
}

double ulp(double value) {
  return std::max(std::ldexp(1.0, std::ilogb(value) - 23), std::ldexp(1.0, -149));
}

TEST(ExpSum, IsWithinTwoUlpOverTheWholeRange) {
  std::vector<float> x;
  for (double v = -110; v < 88.7; v += 0.00731) x.push_back(static_cast<float>(v));
  std::vector<float> expected = x;
  reference_table().exp_sum(expected.data(), x.size(), 0.0f);
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    EXPECT_NEAR(exact, expected[i], 2 * ulp(exact)) << x[i];
  }
  for (const KernelTable* table : available_tables()) {
    std::vector<float> got = x;
    table->exp_sum(got.data(), got.size(), 0.0f);
    expect_same(expected, got, table->name);
  }
}

TEST(ExpSum, ReturnsTheSumOfWhatItWrites) {
  std::vector<float> expected = random_floats(4099, 1);
  const std::vector<float> x = expected;
  const float expected_sum = reference_table().exp_sum(expected.data(), x.size(), 9.0f);
  double sum = 0;
  for (const float value : expected) sum += value;
  EXPECT_NEAR(sum, static_cast<double>(expected_sum), sum * 1e-5);
  for (const KernelTable* table : available_tables()) {
    std::vector<float> got = x;
    EXPECT_EQ(expected_sum, table->exp_sum(got.data(), got.size(), 9.0f)) << table->name;
  }
}

TEST(ExpSum, HandlesMaskedNanAndHugeArguments) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const KernelTable* table : available_tables()) {
    std::vector<float> x = {-inf, -1e30f, 2.0f, nan, 1e30f, inf, -150.0f, 2.0f, -inf, 2.0f};
    table->exp_sum(x.data(), x.size(), 2.0f);
    EXPECT_EQ(0.0f, x[0]);
    EXPECT_EQ(0.0f, x[1]);
    EXPECT_EQ(1.0f, x[2]);
    EXPECT_TRUE(std::isnan(x[3])) << table->name;
    EXPECT_EQ(inf, x[4]);
    EXPECT_EQ(inf, x[5]);
    EXPECT_EQ(0.0f, x[6]);
    EXPECT_EQ(1.0f, x[9]);
    for (size_t n = 1; n < 40; ++n) {
      std::vector<float> expected = random_floats(n, n), got = expected;
      const float sum = reference_table().exp_sum(expected.data(), n, 3.0f);
      EXPECT_EQ(sum, table->exp_sum(got.data(), n, 3.0f)) << table->name << " " << n;
      expect_same(expected, got, "exp_sum");
    }
  }
}

double exact_activation(Activation kind, double g, double u) {
  const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  switch (kind) {
    case Activation::kSilu:
      return g * sigmoid(g) * u;
    case Activation::kGeluTanh:
      return 0.5 * g * (1 + std::tanh(0.79788456080286535588 * (g + 0.044715 * g * g * g))) * u;
    case Activation::kRelu:
      return std::max(g, 0.0) * u;
    case Activation::kDRelu:
      return std::max(g, 0.0) * std::max(u, 0.0);
    case Activation::kSwigluOai:
      break;
  }
  const double gate = std::min(g, 7.0), up = std::min(std::max(u, -7.0), 7.0);
  return gate * sigmoid(1.702 * gate) * (up + 1);
}

TEST(GatedActivation, IsNearFloat64AndEqualInEveryTable) {
  for (size_t kind = 0; kind < kActivations; ++kind) {
    std::vector<float> gate, up;
    for (double v = -100; v < 100; v += 0.0137) {
      gate.push_back(static_cast<float>(v));
      up.push_back(static_cast<float>(std::sin(v * 77) * 9));
    }
    std::vector<float> expected = gate;
    reference_table().gated_activation[kind](expected.data(), up.data(), gate.size());
    for (size_t i = 0; i < gate.size(); ++i) {
      const double exact = exact_activation(static_cast<Activation>(kind), gate[i], up[i]);
      double scale = std::abs(static_cast<double>(gate[i]) * up[i]);
      if (static_cast<Activation>(kind) == Activation::kSwigluOai) {
        scale = std::abs(static_cast<double>(gate[i])) *
                (std::min(std::abs(static_cast<double>(up[i])), 7.0) + 1);
      }
      EXPECT_NEAR(exact, expected[i], 4 * 0x1p-23 * scale) << kind << " " << gate[i] << " " << up[i];
    }
    for (const KernelTable* table : available_tables()) {
      for (const size_t n : {size_t{1}, size_t{7}, size_t{8}, size_t{19}, gate.size()}) {
        std::vector<float> got(gate.begin(), gate.begin() + static_cast<std::ptrdiff_t>(n));
        table->gated_activation[kind](got.data(), up.data(), n);
        expect_same({expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(n)}, got, table->name);
      }
    }
  }
}

TEST(GatedActivation, KeepsNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const KernelTable* table : available_tables()) {
    for (size_t kind = 0; kind < kActivations; ++kind) {
      std::vector<float> gate(9, nan), up(9, 1.0f);
      table->gated_activation[kind](gate.data(), up.data(), gate.size());
      for (const float value : gate) EXPECT_TRUE(std::isnan(value)) << table->name << " " << kind;
    }
  }
}

TEST(AddScaled, IsOneFusedRoundingPerElement) {
  for (const KernelTable* table : available_tables()) {
    for (const size_t n : sizes({1, 8, 9, 31, 64, 100})) {
      const std::vector<float> x = random_floats(n, n);
      std::vector<float> out = random_floats(n, n + 1), expected = out;
      for (size_t i = 0; i < n; ++i) expected[i] = std::fmaf(0.7f, x[i], expected[i]);
      table->add_scaled(x.data(), 0.7f, n, out.data());
      expect_same(expected, out, table->name);
    }
  }
}

TEST(Select, FindsTablesByNameAndTheBestWithout) {
  EXPECT_EQ(available_tables().front(), select_table(""));
  EXPECT_EQ(&reference_table(), available_tables().back());
  EXPECT_EQ(&reference_table(), select_table("reference"));
  EXPECT_EQ(nullptr, select_table("no such table"));
  for (const KernelTable* table : available_tables()) EXPECT_EQ(table, select_table(table->name));
}

#if defined(__x86_64__)
TEST(Select, Avx2IsThereWhereTheProcessorHasIt) {
  // F16C, which the table also needs, is in every processor with AVX2.
  const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  EXPECT_EQ(has, select_table("avx2") != nullptr);
}

TEST(Select, Avx512VnniIsFirstWhereTheProcessorHasIt) {
  const bool has = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl") &&
                   __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  EXPECT_EQ(has, select_table("avx512vnni") != nullptr);
  EXPECT_EQ(has, std::string(available_tables().front()->name) == "avx512vnni");
}
#elif defined(__aarch64__)
TEST(Select, TablesAreThoseOfTheEmulatedProcessor) {
  const char* expected = std::getenv("GANGLION_TEST_TABLES");
  if (expected == nullptr) GTEST_SKIP() << "only tests/arm64_kernels.sh says what the processor has";
  std::string names;
  for (const KernelTable* table : available_tables()) {
    names += (names.empty() ? "" : " ") + std::string(table->name);
  }
  EXPECT_EQ(expected, names);
}
#endif

void broken_matmul(const MatmulArgs& args) {
  reference_table().matmul[static_cast<size_t>(TensorType::kQ6_K)](args);
  args.out[args.rows - 1] *= 1.0000002f;
}

void broken_add_scaled(const float* x, float scale, size_t n, float* out) {
  reference_table().add_scaled(x, scale, n - 1, out);
}

void broken_kv_dot(const float* q, const uint8_t* k, size_t stride, size_t count, size_t n, float* scores) {
  reference_table().kv_dot[1](q, k, stride, count, n - 1, scores);
}

TEST(SelfTest, PassesForEveryTableAndNamesABrokenKernel) {
  for (const KernelTable* table : available_tables()) EXPECT_EQ("", self_test(*table)) << table->name;
  KernelTable broken = *select_table("");
  broken.matmul[static_cast<size_t>(TensorType::kQ6_K)] = broken_matmul;
  EXPECT_EQ("matmul Q6_K", self_test(broken));
  broken = *select_table("");
  broken.dequantize[static_cast<size_t>(TensorType::kQ4_0)] =
      broken.dequantize[static_cast<size_t>(TensorType::kIQ4_NL)];
  EXPECT_EQ("dequantize Q4_0", self_test(broken));
  broken = *select_table("");
  broken.kv_dot[1] = broken_kv_dot;
  EXPECT_EQ("kv_dot F16", self_test(broken));
  broken = *select_table("");
  broken.add_scaled = broken_add_scaled;
  EXPECT_EQ("add_scaled", self_test(broken));
}

}  // namespace
}  // namespace ganglion::kernels
