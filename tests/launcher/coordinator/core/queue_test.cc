// A job that no set of the known nodes could run: told, passed over, and run once they have come;
// and the list of jobs, page by page.

#include "tests/scenario/testing.h"

namespace regroup {
namespace {

using coordinator::ReadReply;
using coordinator::SubmitReply;

class Queue : public Scenario {
 protected:
  const CannotFit* WaitsToFit(const JobId& job) {
    view_ = world().View(job);
    return view_.why ? std::get_if<CannotFit>(&*view_.why) : nullptr;
  }
  JobView view_;
};

TEST_F(Queue, an_impossible_job_is_passed_over) {
  Start();
  AddDaemons({"a", "b", "c"});
  world().RunFor(1s);
  const CallId call = world().Submit(SpecOf("big", 5, 8), "k1");
  world().Submit(SpecOf("small", 3, 3), "k2");
  world().RunFor(1s);
  const auto& reply = std::get<SubmitReply>(*world().ReplyTo(call));
  ASSERT_TRUE(reply.waits.has_value());
  EXPECT_EQ(std::get<CannotFit>(*reply.waits).need, 5);
  EXPECT_EQ(std::get<CannotFit>(*reply.waits).known, 3);
  EXPECT_EQ(world().StateOf(JobId("small-2")), "running");
  world().CrashCoordinator();
  world().StartCoordinator();
  AddDaemons({"d"});
  world().RunFor(1s);
  const CannotFit* fit = WaitsToFit(JobId("big-1"));
  ASSERT_NE(fit, nullptr);
  EXPECT_EQ(fit->known, 4);
  // Now it could run, were all free: it is the head again, and the next one waits behind it.
  AddDaemons({"e"});
  world().RunFor(1s);
  world().Submit(SpecOf("next", 1, 1), "k3");
  world().RunFor(1s);
  EXPECT_TRUE(std::holds_alternative<BelowMinimum>(*world().View(JobId("big-1")).why));
  EXPECT_TRUE(std::holds_alternative<BehindJob>(*world().View(JobId("next-3")).why));
  for (auto& entry : world().nodes()) entry.second->ExitRank(JobId("small-2"), 0, 0);
  ASSERT_TRUE(Reaches(JobId("big-1"), "running"));
}

TEST_F(Queue, slots_of_a_node_are_told) {
  Start();
  sim::NodeOptions two;
  two.slots = 2;
  world().Add("a", two);
  AddDaemons({"b"});
  JobSpec spec = SpecOf("wide", 1, 1);
  spec.workers_per_node = 16;
  world().RunFor(1s);
  world().Submit(spec, "k1");
  world().RunFor(1s);
  const CannotFit* fit = WaitsToFit(JobId("wide-1"));
  ASSERT_NE(fit, nullptr);
  EXPECT_EQ(fit->slots, 16);
  EXPECT_EQ(fit->largest, 2);
  EXPECT_EQ(fit->node, "a");
}

// One worker for each GPU of whole nodes: a node that another job uses in part is waited for, and
// so is one that has no GPUs, in vain.
TEST_F(Queue, a_worker_for_each_gpu_takes_whole_nodes) {
  Start();
  const auto add = [&](const char* name, int slots, bool gpus) {
    sim::NodeOptions options;
    options.slots = slots;
    options.gpu_slots = gpus;
    world().Add(name, options);
  };
  add("a", 4, true);
  add("b", 2, true);
  add("c", 8, false);
  world().RunFor(1s);
  JobSpec whole = SpecOf("whole", 2, 2), small = SpecOf("small", 1, 1);
  whole.workers_per_node = kWorkerPerGpu;
  small.workers_per_node = 3;
  world().node("c").CutPower();
  world().RunFor(10s);
  world().Submit(small, "k1");  // The only node that is left with three slots is a.
  ASSERT_TRUE(Reaches(JobId("small-1"), "running"));
  world().Submit(whole, "k2");
  world().node("c").Reboot();
  world().RunFor(2s);
  EXPECT_EQ(std::get<BelowMinimum>(*world().View(JobId("whole-2")).why).have, 1);
  world().CrashCoordinator();
  world().StartCoordinator();
  world().RunFor(1s);
  world().node("a").ExitRank(JobId("small-1"), 0, 0);
  for (int rank : {1, 2}) world().node("a").ExitRank(JobId("small-1"), rank, 0);
  ASSERT_TRUE(Reaches(JobId("whole-2"), "running"));
  EXPECT_EQ(world().View(JobId("whole-2")).world, 6);
  EXPECT_EQ(world().LiveRanks(JobId("whole-2")), 6);
  world().Submit(SpecOf("next", 1, 1), "k3");
  world().RunFor(2s);
  EXPECT_TRUE(world().node("c").Pids(JobId("next-3")).size() == 1);
  JobSpec three = SpecOf("three", 3, 3);
  three.workers_per_node = kWorkerPerGpu;
  world().Submit(three, "k4");
  world().RunFor(1s);
  const CannotFit* fit = WaitsToFit(JobId("three-4"));
  ASSERT_NE(fit, nullptr);
  EXPECT_EQ(fit->slots, kWorkerPerGpu);
  EXPECT_EQ(fit->known, 2);
}

// A lost node is none that could run it; when it is back, it could.
TEST_F(Queue, a_lost_node_counts_no_more) {
  Start();
  AddDaemons({"a", "b"});
  world().RunFor(1s);
  world().node("b").CutPower();
  world().RunFor(10s);
  world().Submit(SpecOf("pair", 2, 2), "k1");
  world().RunFor(1s);
  EXPECT_NE(WaitsToFit(JobId("pair-1")), nullptr);
  world().node("b").Reboot();
  ASSERT_TRUE(Reaches(JobId("pair-1"), "running"));
}

TEST_F(Queue, now_or_never_is_refused) {
  Start();
  AddDaemons({"a"});
  world().RunFor(1s);
  coordinator::SubmitAsked asked;
  asked.call = CallId(77);
  asked.spec = SpecOf("big", 10, 10);
  asked.key = "key";
  asked.now_or_never = true;
  world().Ask(asked);
  EXPECT_TRUE(std::holds_alternative<absl::Status>(*world().ReplyTo(CallId(77))));
  EXPECT_FALSE(world().rows().contains(coordinator::JobSpecKey(JobId("big-1"))));
}

// Where there is a choice, a job takes the nodes with the most free slots.
TEST_F(Queue, jobs_are_spread) {
  Start();
  sim::NodeOptions two;
  two.slots = 2;
  for (const char* name : {"a", "b", "c"}) world().Add(name, two);
  world().RunFor(1s);
  std::vector<std::string> nodes;
  std::vector<int> free;
  for (const char* key : {"k1", "k2", "k3", "k4"}) {
    JobSpec one = SpecOf("one", 1, 1);
    one.max_restarts = 1;
    world().Submit(one, key);
    world().RunFor(1s);
    const JobView view = world().View(JobId("one-" + std::to_string(nodes.size() + 1)));
    nodes.push_back(view.generations.back().members[0].name);
    free.push_back(view.generations.back().members[0].free_slots);
  }
  EXPECT_THAT(nodes, ::testing::ElementsAre("a", "b", "c", "a"));
  EXPECT_THAT(free, ::testing::ElementsAre(2, 2, 2, 1));
  // It is told, after a restart too, of the generation for which there was a choice.
  world().CrashCoordinator();
  world().StartCoordinator();
  world().RunFor(2s);
  const JobId job("one-1");
  EXPECT_EQ(world().View(job).generations[0].members[0].free_slots, 2);
  world().node("a").ExitRank(job, 0, 1);
  ASSERT_TRUE(ReachesGeneration(job, 2));
  EXPECT_EQ(world().View(job).generations[1].members[0].free_slots, 0);
}

// A job that waits keeps others from growing, but not once it cannot run any more.
class Growth : public Queue {
 protected:
  // Two nodes are free, but big-2 waits for three.
  Growth() {
    Start();
    AddDaemons({"a"});
    JobSpec elastic = SpecOf("elastic", 1, 2);
    elastic.scale_up = ScaleUp::kNow;
    job_ = Running(elastic);
    world().Submit(SpecOf("big", 3, 3), "k2");
    AddDaemons({"b", "c"});
    world().RunFor(10s);
    EXPECT_EQ(world().View(job_).generation, Generation(1));
  }
  JobId job_;
};

TEST_F(Growth, goes_on_when_the_head_fits_no_more) {
  world().node("c").CutPower();
  ASSERT_TRUE(ReachesGeneration(job_, 2));
  EXPECT_EQ(world().View(job_).generations.back().members.size(), 2u);
}

TEST_F(Growth, goes_on_when_the_head_is_cancelled) {
  world().Cancel("big-2");
  ASSERT_TRUE(ReachesGeneration(job_, 2));
}

// Pages of any size are the list, in its order, and what they end with is where the next begins.
TEST_F(Queue, a_list_comes_in_pages) {
  Start();
  AddDaemons({"a", "b", "c", "d", "e"});
  const JobId over = Running(SpecOf("over", 1, 1));
  world().node("a").ExitRank(over, 0, 0);
  ASSERT_TRUE(Reaches(over, "succeeded"));
  for (int i = 0; i < 6; ++i) world().Submit(SpecOf("job", 9, 9), "k" + std::to_string(i));
  world().RunFor(1s);
  const auto names = [](const ReadReply& reply) {
    std::vector<std::string> all;
    for (const JobView& job : reply.jobs) all.push_back(job.id.value());
    for (const NodeView& node : reply.nodes) all.push_back(node.name);
    return all;
  };
  for (const bool nodes : {false, true}) {
    for (const bool ended : {false, true}) {
      coordinator::ReadFilter filter;
      filter.jobs = !nodes;
      filter.nodes = nodes;
      filter.ended = ended;
      const auto read = [&] { return *world().core().Read(filter, Instant{}, WallTime{}); };
      const std::vector<std::string> whole = names(read());
      EXPECT_EQ(whole.size(), nodes ? 5u : ended ? 7u : 6u);
      for (filter.limit = 1; filter.limit < 9; ++filter.limit) {
        std::vector<std::string> joined;
        filter.after.clear();
        for (int pages = 0; pages < 9; ++pages) {
          const ReadReply page = read();
          for (const std::string& name : names(page)) joined.push_back(name);
          EXPECT_LE(names(page).size(), static_cast<std::size_t>(filter.limit));
          filter.after = page.next;
          if (page.next.empty()) break;
          EXPECT_EQ(names(page).size(), static_cast<std::size_t>(filter.limit));
        }
        EXPECT_EQ(joined, whole) << "pages of " << filter.limit;
      }
    }
  }
}

}  // namespace
}  // namespace regroup
