#include "launcher/coordinator/core/core.h"

#include "launcher/coordinator/core/engine.h"

namespace regroup::coordinator {

Core::Core(Config config, Epoch epoch, std::span<const Row> rows, Instant now)
    : engine_(std::make_unique<Engine>(std::move(config), epoch, rows, now)) {}
Core::~Core() = default;
Core::Core(Core&&) noexcept = default;
Core& Core::operator=(Core&&) noexcept = default;

Effects Core::Step(Instant now, WallTime wall, const Event& event) {
  return engine_->Step(now, wall, event);
}
std::optional<Instant> Core::NextDeadline() const { return engine_->NextDeadline(); }
absl::StatusOr<ReadReply> Core::Read(const ReadFilter& filter, Instant now, WallTime wall) const {
  return engine_->Read(filter, now, wall);
}
std::vector<Row> Core::Rows() const { return engine_->Rows(); }
const ClusterId& Core::cluster() const { return engine_->cluster(); }
Epoch Core::epoch() const { return engine_->epoch(); }
std::uint64_t Core::newest_number() const { return engine_->newest_number(); }

}  // namespace regroup::coordinator
