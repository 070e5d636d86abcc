#include "worker/data/batch_reader.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace regroup::worker {

absl::StatusOr<std::unique_ptr<BatchReader>> BatchReader::Create(const Dataset& dataset,
                                                                 std::int64_t samples) {
  // A rank without a sample makes room for one, so that no arena has to be empty.
  const auto tokens =
      static_cast<std::size_t>(std::max<std::int64_t>(1, samples) * dataset.context());
  std::unique_ptr<BatchReader> reader(new BatchReader(dataset));
  ASSIGN_OR_RETURN(reader->arena_, Arena::Create(4 * Arena::Footprint<std::int32_t>(tokens)));
  for (Slot& slot : reader->slots_) {
    slot.ids.reserve(static_cast<std::size_t>(samples));
    slot.tokens = reader->arena_.Take<std::int32_t>(tokens);
    slot.targets = reader->arena_.Take<std::int32_t>(tokens);
  }
  reader->thread_ = std::thread([r = reader.get()] { r->Run(); });
  return reader;
}

BatchReader::~BatchReader() {
  if (!thread_.joinable()) return;  // There was no memory.
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

absl::StatusOr<BatchReader::Batch> BatchReader::Take(std::span<const std::int64_t> ids) {
  Slot& slot = slots_[next_];
  if (ahead_) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return wanted_ == nullptr; });
  }
  if (!ahead_ || !std::ranges::equal(ids, slot.ids)) {
    slot.ids.assign(ids.begin(), ids.end());
    Fill(slot);
  }
  ahead_ = false;
  RETURN_IF_ERROR(slot.status);
  next_ = 1 - next_;
  const std::size_t tokens = ids.size() * static_cast<std::size_t>(dataset_.context());
  return Batch{slot.tokens.first(tokens), slot.targets.first(tokens)};
}

void BatchReader::ReadAhead(std::span<const std::int64_t> ids) {
  CHECK(!ahead_);
  Slot& slot = slots_[next_];
  slot.ids.assign(ids.begin(), ids.end());
  ahead_ = true;
  {
    const std::scoped_lock lock(mutex_);
    wanted_ = &slot;
  }
  changed_.notify_all();
}

void BatchReader::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || wanted_ != nullptr; });
    if (stop_) return;
    Slot& slot = *wanted_;
    lock.unlock();
    Fill(slot);
    lock.lock();
    wanted_ = nullptr;
    changed_.notify_all();
  }
}

void BatchReader::Fill(Slot& slot) const {
  const auto context = static_cast<std::size_t>(dataset_.context());
  CHECK(slot.ids.size() * context <= slot.tokens.size());
  slot.status = absl::OkStatus();
  for (std::size_t i = 0; i < slot.ids.size() && slot.status.ok(); ++i) {
    slot.status = dataset_.Read(slot.ids[i], slot.tokens.subspan(i * context, context),
                                slot.targets.subspan(i * context, context));
  }
}

}  // namespace regroup::worker
