"""The demo's screen over a made-up job: each line says what happened, at each width."""
import datetime
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import proof  # noqa: E402
import view  # noqa: E402

NOW = 1_800_000_000.0
MARKS = {1: "world 3 in 0.09 s", 2: "running again after 0.06 s, 4 steps repeated"}
ALIVE = {"node-a": True, "node-b": True, "node-c": False}


def stamp(seconds_ago):
    then = datetime.datetime.fromtimestamp(NOW - seconds_ago, datetime.timezone.utc)
    return then.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def members(*names):
    return [{"node": name, "ranks": [rank]} for rank, name in enumerate(names)]


JOB = {"job": "demo-1", "state": "regrouping", "generation": 2, "tokens_per_second": 4212.0, "generations": [
    {"generation": 1, "state": "over", "world": 3, "members": members("node-a", "node-b", "node-c"), "first_step": 1,
     "last_step": 141, "restored_step": 0, "ended_at": stamp(0.4),
     "ended": {"brief": "node-c lost (connection refused)"}},
    {"generation": 2, "state": "voided", "world": 3, "members": []},
    {"generation": 3, "state": "proposed", "world": 2, "members": members("node-a", "node-b"),
     "restart": {"down_s": 0.98, "stop_s": 0.02, "form_s": 0.04, "spawn_s": 0.02}}]}
LINES = [proof.Consumed(1, step, rank, 3, 0, 8, 0, 5.5 - step / 50) for step in range(1, 142) for rank in range(3)]


def screen(columns, job=JOB, lines=LINES):
    return view.live(3, MARKS, "agent 4121, worker 4127", 58, "2:30", job, 57.2, ALIVE, lines, NOW, columns)


class Live(unittest.TestCase):
    def test_a_lost_node_at_80_columns(self):
        rows = screen(80)
        self.assertEqual(rows[0], " Regroup demo   act 3/6: SIGKILL node-c                     0:58 of about 2:30")
        self.assertEqual(rows[1], " coordinator ● up 57s   job demo-1 regrouping   generation 2   world 3 → 2")
        self.assertRegex(rows[2], r"^ node-a ● rank 0  starting +loss 5\.48 .+ 2\.68$")
        self.assertRegex(rows[3], r"^ node-b ● rank 1  starting +g1 ──╳ g3$")
        self.assertEqual(rows[4], " node-c ✗ lost 0.4 s ago (connection refused)")
        self.assertEqual(rows[5:], [" ✓ 1 train on 3 nodes            world 3 in 0.09 s",
                                    " ✓ 2 SIGKILL one worker          running again after 0.06 s, 4 steps repeated",
                                    " ▶ 3 SIGKILL node-c              agent 4121, worker 4127",
                                    " · 4 SIGKILL the coordinator   · 5 node-c returns",
                                    " · 6 SIGTERM node-b (preempted)"])
        self.assertLessEqual(max(map(len, rows)), 79)

    def test_speed_of_a_rank_is_its_share(self):
        job = dict(JOB, generations=JOB["generations"][:1])
        self.assertIn("rank 0  step 141   1,404 tok/s", screen(80, job)[2])

    def test_narrow(self):
        rows = screen(44)
        self.assertEqual(rows[5][:10], " loss 5.48")
        self.assertEqual(rows[6], " g1 ──╳ g3")

    def test_after_the_acts_it_tells_what_goes_on(self):
        marks = dict.fromkeys(range(1, 7), "done")
        rows = view.live(6, marks, "training to the end", 80, "1:30", JOB, 57.2, ALIVE, LINES, NOW, 60)
        self.assertEqual(rows[-2:], [" ✓ 6 SIGTERM node-b (preempted)  done", " ▶ training to the end"])
        self.assertIn("act 6/6", rows[0])

    def test_before_there_is_a_job(self):
        rows = view.live(1, {}, "", 0, "2:30", None, None, dict.fromkeys(ALIVE, False), [], NOW, 80)
        self.assertEqual(rows[1], " coordinator ✗ down     job: none yet")
        self.assertEqual(rows[2], " node-a ✗ down")


class Summary(unittest.TestCase):
    def test_a_right_run(self):
        self.assertEqual(view.loss_row(5.4781, 1.7129, 3.2127, 1.713),
                         " loss         5.478 → 1.713   unigram entropy 3.213   undisturbed run 1.713 (Δ 1e-04)")
        self.assertEqual(view.samples_row(proof.Counts(14400, 0, 0, 14400), 14400, 8),
                         " samples      14,400 of 14,400 once, 0 lost; 8 steps computed twice")

    def test_a_wrong_run_shows_what_was_counted(self):
        self.assertEqual(view.samples_row(proof.Counts(14352, 24, 24, 14424), 14400, 8),
                         " samples      14,352 of 14,400 once, 24 lost, 24 more than once; 8 steps computed twice")

    def test_a_step_that_was_never_computed(self):
        self.assertEqual(view.loss_row(5.4781, None, 3.2127, 1.713),
                         " loss         5.478 → –   unigram entropy 3.213   undisturbed run 1.713")
        self.assertEqual(view.loss_row(None, None, 3.2127, None),
                         " loss         – → –   unigram entropy 3.213   undisturbed run –")


class Table(unittest.TestCase):
    def test_one_row_per_generation_with_the_restart_that_followed(self):
        job = dict(JOB["generations"][2], state="over", first_step=128, restored_step=128, ended={"brief": "finished"})
        rows = view.generations_table([JOB["generations"][0], job], LINES)
        self.assertEqual(rows[1], "   1    3  0–141    node-c lost            0.98s      – .020 .040  .020")
        self.assertEqual(rows[2], "   3    2  –        finished")
        grown = dict(job, ended={"brief": "2 to 3 nodes: node-c joined"})
        self.assertEqual(view.generations_table([grown], LINES)[1], "   3    2  –        node-c joined")
        self.assertLessEqual(max(map(len, rows)), 79)


if __name__ == "__main__":
    unittest.main()
