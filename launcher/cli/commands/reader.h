#pragma once

// All that this command may look at: live coordinators over their sockets, ended runs in their
// journals.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/job_word.h"
#include "common/base/views.h"
#include "launcher/cli/commands/client.h"
#include "launcher/cli/commands/command.h"
#include "launcher/cli/commands/places.h"

namespace regroup::cli {

struct Found {
  JobView job;
  Place place;
  bool live = false;  // Its coordinator answered.
  bool held = false;  // It runs, but did not answer: `job` is what its journal says.
};

class Reader {
 public:
  // UNAVAILABLE when --coordinator was given and does not answer is told by the calls, not here.
  static absl::StatusOr<Reader> Open(const ReadOptions& options, std::string_view command);

  // Of all places, oldest first. A place that cannot be read is told by `warnings`, unless it is
  // the only one. `notes` has what a coordinator wants every reader to know, and what was read from
  // the journal of one that does not run (and what starts it again) or does not answer. Sentences
  // for people; nothing has gone wrong with the reading.
  absl::StatusOr<std::vector<JobView>> Jobs(bool ended);
  absl::StatusOr<std::vector<NodeView>> Nodes();
  // The job that the word means (common/base/job_word.h) among those of all places. NOT_FOUND with
  // the nearest id.
  absl::StatusOr<Found> FindJob(const std::string& word, bool detail,
                                JobPrefixes prefixes = JobPrefixes::kAllowed);

  const std::vector<Place>& places() const { return places_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  const std::vector<std::string>& notes() const { return notes_; }
  // Of the coordinators that answered the last reading.
  const std::vector<CoordinatorMemory>& memory() const { return memory_; }

 private:
  explicit Reader(ReadOptions options, std::vector<Place> places)
      : options_(std::move(options)), places_(std::move(places)) {}
  struct Part {
    Reading reading;
    bool live = false, held = false;  // As in Found.
  };
  absl::StatusOr<Part> ReadPlace(const Place& place, const regroup::v1::ReadRequest& request) const;
  // Each place's part; NOT_FOUND parts are left out. The error when none could be read.
  absl::Status Each(const regroup::v1::ReadRequest& request,
                    const std::function<void(const Place&, Part)>& take);
  absl::Status NoSuchJob(const std::string& word);
  void NoteDead(const Place& place, std::vector<JobView>& jobs);

  ReadOptions options_;
  std::vector<Place> places_;
  std::vector<std::string> warnings_, notes_;
  std::vector<CoordinatorMemory> memory_;
  absl::Status ambiguous_;  // What a place said of a word that means several of its jobs.
};

// Warnings and notes of the last reading, to standard error.
void TellNotes(const Reader& reader, const Terminal& terminal);

// The one live coordinator that a command which changes something talks to. That of runs without an
// endpoint has to be named.
absl::StatusOr<Client> TheCoordinator(const ReadOptions& options, std::string_view command);

}  // namespace regroup::cli
