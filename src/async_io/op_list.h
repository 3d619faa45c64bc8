// An intrusive first-in first-out list of operations, one per priority.
#pragma once

#include "async_io/read_queue.h"

namespace ganglion::async_io {

class OpList {
 public:
  void push(ReadOp* op) {
    op->next = nullptr;
    (tail_ != nullptr ? tail_->next : head_) = op;
    tail_ = op;
  }
  ReadOp* pop() {
    ReadOp* op = head_;
    if (op == nullptr) return nullptr;
    head_ = op->next;
    if (head_ == nullptr) tail_ = nullptr;
    return op;
  }
  bool empty() const { return head_ == nullptr; }

 private:
  ReadOp* head_ = nullptr;
  ReadOp* tail_ = nullptr;
};

class PriorityOpList {
 public:
  void push(ReadOp* op) { lists_[static_cast<size_t>(op->priority)].push(op); }
  ReadOp* pop() {
    for (OpList& list : lists_) {
      if (ReadOp* op = list.pop()) return op;
    }
    return nullptr;
  }
  bool has_urgent() const { return !lists_[static_cast<size_t>(Priority::kUrgent)].empty(); }
  bool has_only_look_ahead() const { return lists_[0].empty() && lists_[1].empty() && !lists_[2].empty(); }
  bool empty() const { return lists_[0].empty() && lists_[1].empty() && lists_[2].empty(); }

 private:
  OpList lists_[3];
};

}  // namespace ganglion::async_io
