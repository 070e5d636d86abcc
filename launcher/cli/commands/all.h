#pragma once

// One function per command, each in the file of its name.

#include <memory>

#include "launcher/cli/commands/command.h"

namespace regroup::cli {

std::unique_ptr<Command> MakeRun();
std::unique_ptr<Command> MakeTorchrun();
std::unique_ptr<Command> MakeSubmit();
std::unique_ptr<Command> MakePlan();
std::unique_ptr<Command> MakePs();
std::unique_ptr<Command> MakeNodes();
std::unique_ptr<Command> MakeWait();
std::unique_ptr<Command> MakeLogs();
std::unique_ptr<Command> MakeExplain();
std::unique_ptr<Command> MakeCancel();
std::unique_ptr<Command> MakePrune();
std::unique_ptr<Command> MakeToken();
std::unique_ptr<Command> MakeAuthz();
std::unique_ptr<Command> MakeVersion();
std::unique_ptr<Command> MakeCoordinator();
std::unique_ptr<Command> MakeAgent();
std::unique_ptr<Command> MakeCompletion();
std::unique_ptr<Command> MakeComplete();
std::unique_ptr<Command> MakeMan();

}  // namespace regroup::cli
