#include <grpcpp/grpcpp.h>

#include <nlohmann/json.hpp>

#include "common/base/control.h"
#include "common/base/status_macros.h"
#include "common/config/build_info.h"
#include "common/config/text.h"
#include "launcher/cli/commands/all.h"
#include "launcher/cli/render/json.h"

namespace regroup::cli {
namespace {

constexpr char kNoCuda[] = "not built in: this build trains on the CPU";

class VersionCommand : public Command {
 public:
  VersionCommand()
      : Command({.name = "version",
                 .summary = "what this build is: commit, build type, protocol, CUDA and NCCL",
                 .usage = "regroup version",
                 .text = "Two builds work together when their protocols overlap.",
                 .example = "regroup version --json"}) {
    AddSwitch(line().app(), "--json", json_, "one JSON object instead of text");
    ScopeEnvironment(line().app(), "version");
  }

  absl::StatusOr<int> Run(const ParsedLine& words, const Terminal& terminal) override {
    RETURN_IF_ERROR(CheckWords(*this, words, 0, 0));
    std::string protocol = Cat(kProtocolMajor, ".", kProtocolMinor);
    std::string text =
        Cat("regroup  ", ReleaseVersion(), "\ncommit   ", BuildCommit(), "\nbuild    ", BuildType(),
            ", compiler ", __VERSION__, ", gRPC ", grpc::Version(), "\nprotocol ", protocol,
            "\nCUDA     ", kNoCuda, "\nNCCL     ", kNoCuda, "\n");
    if (json_) {
      text = Dump({{"schema", "regroup.version/1"},
                   {"version", ReleaseVersion()},
                   {"commit", BuildCommit()},
                   {"build_type", BuildType()},
                   {"compiler", __VERSION__},
                   {"grpc", grpc::Version()},
                   {"protocol", protocol},
                   {"cuda", nullptr},
                   {"nccl", nullptr},
                   {"why_no_cuda", kNoCuda}});
    }
    RETURN_IF_ERROR(terminal.Print(text));
    return kDone;
  }

 private:
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeVersion() { return std::make_unique<VersionCommand>(); }

}  // namespace regroup::cli
