// No text that a peer can set poisons the journal or a reader: every text field of the messages
// that a coordinator takes is found by reflection, so that a new one is covered.

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "launcher/coordinator/shell/offline.h"
#include "proto/record.pb.h"
#include "tests/hostile/fake_agent/fake_agent.h"
#include "tests/launcher/coordinator/shell/daemon_fixture.h"

namespace regroup::coordinator {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using std::chrono::seconds;
using testing::FakeAgent;

std::vector<std::string> HostileTexts() {
  return {
      "\xff\xfe",                          // No UTF-8 at all.
      std::string("nul\0nul", 7),          // Ends early for whoever takes it for a C string.
      "\x1b]0;pwn\x07\x1b[2J\n\rFORGED ",  // What a terminal obeys.
      "\xf0\x9f\x98",                      // A 4-byte character cut short ...
      std::string(100, 'x') + "\xf0\x9f",  // ... at the end of what fits,
      "\x98\x80 and the rest of it",       // and what was cut off.
      std::string("\xc3(\x1b[31m\0\xed\xa0\x80", 11),  // Bad second byte, NUL, a surrogate.
  };
}

bool IsText(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_STRING;
}

using Path = std::vector<const FieldDescriptor*>;
std::string NameOf(const Path& path) {
  std::string name;
  for (const FieldDescriptor* field : path) name += (name.empty() ? "" : ".") + field->name();
  return name;
}

void CollectTexts(const Descriptor& type, Path path, std::set<const Descriptor*> within,
                  std::vector<Path>* out) {
  if (!within.insert(&type).second) return;
  for (int i = 0; i < type.field_count(); ++i) {
    path.push_back(type.field(i));
    if (IsText(*type.field(i))) out->push_back(path);
    // The key of a map is text, too; its entries are messages.
    if (const Descriptor* nested = type.field(i)->message_type())
      CollectTexts(*nested, path, within, out);
    path.pop_back();
  }
}

std::vector<Path> TextsOf(const Descriptor& type) {
  std::vector<Path> out;
  CollectTexts(type, {}, {}, &out);
  return out;
}

// Sets the text at the end of `path`, of the first element where a field is repeated.
void SetText(Message* message, const Path& path, const std::string& text) {
  for (std::size_t i = 0; i + 1 < path.size(); ++i) {
    const auto* reflection = message->GetReflection();
    const FieldDescriptor* field = path[i];
    if (!field->is_repeated()) {
      message = reflection->MutableMessage(message, field);
    } else if (reflection->FieldSize(*message, field) == 0) {
      message = reflection->AddMessage(message, field);
    } else {
      message = reflection->MutableRepeatedMessage(message, field, 0);
    }
  }
  const auto* reflection = message->GetReflection();
  const FieldDescriptor* field = path.back();
  if (!field->is_repeated()) {
    reflection->SetString(message, field, text);
  } else if (reflection->FieldSize(*message, field) == 0) {
    reflection->AddString(message, field, text);
  } else {
    reflection->SetRepeatedString(message, field, 0, text);
  }
}

// The wire refuses to parse a `string` that is no UTF-8, but writes it: only the keys of maps,
// which can't be `bytes`, may be one.
TEST(ForeignText, EveryTextOnTheWireAndInRowsIsBytes) {
  int seen = 0;
  for (const auto* file :
       {pb::JobSpec::descriptor()->file(), pb::AgentMessage::descriptor()->file(),
        pb::MetaRow::descriptor()->file()}) {
    for (int i = 0; i < file->message_type_count(); ++i) {
      for (const Path& path : TextsOf(*file->message_type(i))) {
        ++seen;
        const FieldDescriptor& field = *path.back();
        const bool map_key = field.containing_type()->options().map_entry();
        EXPECT_TRUE(map_key || field.type() == FieldDescriptor::TYPE_BYTES)
            << file->message_type(i)->name() << "." << NameOf(path);
      }
    }
  }
  EXPECT_GT(seen, 150);
}

class HostileText : public DaemonFixture {
 protected:
  void SetUp() override {
    config_.lease = std::chrono::hours(1);  // Fake agents send no heartbeats.
    Start();
  }
  FakeAgent Dialled() { return FakeAgent(Dial(daemon_->addresses().front())); }
  std::string NewName() { return "n" + std::to_string(++names_); }

  // Every variant of `sample`, each with one of its texts hostile.
  void ForEach(const Message& sample, const std::function<void(const Message&)>& use) {
    for (const Path& path : TextsOf(*sample.GetDescriptor())) {
      for (const std::string& text : HostileTexts()) {
        const std::unique_ptr<Message> variant(sample.New());
        variant->CopyFrom(sample);
        SetText(variant.get(), path, text);
        SCOPED_TRACE(sample.GetDescriptor()->name() + "." + NameOf(path));
        use(*variant);
      }
    }
  }

  pb::ReadReply ReadAll(pb::ReadRequest::What what) {
    pb::ReadRequest request;
    request.set_what(what);
    request.set_detail(true);
    request.set_ended(true);
    absl::StatusOr<pb::ReadReply> reply = OverUnix().Read(request);
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.value_or(pb::ReadReply());
  }
  void ExpectShown(const pb::ReadReply& reply) {
    absl::Status problem;
    for (const pb::JobView& job : reply.jobs()) {
      ShowableJob(job, &problem);
      EXPECT_TRUE(problem.ok()) << problem;
    }
    for (const pb::NodeView& node : reply.nodes()) {
      ShowableNode(node, &problem);
      EXPECT_TRUE(problem.ok()) << problem;
    }
  }
  // Reads everything, starts again, reads everything again.
  void ExpectReadableNowAndAfterARestart() {
    const pb::ReadReply jobs = ReadAll(pb::ReadRequest::WHAT_JOBS);
    ExpectShown(jobs);
    ExpectShown(ReadAll(pb::ReadRequest::WHAT_NODES));
    ASSERT_EQ(Stop(), 0);
    Start();
    const pb::ReadReply again = ReadAll(pb::ReadRequest::WHAT_JOBS);
    ExpectShown(again);
    ExpectShown(ReadAll(pb::ReadRequest::WHAT_NODES));
    EXPECT_EQ(again.jobs_size(), jobs.jobs_size());
  }

 private:
  int names_ = 0;
};

TEST_F(HostileText, OfAHello) {
  pb::AgentMessage hello = FakeAgent::Hello("n");
  pb::GroupReport& group = *hello.mutable_hello()->add_groups();
  group.set_number(1);
  group.set_job("job-1");
  group.set_generation(1);
  group.set_phase(pb::PHASE_FREE);
  int welcomed = 0;
  ForEach(hello.hello(), [&](const Message& variant) {
    FakeAgent agent = Dialled();
    pb::AgentMessage message;
    message.mutable_hello()->CopyFrom(variant);
    const std::string name = NewName();
    // The id and the name are this variant's own, unless they are what is hostile.
    if (message.hello().node() == hello.hello().node()) message.mutable_hello()->set_node(name);
    if (message.hello().name() == hello.hello().name()) message.mutable_hello()->set_name(name);
    ASSERT_TRUE(agent.Send(message));
    const auto answer = agent.Next();
    ASSERT_TRUE(answer.has_value());
    welcomed += answer->has_welcome() ? 1 : 0;
    ExpectShown(ReadAll(pb::ReadRequest::WHAT_NODES));
  });
  EXPECT_GT(welcomed, 0);
  ExpectReadableNowAndAfterARestart();
}

TEST_F(HostileText, OfASubmitAndACancel) {
  pb::SubmitRequest sample;
  sample.set_key("key");
  *sample.mutable_spec() = ToProto(SubmittedJob("job", 1, 1));
  int taken = 0;
  Client client = OverUnix();
  ForEach(sample, [&](const Message& variant) {
    pb::SubmitRequest request;
    request.CopyFrom(variant);
    if (request.key() == "key") request.set_key(NewName());
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(10));
    pb::SubmitReply reply;
    taken += client.stub().Submit(&context, request, &reply).ok() ? 1 : 0;
  });
  EXPECT_GT(taken, 0);
  ASSERT_TRUE(client.Submit(SubmittedJob("last", 1, 1), "k").ok());
  pb::CancelRequest cancel;
  cancel.set_key("c");
  cancel.set_job("last");
  ForEach(cancel, [&](const Message& variant) {
    pb::CancelRequest request;
    request.CopyFrom(variant);
    if (request.key() == "c") request.set_key(NewName());
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(10));
    pb::CancelReply reply;
    client.stub().Cancel(&context, request, &reply);
  });
  ExpectReadableNowAndAfterARestart();
}

TEST_F(HostileText, OfASelector) {
  Client client = OverUnix();
  ForEach(pb::ReadRequest(), [&](const Message& variant) {
    pb::ReadRequest request;
    request.CopyFrom(variant);
    request.set_what(pb::ReadRequest::WHAT_JOBS);
    EXPECT_FALSE(client.Read(request).ok());
  });
  ForEach(pb::ForgetNodeRequest(), [&](const Message& variant) {
    pb::ForgetNodeRequest request;
    request.CopyFrom(variant);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(10));
    pb::ForgetNodeReply reply;
    EXPECT_FALSE(client.stub().ForgetNode(&context, request, &reply).ok());
  });
  ExpectReadableNowAndAfterARestart();
}

TEST_F(HostileText, OfALaunch) {
  pb::LaunchRequest sample;
  sample.set_key("key");
  sample.set_rdzv_id("job");
  sample.set_standalone(true);
  *sample.mutable_spec() = ToProto(SubmittedJob("job", 1, 1));
  sample.mutable_spec()->set_origin(pb::JOB_ORIGIN_LAUNCHED);
  int taken = 0;
  ForEach(sample, [&](const Message& variant) {
    FakeAgent agent = Dialled();
    const std::string name = NewName();
    pb::AgentMessage hello = FakeAgent::Hello(name);
    hello.mutable_hello()->set_launched(true);
    ASSERT_TRUE(agent.Send(hello));
    pb::AgentMessage message;
    message.mutable_launch()->CopyFrom(variant);
    if (message.launch().key() == "key") message.mutable_launch()->set_key(name);
    agent.Send(message);
    const auto answer =
        agent.Until([](const auto& m) { return m.has_launch_answer() || m.has_refused(); });
    taken +=
        answer && answer->has_launch_answer() && !answer->launch_answer().has_refused() ? 1 : 0;
  });
  EXPECT_GT(taken, 0);
  ExpectReadableNowAndAfterARestart();
}

// What a member says of its job: each variant of each message comes from a node that runs one.
TEST_F(HostileText, OfAMember) {
  pb::AgentMessage commit, progress;
  pb::AgentMessage report;
  report.mutable_report()->set_phase(pb::PHASE_FREE);
  report.mutable_report()->mutable_witness()->set_host("127.0.0.1");
  report.mutable_report()->mutable_witness()->set_port(1);
  pb::RankExit& exit = *report.mutable_report()->add_exits();
  exit.set_kind(pb::EXIT_KIND_EXITED);
  exit.set_code(1);
  exit.set_error("sad");
  commit.mutable_commit()->set_attempt(1);
  commit.mutable_commit()->set_step(1);
  commit.mutable_commit()->set_manifest_hash("00");
  commit.mutable_commit()->set_path("/x");
  progress.mutable_progress()->set_step(1);
  Client client = OverUnix();
  for (const pb::AgentMessage& sample : {report, commit, progress}) {
    ForEach(sample, [&](const Message& variant) {
      pb::AgentMessage message;
      message.CopyFrom(variant);
      if (message.body_case() != sample.body_case()) return;  // A text of another body.
      const std::string name = NewName();
      FakeAgent agent = Dialled();
      ASSERT_TRUE(agent.Join(name));
      ASSERT_TRUE(client.Submit(SubmittedJob(name, 1, 1), name).ok());
      const std::optional<pb::GroupReport> member = agent.TakeJob();
      ASSERT_TRUE(member.has_value());
      const auto complete = [&](auto* body) {
        if (body->job().empty()) body->set_job(member->job());
        body->set_generation(member->generation());
      };
      if (message.has_report()) complete(message.mutable_report());
      if (message.has_report()) message.mutable_report()->set_number(member->number());
      if (message.has_commit()) complete(message.mutable_commit());
      if (message.has_progress()) complete(message.mutable_progress());
      agent.Send(message);
      // Answered, or refused: in any case the coordinator has seen it by then.
      if (!message.has_progress()) {
        agent.Until([](const auto& m) {
          return m.has_commit_answer() || m.has_report_ack() || m.has_refused();
        });
      }
      EXPECT_TRUE(client.Cancel(member->job(), true).ok());
    });
  }
  ExpectReadableNowAndAfterARestart();
}

// The refusal of a proposal becomes why its job waits, and an event.
TEST_F(HostileText, OfARefusedProposal) {
  Client client = OverUnix();
  for (const std::string& text : HostileTexts()) {
    const std::string name = NewName();
    FakeAgent agent = Dialled();
    ASSERT_TRUE(agent.Join(name));
    ASSERT_TRUE(client.Submit(SubmittedJob(name, 1, 1), name).ok());
    const auto asked = agent.Until(
        [](const auto& message) { return message.has_order() && message.order().has_prepare(); });
    ASSERT_TRUE(asked.has_value());
    pb::AgentMessage message;
    pb::GroupReport& report = *message.mutable_report();
    report.set_number(1);
    report.set_job(asked->order().job());
    report.set_generation(asked->order().prepare().generation());
    report.set_phase(pb::PHASE_FREE);
    report.set_refused(text);
    ASSERT_TRUE(agent.Send(message));
    ASSERT_TRUE(agent.Until([](const auto& m) { return m.has_report_ack(); }).has_value());
    const absl::StatusOr<JobView> view = client.ReadJob(report.job());
    ASSERT_TRUE(view.ok()) << view.status();
    bool told = false;
    for (const JobEvent& event : view->events) {
      const auto* left = std::get_if<NodeLeft>(&event.body);
      told = told || (left != nullptr && left->why.find(text) != std::string::npos);
    }
    EXPECT_TRUE(told) << report.job();
    EXPECT_TRUE(client.Cancel(report.job(), true).ok());
  }
  ExpectReadableNowAndAfterARestart();
}

}  // namespace
}  // namespace regroup::coordinator
