#include "engine/multiply.h"

#include <algorithm>
#include <cstring>

namespace ganglion::engine {

using base::Status;
using neuron_store::BlockId;

namespace {
// Work that one thread takes at a time: long against the counter's cost, short against a block.
constexpr size_t kTaskBytes = 64 * base::kKiB;
// From so many tokens on kernels work on tiles of so many rows, and ask for the next tile of the same task.
constexpr uint32_t kTileRows = 32;
constexpr size_t kTiledTokens = 3;
constexpr size_t kTiledTaskBytes = 256 * base::kKiB;
// Tasks computed between two looks at what has arrived; few while weights are read, since what has been
// computed makes room for reads.
constexpr size_t kMostTasks = 512;
constexpr size_t kMostTasksReading = 64;
// Tasks of one block that a thread takes together: where two threads take turns every 64 KiB, memory gives a
// quarter less (measured on Zen 5).
constexpr size_t kTasksAtOnce = 8;
// Rows multiplied by one token at a time cost this much more than those of a tile (7B shape, Q4_0, AVX-512).
constexpr size_t kRowsForOneOfTile = 3;
// Ups of open gates that go to a kernel at once.
constexpr size_t kOpenRows = 64;
}  // namespace

void ActivationRows::copy_row(size_t to_row, const ActivationRows& from, size_t from_row) const {
  for (size_t i = 0; i < 3; ++i) {
    if (data_[i] == nullptr || from.data_[i] == nullptr) continue;
    std::memcpy(data_[i] + to_row * stride_[i], from.data_[i] + from_row * stride_[i], stride_[i]);
  }
}

Multiplier::Multiplier(const kernels::KernelTable& kernels, platform::ThreadPool& threads,
                       const neuron_store::WeightStore& store, neuron_stream::NeuronStream& stream,
                       std::vector<uint32_t> store_index)
    : kernels_(kernels),
      threads_(threads),
      store_(store),
      stream_(stream),
      store_index_(std::move(store_index)) {}

Status Multiplier::run(std::span<const Product> products) {
  pending_.clear();
  tasks_.clear();
  for (uint32_t i = 0; i < products.size(); ++i) {
    const Product& product = products[i];
    add_rows(product, product.prefix.data, product.prefix.stride, product.prefix.begin, product.prefix.rows);
    const neuron_store::BlockRange range = blocks(*product.matrix, product.slice);
    for (BlockId id = range.begin; id < range.end; ++id) {
      if (product.prefix.rows > 0) {
        const neuron_store::Block block = store_.block(id);
        if (block.row_begin >= product.prefix.begin &&
            block.row_begin + block.row_count <= product.prefix.rows) {
          continue;
        }
      }
      pending_.push_back({i, id});
    }
  }
  while (!pending_.empty() || !tasks_.empty()) {
    const size_t most = stream_.reading() ? kMostTasksReading : kMostTasks;
    pinned_.clear();
    size_t kept = 0;
    for (const Pending& item : pending_) {
      const uint8_t* data = tasks_.size() < most ? stream_.try_pin(item.block) : nullptr;
      if (data == nullptr) {
        pending_[kept++] = item;
      } else {
        pinned_.push_back(item.block);
        add_block(products[item.product], item.block, data);
      }
    }
    pending_.resize(kept);
    // Only now: what is pinned cannot be displaced by what is asked for.
    for (const Pending& item : pending_) stream_.request(item.block);
    if (tasks_.empty()) {
      GANGLION_RETURN_IF_ERROR(stream_.wait(pending_.front().block));
      continue;
    }
    // What completes makes room for further reads: this thread looks meanwhile, at hardly any cost.
    const bool reading = stream_.reading();
    const auto compute_run = [this, reading](size_t begin, size_t end, int thread) {
      for (size_t i = begin; i < end; ++i) {
        compute(tasks_[i]);
        if (reading && thread == 0) stream_.poll();
      }
    };
    threads_.parallel_for_runs(tasks_.size(), kTasksAtOnce, compute_run);
    tasks_.clear();
    for (const BlockId block : pinned_) stream_.unpin(block);
    if (!pending_.empty()) stream_.poll();
  }
  return base::ok_status();
}

void Multiplier::add_block(const Product& product, BlockId id, const uint8_t* data) {
  const neuron_store::Block block = store_.block(id);
  const size_t stride = store_.matrix(block.matrix).row_bytes;
  const uint32_t end = block.row_begin + block.row_count;
  const auto add = [&](uint32_t from, uint32_t to) {
    if (from < to) add_rows(product, data + (from - block.row_begin) * stride, stride, from, to);
  };
  // What lies before and behind the prefix.
  add(block.row_begin, std::min(end, product.prefix.begin));
  add(std::max(block.row_begin, product.prefix.rows), end);
}

void Multiplier::add_rows(const Product& product, const uint8_t* data, size_t stride, uint32_t begin,
                          uint32_t end) {
  const bool tiled = product.tokens >= kTiledTokens;
  const size_t bytes = tiled ? kTiledTaskBytes : kTaskBytes;
  auto step = static_cast<uint32_t>(std::max<size_t>(1, bytes / std::max<size_t>(1, stride)));
  if (tiled) step = std::max(kTileRows, step / kTileRows * kTileRows);
  for (uint32_t row = begin; row < end; row += step) {
    tasks_.push_back({&product, data + (row - begin) * stride, stride, row, std::min(step, end - row)});
  }
}

void Multiplier::compute(const Task& task) const {
  const Product& p = *task.product;
  kernels::ActivationForm form = kernels::activation_form(p.matrix->type);
  kernels::MatmulArgs args = {
      .weights = task.weights,
      .weight_stride = task.weight_stride,
      .rows = task.row_count,
      .n = p.matrix->cols,
      .x = p.x->row(form, p.first_row),
      .x_stride = p.x->stride(form) * p.row_step,
      .tokens = p.tokens,
      .out = p.out + task.row_begin,
      .out_stride = p.out_stride,
  };
  kernels_.matmul[static_cast<size_t>(p.matrix->type)](args);
  if (p.bundle == nullptr) return;
  form = kernels::activation_form(p.bundle->up_type);
  args.weights += p.bundle->up_offset;
  args.x = p.x->row(form, p.first_row);
  args.x_stride = p.x->stride(form) * p.row_step;
  args.out = p.up_out + task.row_begin;
  const kernels::MatmulFn matmul = kernels_.matmul[static_cast<size_t>(p.bundle->up_type)];
  if (p.closed_gate) {
    compute_open_ups(args, matmul, p.out + task.row_begin, *p.closed_gate);
  } else {
    matmul(args);
  }
}

// `gates` are laid out as ups.out.
void Multiplier::compute_open_ups(const kernels::MatmulArgs& ups, kernels::MatmulFn matmul,
                                  const float* gates, float closed_gate) const {
  const auto is_open = [closed_gate](float gate) { return !(gate <= closed_gate); };  // NaN is.
  size_t open = 0;
  for (size_t t = 0; t < ups.tokens; ++t) {
    const float* gate = gates + t * ups.out_stride;
    open += static_cast<size_t>(std::count_if(gate, gate + ups.rows, is_open));
  }
  if (open > ups.rows * ups.tokens / kRowsForOneOfTile) return matmul(ups);
  for (size_t t = 0; t < ups.tokens; ++t) {
    float* out = ups.out + t * ups.out_stride;
    std::fill_n(out, ups.rows, 0.0F);
    for (size_t begin = 0; begin < ups.rows; begin += kOpenRows) {
      const uint8_t* weights[kOpenRows];
      size_t row_of[kOpenRows];
      float product[kOpenRows];
      size_t count = 0;
      for (size_t r = begin; r < std::min(ups.rows, begin + kOpenRows); ++r) {
        if (!is_open(gates[t * ups.out_stride + r])) continue;
        weights[count] = ups.row(r);
        row_of[count++] = r;
      }
      if (count == 0) continue;
      matmul({.weights = nullptr,
              .weight_stride = 0,
              .rows = count,
              .n = ups.n,
              .x = ups.x + t * ups.x_stride,
              .x_stride = ups.x_stride,
              .tokens = 1,
              .out = product,
              .out_stride = kOpenRows,
              .scattered = weights});
      for (size_t i = 0; i < count; ++i) out[row_of[i]] = product[i];
    }
  }
}

}  // namespace ganglion::engine
