#pragma once

// All that this command may look at: live coordinators over their sockets, ended runs in their
// journals.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/views.h"
#include "launcher/cli/commands/client.h"
#include "launcher/cli/commands/places.h"

namespace regroup::cli {

struct Found {
  JobView job;
  Place place;
  bool live = false;  // Its coordinator answered.
};

class Reader {
 public:
  // UNAVAILABLE when --coordinator was given and does not answer is told by the calls, not here.
  static absl::StatusOr<Reader> Open(const ReadOptions& options, std::string_view command);

  // Of all places, oldest first. A place that can't be read is told by `warnings`, unless it is the
  // only one; so is what a coordinator wants every reader to know.
  absl::StatusOr<std::vector<JobView>> Jobs(bool ended);
  absl::StatusOr<std::vector<NodeView>> Nodes();
  // A full id, a unique prefix, or "last" (the youngest). NOT_FOUND with the nearest id.
  absl::StatusOr<Found> FindJob(const std::string& selector, bool detail);

  const std::vector<Place>& places() const { return places_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  // Of the last Jobs() or Nodes(): what was read from the journal of a coordinator that does not
  // run, and what starts it again. Sentences for people; nothing has gone wrong with the reading.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  explicit Reader(ReadOptions options, std::vector<Place> places)
      : options_(std::move(options)), places_(std::move(places)) {}
  struct Part {
    Reading reading;
    bool live = false;
  };
  absl::StatusOr<Part> ReadPlace(const Place& place, const regroup::v1::ReadRequest& request) const;
  // Each place's part; NOT_FOUND parts are left out. The error when none could be read.
  absl::Status Each(const regroup::v1::ReadRequest& request,
                    const std::function<void(const Place&, Part)>& take);
  absl::Status NoSuchJob(const std::string& selector);
  void NoteDead(const Place& place, std::vector<JobView>& jobs);

  ReadOptions options_;
  std::vector<Place> places_;
  std::vector<std::string> warnings_, notes_;
};

// The one live coordinator that a command which changes something talks to. That of runs without an
// endpoint has to be named.
absl::StatusOr<Client> TheCoordinator(const ReadOptions& options, std::string_view command);

}  // namespace regroup::cli
