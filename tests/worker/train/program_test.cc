// What a person types at regroup-worker, and what it answers.

#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/wait.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "tests/worker/checkpoint/testing.h"
#include "worker/train/worker_exit.h"

namespace regroup::worker {
namespace {

struct Answer {
  int code = -1;
  std::string out, err;
};

struct Row {
  std::string arguments;
  WorkerExit exit;
  std::vector<std::string> says;
};

class ProgramTest : public testing::Test {
 protected:
  // Alone, whatever this test was started by.
  Answer Run(const std::string& arguments, const std::string& variables = "") const {
    const std::string out = directory_ / "out", err = directory_ / "err";
    const std::string command = "env -i OMP_NUM_THREADS=1 GOMP_SPINCOUNT=1000 " + variables +
                                " " REGROUP_WORKER " " + arguments + " >'" + out + "' 2>'" + err +
                                "' </dev/null";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, ReadAll(out), ReadAll(err)};
  }
  std::string Train(const std::string& name, const std::string& flags = "") const {
    WriteAll(directory_ / "data.txt", std::string(300, 'a') + std::string(300, 'b'));
    const Answer answer = Run("train --data " + (directory_ / "data.txt") +
                              " --layers 1 --width 16 --heads 2 --context 16 --steps 4 "
                              "--checkpoint-dir " +
                              (directory_ / name) + flags);
    EXPECT_EQ(answer.code, 0) << answer.err;
    return directory_ / name;
  }

  void ExpectRefused(const std::vector<Row>& rows) const {
    for (const Row& row : rows) {
      const Answer answer = Run(row.arguments);
      EXPECT_EQ(answer.code, static_cast<int>(row.exit)) << row.arguments << ": " << answer.err;
      EXPECT_EQ(answer.err.rfind("error: ", 0), 0u) << row.arguments << ": " << answer.err;
      for (const std::string& word : row.says) {
        EXPECT_NE(answer.err.find(word), std::string::npos)
            << row.arguments << ": " << word << " is not in: " << answer.err;
      }
      EXPECT_EQ(answer.out, "") << row.arguments;
    }
  }

  TemporaryDirectory directory_;
};

TEST_F(ProgramTest, GeneratesTheSameSampleFromTheSameSeed) {
  const std::string generate = "generate --checkpoint " + Train("ckpt") + " --prompt 'abc' ";
  const Answer one = Run(generate + "--tokens 40 --seed 3"),
               same = Run(generate + "--tokens 40 --seed 3"),
               other = Run(generate + "--tokens 40 --seed 4");
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(one.err, "");
  EXPECT_EQ(one.out.size(), 3u + 40 + 1);  // Longer than the context of 16.
  EXPECT_EQ(one.out.substr(0, 3), "abc");
  EXPECT_EQ(one.out.back(), '\n');
  EXPECT_EQ(one.out, same.out);
  EXPECT_NE(one.out, other.out);
  EXPECT_EQ(Run(generate + "--tokens 0").out, "abc\n");
  const std::string help = Run("generate --help").out;
  EXPECT_NE(help.find("[REGROUP_GENERATE_TOKENS]"), std::string::npos) << help;
  EXPECT_EQ(Run(generate, "REGROUP_GENERATE_TOKENS=0").out, "abc\n");
  // The likeliest needs no luck.
  EXPECT_EQ(Run(generate + "--temperature 0 --tokens 9 --seed 1").out,
            Run(generate + "--temperature 0 --tokens 9 --seed 2").out);
}

TEST_F(ProgramTest, GeneratesWhateverOptimizerTrained) {
  for (const char* optimizer : {"sgd", "lamb", "lars"}) {
    const Answer text = Run("generate --tokens 5 --prompt ab --checkpoint " +
                            Train(optimizer, std::string(" --optimizer ") + optimizer));
    EXPECT_EQ(text.code, 0) << text.err;
    EXPECT_EQ(text.out.size(), 2u + 5 + 1);
  }
}

// AdamW and LAMB keep two numbers per weight, SGD and LARS one; and LAMB and LARS two sums per
// block of 1,024 of each matrix.
TEST_F(ProgramTest, APlanKnowsTheStateOfEveryOptimizer) {
  std::map<std::string, std::int64_t> moments, snapshots;
  std::int64_t weights = 0;
  for (const std::string optimizer : {"adamw", "sgd", "lamb", "lars"}) {
    const Answer answer =
        Run("plan --json --layers 4 --width 64 --heads 4 --context 32 "
            "--checkpoint-dir x --optimizer " +
            optimizer);
    ASSERT_EQ(answer.code, 0) << answer.err;
    const auto row = nlohmann::json::parse(answer.out)["strategies"][0];
    moments[optimizer] = row["moments_bytes"].get<std::int64_t>();
    snapshots[optimizer] = row["snapshots_bytes"].get<std::int64_t>();
    weights = row["weights_bytes"].get<std::int64_t>();
  }
  EXPECT_EQ(moments["adamw"], 2 * weights);
  EXPECT_EQ(moments["sgd"], weights);
  const std::int64_t sums = moments["lamb"] - 2 * weights;
  EXPECT_EQ(moments["lars"] - weights, sums);
  EXPECT_GE(sums, 16 * (weights / 4096 - 4));
  EXPECT_LE(sums, 16 * (weights / 4096 + 2 * 18));
  EXPECT_EQ(snapshots["adamw"] / 3, snapshots["sgd"] / 2);
  EXPECT_EQ(snapshots["lamb"], snapshots["adamw"]);
}

TEST_F(ProgramTest, GeneratesFromTheNewestThatVerifiesAndSaysWhyNotFromANewerOne) {
  const std::string directory = Train("ckpt");
  const Repository repository = *Repository::Open(directory);
  const Manifest manifest = *repository.ReadManifest(4);
  const Answer none = Run("generate --tokens 1 --checkpoint " + directory);
  EXPECT_EQ(none.code, 0) << none.err;
  WriteAll(directory + "/commits/step-9", "garbage");
  const Answer older = Run("generate --tokens 1 --checkpoint " + directory);
  EXPECT_EQ(older.code, 0) << older.err;
  EXPECT_NE(older.err.find("the commit of step 9 is not usable"), std::string::npos) << older.err;
  std::filesystem::resize_file(
      repository.AttemptPath(4, manifest.generation, manifest.attempt) + "/rank-0-of-1.safetensors",
      4096);
  const Answer unusable = Run("generate --tokens 1 --checkpoint " + directory);
  EXPECT_EQ(unusable.code, static_cast<int>(WorkerExit::kCheckpointUnusable));
  EXPECT_NE(unusable.err.find("error: no usable checkpoint in " + directory), std::string::npos)
      << unusable.err;
  EXPECT_EQ(unusable.out, "");
}

TEST_F(ProgramTest, APlanCountsShortNumbersAndWhatIsComputedAgain) {
  const std::string plan = "plan --layers 4 --width 64 --heads 4 --context 32 --batch 6 --world 3 ";
  const auto of = [&](const std::string& flags, std::size_t strategy, const char* kind) {
    const Answer answer = Run(plan + "--json " + flags);
    EXPECT_EQ(answer.code, 0) << answer.err;
    return nlohmann::json::parse(answer.out)["strategies"][strategy][kind].get<std::int64_t>();
  };
  const std::int64_t whole = of("", 0, "weights_bytes");
  EXPECT_EQ(of("", 0, "rounded_bytes"), 0);
  for (const std::string flags : {"--precision bf16", "--precision f16"}) {
    EXPECT_EQ(of(flags, 0, "weights_bytes"), whole);
    EXPECT_EQ(of(flags + " --nproc-per-node 1", 2, "rounded_bytes"), whole / 2);
    EXPECT_NEAR(of(flags, 2, "rounded_bytes"), static_cast<double>(whole) / 6, 1);
    // A third of the weights, by whole blocks, and rounded what of them is gathered from and to.
    for (const std::size_t strategy : {1u, 2u, 3u})
      EXPECT_NEAR(static_cast<double>(of(flags, strategy, "weights_bytes")) / whole, 1.0 / 3, 0.02);
    EXPECT_GT(of(flags, 3, "rounded_bytes"), whole / 6);
    EXPECT_LT(of(flags, 3, "rounded_bytes"), whole / 3);
    EXPECT_EQ(of(flags, 3, "gathered_bytes"), 0);
    // Of six bytes for each weight of others that are moved, two are its own and four its
    // gradient's.
    EXPECT_NEAR(static_cast<double>(of(flags + " --nproc-per-node 1", 1, "moved_bytes")) /
                    of("--nproc-per-node 1", 1, "moved_bytes"),
                0.75, 0.02);
  }
  for (const std::string flags : {"", "--precision bf16 "}) {
    const std::int64_t none = of(flags, 0, "activations_bytes"),
                       selective = of(flags + "--recompute selective", 0, "activations_bytes"),
                       full = of(flags + "--recompute full", 0, "activations_bytes");
    EXPECT_LT(selective, none);
    EXPECT_LT(full, selective);
  }
  const Answer show = Run(plan + "--show --precision bf16 --recompute full --strategy zero-3");
  for (const char* words :
       {"parameters in bf16", "  Round unit 1 (block.0)\n", "  recomputes units 1, 2, 3, 4\n",
        "  Recompute unit 3 micro-batch 0 "}) {
    EXPECT_NE(show.out.find(words), std::string::npos) << words << show.out;
  }
  EXPECT_EQ(show.out.find("Recompute unit 4"), std::string::npos) << show.out;
}

// Six units, so that a rank may have up to six blocks of 1,024 weights more than its third.
TEST_F(ProgramTest, APlanSaysWhatATrainingTakesAndWhatFits) {
  const std::string plan =
      "plan --layers 4 --width 64 --heads 4 --context 32 --batch 6 --world 3 --checkpoint-dir x ";
  const Answer json = Run(plan + "--json --memory 3MiB");
  ASSERT_EQ(json.code, 0) << json.err;
  const auto tree = nlohmann::json::parse(json.out);
  std::vector<std::int64_t> all;
  const auto of = [&](std::size_t strategy, const char* kind) {
    return tree["strategies"][strategy][kind].get<std::int64_t>();
  };
  const std::int64_t whole = of(0, "weights_bytes");
  EXPECT_GE(whole, 4 * tree["parameters"].get<std::int64_t>());
  EXPECT_LE(whole, 4 * tree["parameters"].get<std::int64_t>() + 54 * 4 * 64);
  const std::int64_t part_least = whole / 3, part_most = whole / 3 + 6 * 4096;
  for (std::size_t s = 0; s < 4; ++s) {
    all.push_back(of(s, "rank_bytes"));
    const bool moments = s >= 1, windows = s == 3;
    // Ranks of one host have a buffer of all weights together, or each has its own.
    EXPECT_TRUE(moments
                    ? of(s, "weights_bytes") >= part_least && of(s, "weights_bytes") <= part_most
                    : of(s, "weights_bytes") == whole);
    EXPECT_TRUE(moments ? of(s, "moments_bytes") >= 2 * part_least &&
                              of(s, "moments_bytes") <= 2 * part_most
                        : of(s, "moments_bytes") == 2 * whole);
    EXPECT_EQ(of(s, "gathered_bytes") > 0, windows);
    EXPECT_NEAR(static_cast<double>(of(s, "snapshots_bytes")), 2.0 * static_cast<double>(whole),
                6 * 6 * 4096.0);
    EXPECT_EQ(of(s, "activations_bytes"), of(0, "activations_bytes"));
    EXPECT_EQ(tree["strategies"][s]["fits"].get<bool>(), all[s] <= 3 << 20);
  }
  // Of two thirds of the gradients, summed and handed out, or summed alone.
  EXPECT_NEAR(static_cast<double>(of(0, "moved_bytes")), 4.0 / 3 * static_cast<double>(whole), 8);
  EXPECT_NEAR(static_cast<double>(of(1, "moved_bytes")), 2.0 / 3 * static_cast<double>(whole),
              6 * 4 * 4096.0);
  EXPECT_GT(of(3, "moved_bytes"), of(1, "moved_bytes"));
  EXPECT_LT(all[3], all[0]);

  const Answer table = Run(plan);
  EXPECT_EQ(table.code, 0) << table.err;
  for (const char* words : {"on 3 ranks, batch 6 x 32 tokens, at most 1 micro-batches", "\nddp ",
                            "\nzero-3 ", "floating-point operations per token"}) {
    EXPECT_NE(table.out.find(words), std::string::npos) << words << table.out;
  }
  EXPECT_NE(Run(plan + "--memory 1GiB").out.find("\n--strategy zero-1 is suggested: it takes "),
            std::string::npos);
  EXPECT_NE(Run(plan + "--memory 64KiB").out.find("nothing fits 64.0 KiB per rank: even zero-1"),
            std::string::npos)
      << Run(plan + "--memory 64KiB").out;
  EXPECT_NE(Run(plan + "--show --strategy zero-3").out.find("  Gather unit 0 (embed)\n"),
            std::string::npos);
  const std::string file = directory_ / "gpt.yaml";
  WriteAll(file, "layers: 4\nwidth: 64\nheads: 4\ncontext: 32\nbatch: 6\ncheckpoint_dir: x\n");
  EXPECT_EQ(Run("plan --world 3 --config " + file).out, table.out);
  EXPECT_EQ(Run("plan --config " + file, "REGROUP_PLAN_WORLD=3").out, table.out);
}

// 2,000 tokens below 700, in 2 bytes each.
std::string TokenBytes() {
  std::string bytes;
  for (int i = 0; i < 2000; ++i) {
    const int token = i * i % 700;
    bytes += {static_cast<char>(token % 256), static_cast<char>(token / 256)};
  }
  return bytes;
}

std::string LlmcHeader(std::uint32_t magic, std::uint32_t version, std::uint32_t count) {
  std::string header;
  for (const std::uint32_t word : {magic, version, count})
    header.append(reinterpret_cast<const char*>(&word), 4);
  header.resize(1024);
  return header;
}

// The same tokens, with llm.c's header and as nanoGPT has them.
TEST_F(ProgramTest, TrainsOnTokenFiles) {
  WriteAll(directory_ / "llmc", LlmcHeader(20240520, 1, 2000) + TokenBytes());
  WriteAll(directory_ / "train.bin", TokenBytes());
  WriteAll(directory_ / "raw", TokenBytes());
  const std::string model =
      " --layers 1 --width 16 --heads 2 --context 16 --steps 4 --vocabulary 704 ";
  std::vector<std::string> outputs;
  for (const std::string data :
       {"llmc --data-format llm.c", "llmc", "train.bin", "raw --data-format nanogpt"}) {
    const Answer answer = Run("train --data " + (directory_ / data) + model);
    EXPECT_EQ(answer.code, 0) << answer.err;
    outputs.push_back(std::regex_replace(answer.out, std::regex("  [0-9,]+ tok/s"), ""));
    EXPECT_EQ(outputs.back(), outputs[0]) << data;
  }
  // The first loss is near ln 704.
  EXPECT_NE(outputs[0].find("step 1  loss 6.5"), std::string::npos) << outputs[0];
  const std::string ckpt = directory_ / "ckpt";
  ASSERT_EQ(Run("train --data " + (directory_ / "llmc") + model + "--checkpoint-dir " + ckpt).code,
            0);
  const Answer generated = Run("generate --checkpoint " + ckpt);
  EXPECT_EQ(generated.code, static_cast<int>(WorkerExit::kCheckpointUnusable));
  EXPECT_NE(generated.err.find("trained on numbered tokens"), std::string::npos) << generated.err;
}

TEST_F(ProgramTest, SaysTheLossOfOtherDataAndTrainsAsWithout) {
  WriteAll(directory_ / "val.txt", std::string(40, 'b') + std::string(4000, 'a'));
  WriteAll(directory_ / "data.txt", std::string(300, 'a') + std::string(300, 'b'));
  const std::string train = "train --data " + (directory_ / "data.txt") +
                            " --layers 1 --width 16 --heads 2 --context 16 --steps 7 --batch 5 ";
  const auto losses = [](const Answer& answer) {
    EXPECT_EQ(answer.code, 0) << answer.err;
    const std::string plain =
        std::regex_replace(answer.out, std::regex("step [0-9]+  validation loss .*\n"), "");
    return std::regex_replace(plain, std::regex("  [0-9,]+ tok/s"), "");
  };
  const Answer with =
      Run(train + "--eval-every 3 --eval-batches 4 --eval-data " + (directory_ / "val.txt"));
  EXPECT_EQ(losses(with), losses(Run(train)));
  std::string steps;
  const std::regex line("step ([0-9]+)  validation loss ([0-9.]+)  over 20 samples\n");
  for (std::sregex_iterator at(with.out.begin(), with.out.end(), line), end; at != end; ++at)
    steps += (*at)[1].str() + " ";
  EXPECT_EQ(steps, "3 6 7 ") << with.out;
  // At most all of it.
  EXPECT_NE(Run(train + "--eval-batches 9999 --eval-data " + (directory_ / "val.txt"))
                .out.find("over 250 samples"),
            std::string::npos);
}

TEST_F(ProgramTest, BadArgumentsAreNamedWithValueAndLimit) {
  const std::string ckpt = Train("ckpt"), generate = "generate --checkpoint " + ckpt + " ";
  const WorkerExit usage = WorkerExit::kUsage;
  const std::vector<Row> rows = {
      {"", usage, {"no command given", "train, generate, plan, check-gpu and version"}},
      {"fly", usage, {"unknown command fly"}},
      {"generate", usage, {"--checkpoint is missing", "regroup-worker generate"}},
      {"plan --world 0", usage, {"--world", "\"0\"", "1 to 1024"}},
      {"plan --world 1025", usage, {"--world", "\"1025\"", "1 to 1024"}},
      {"plan --gpu b1", usage, {"--gpu: \"b1\" is not known", "a100, h100, h200"}},
      {"plan --gpu h100 --mfu 101", usage, {"--mfu", "\"101\"", "1 to 100"}},
      {"plan --gpu h100 --link fast", usage, {"--link", "\"fast\""}},
      {"plan --mfu 30", usage, {"--mfu is given without --gpu"}},
      {"plan --link 50GB", usage, {"--link is given without --gpu"}},
      {"plan --strategy zero-4", usage, {"--strategy", "\"zero-4\"", "zero-3 are"}},
      {"plan --memory lots", usage, {"--memory", "lots"}},
      {"plan --width 10 --heads 3",
       usage,
       {"--width 10 does not fit --heads 3", "width 10 is not a multiple of its 3 heads",
        "--width 12"}},
      {"plan 3", usage, {"unexpected word 3"}},
      {"plan --config /nonexistent.yaml", usage, {"/nonexistent.yaml"}},
      {generate + "--tokens -1", usage, {"--tokens", "\"-1\"", "0 to 1000000"}},
      {generate + "--tokens many", usage, {"--tokens", "\"many\"", "whole number"}},
      {generate + "--temperature 101", usage, {"--temperature", "from 0 to 100"}},
      {generate + "--temperature nan", usage, {"--temperature", "from 0 to 100"}},
      {generate + "--seed -3", usage, {"--seed", "\"-3\"", "0 to 9223372036854775807"}},
      {generate + "--prompt ''", usage, {"--prompt"}},
      {generate + "word", usage, {"unexpected word word"}},
      {generate + "--token 3", usage, {"--token", "did you mean --tokens?"}},
      {"generate --checkpoint /nonexistent",
       WorkerExit::kCheckpointUnusable,
       {"no checkpoints in /nonexistent", "No such file"}},
      {"generate --checkpoint " + (directory_ / "data.txt"),
       WorkerExit::kCheckpointUnusable,
       {"no checkpoints in", "Not a directory"}},
      {"train --data /nonexistent", usage, {"/nonexistent"}},
      {"train --dta x",
       usage,
       {"--dta", "did you mean --data?", "try: regroup-worker train --help"}},
      {"__man /nonexistent", WorkerExit::kFailed, {"cannot write /nonexistent/regroup-worker.1"}},
  };
  ExpectRefused(rows);
}

TEST_F(ProgramTest, WhatDoesNotFitInAConfigurationIsNamedWithValueAndLimit) {
  WriteAll(directory_ / "data.txt", std::string(600, 'a'));
  const auto file = [&](const std::string& text) {
    static int number = 0;
    const std::string path = directory_ / ("config" + std::to_string(++number) + ".yaml");
    WriteAll(path, "data: " + (directory_ / "data.txt") + "\n" + text + "\n");
    return "train --config " + path;
  };
  const WorkerExit usage = WorkerExit::kUsage;
  ExpectRefused({
      {file("layers: 0"), usage, {"config", "--layers", "\"0\"", "1 to 1000"}},
      {file("batch: 99999999999"), usage, {"--batch", "\"99999999999\"", "1 to 16777216"}},
      {file("learning_rate: fast"), usage, {"--learning-rate", "\"fast\"", "from 0 to 1000"}},
      {file("beta1: 1"), usage, {"--beta1", "\"1\"", "from 0 to 0.999999"}},
      {file("keep: 1"), usage, {"--keep", "\"1\"", "2 to 1000"}},
      {file("heads: 5"), usage, {"width 384 is not a multiple of its 5 heads"}},
      {file("steps: 5\nwarmup: 9"), usage, {"--warmup", "9 steps of 5"}},
      {file("join_timeout: 0s"), usage, {"--join-timeout is 0"}},
      {file("collective_timeout: soon"), usage, {"--collective-timeout", "soon"}},
      {file("stps: 5"), usage, {"unknown field stps", ":2", "did you mean steps?"}},
      {file("checkpoint_dir: /proc/none"),
       WorkerExit::kCheckpointDirectory,
       {"/proc/none cannot be written", "--checkpoint-dir DIR"}},
      {file("optimizer: adam"),
       usage,
       {"--optimizer", "\"adam\"", "adamw, sgd, lamb and lars are"}},
      {file("momentum: 1"), usage, {"--momentum", "\"1\"", "from 0 to 0.999999"}},
      {file("trust_coefficient: 0"), usage, {"--trust-coefficient", "\"0\"", "from 1e-09 to 1000"}},
      {file("lr_schedule: step"), usage, {"--lr-schedule", "\"step\"", "and warmup-decay are"}},
      {file("lr_scale: cubic"), usage, {"--lr-scale", "\"cubic\"", "none, linear and sqrt are"}},
      {file("base_batch: 0"), usage, {"--base-batch", "\"0\"", "1 to 16777216"}},
      {file("learning_rate: 10\nbatch: 4096\nbase_batch: 8\nlr_scale: linear"),
       usage,
       {"--learning-rate 10 is 5120 by --lr-scale linear", "512 times --base-batch 8",
        "at most 1000"}},
      {file("width: 1024\nheads: 2"), usage, {"heads are 512 wide, more than 256"}},
      {file("eval_data: /nonexistent"), usage, {"/nonexistent"}},
      {file("batch: 10\ncontext: 64\neval_data: " + (directory_ / "data.txt")),
       usage,
       {"--eval-data has 9 samples of 64 tokens, fewer than one --batch of 10"}},
      {file("eval_every: 0"), usage, {"--eval-every", "\"0\"", "1 to 2147483647"}},
      {file("eval_batches: 0"), usage, {"--eval-batches", "\"0\"", "1 to 16777216"}},
      {file("vocabulary: 300"), usage, {"a vocabulary of 300 does not fit text"}},
      {file("vocabulary: -1"), usage, {"--vocabulary", "\"-1\"", "0 to 16777216"}},
      {file("data_format: csv"), usage, {"--data-format", "\"csv\"", "llm.c and nanogpt are"}},
  });
}

TEST_F(ProgramTest, WhatIsWrongWithATokenFileIsNamedWithItsNumbers) {
  const auto tokens = [&](const std::string& name, const std::string& bytes,
                          const std::string& flags) {
    WriteAll(directory_ / name, bytes);
    return "train --data " + (directory_ / name) + " " + flags;
  };
  const WorkerExit usage = WorkerExit::kUsage;
  ExpectRefused({
      {tokens("train.bin", TokenBytes(), "--vocabulary 650"),
       usage,
       {"train.bin: its token at position ", " is 676, and the vocabulary has 650, from 0 to 649",
        "a larger --vocabulary"}},
      {tokens("cut", LlmcHeader(20240520, 1, 2001) + TokenBytes(), ""),
       usage,
       {"cut has 5024 bytes, and its header says 2001 tokens, which take 5026"}},
      {tokens("llama3", LlmcHeader(20240801, 6, 1000) + TokenBytes(), ""),
       usage,
       {"llama3 is of version 6", "only 7 is known"}},
      {tokens("model.bin", LlmcHeader(20240326, 3, 0), ""),
       usage,
       {"model.bin holds llm.c's model weights"}},
      {tokens("odd.bin", "abc", ""), usage, {"odd.bin has 3 bytes"}},
      {tokens("short.bin", TokenBytes().substr(0, 32), "--context 16"),
       usage,
       {"the data is 16 tokens, fewer than one sample of 16"}},
  });
}

TEST_F(ProgramTest, HelpNamesEveryExitCodeAndAnExample) {
  for (const char* command : {"train --help", "--help"}) {
    const Answer help = Run(command);
    EXPECT_EQ(help.code, 0);
    for (const char* words :
         {"\n  10  the group", "\n  11  another rank", "\n  12  ranks", "\n  13  the checkpoint",
          "\n  14  no checkpoint", "\n  15  the loss", "\n  16  all steps", "\n  17  saved",
          "\n  18  ranks that", "\nexample:\n  regroup"}) {
      EXPECT_NE(help.out.find(words), std::string::npos) << command << words;
    }
  }
  EXPECT_NE(Run("train --help").out.find("REGROUP_STEPS"), std::string::npos);
  EXPECT_EQ(Run("generate --help").code, 0);
  const Answer version = Run("version");
  EXPECT_EQ(version.code, 0);
  // What ranks compare when they meet.
  EXPECT_TRUE(std::regex_search(version.out, std::regex(", build [0-9a-f]{16,}\\)\n")))
      << version.out;
}

}  // namespace
}  // namespace regroup::worker
