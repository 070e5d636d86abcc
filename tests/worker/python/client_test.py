"""The connection of a worker to its agent: what is said, when, again, and by whom not."""
import math
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

from fake_agent import PACKAGE, FakeAgent, WorkerTest, environment, wait_for

import regroup
from regroup import _client, _worker


class WithoutRegroup(WorkerTest):
    def test_everything_has_a_plain_answer(self):
        self.assertEqual(regroup.context(), regroup.Context())
        self.assertEqual((regroup.context().world_size, regroup.context().nodes), (1, 1))
        threads = threading.active_count()
        regroup.progress(step=1, loss=2.0)
        self.assertFalse(regroup.should_stop())
        self.assertFalse(regroup.should_stop_together())
        self.assertIsNone(regroup.notice())
        regroup.on_notice(self.fail)
        regroup.leave()
        regroup.finished()
        self.assertTrue(regroup.flush())
        self.assertTrue(regroup.checkpoint.commit(1))
        self.assertEqual(threading.active_count(), threads)

    def test_it_imports_only_the_standard_library(self):
        code = ("import sys; before = set(sys.modules); import regroup; "
                "print(sorted({m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)))")
        if sys.version_info < (3, 10):
            self.skipTest("this Python does not know the names of its own library")
        done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": PACKAGE}, check=True,
                              stdout=subprocess.PIPE, text=True)
        self.assertEqual(done.stdout, "['regroup']\n")

    def test_a_name_that_is_no_option_is_an_error_of_the_program(self):
        with self.assertRaises(TypeError):
            regroup.progress(stpe=1)


class Context(WorkerTest):
    def test_what_an_agent_sets(self):
        self.become_worker(agent=False, RANK="3", WORLD_SIZE="8", LOCAL_RANK="1", GROUP_RANK="1", GROUP_WORLD_SIZE="4",
                           LOCAL_WORLD_SIZE="2")
        self.assertEqual(regroup.context(), regroup.Context(
            under_regroup=True, job="gpt-3", generation=5, rank=3, world_size=8, local_rank=1, local_world_size=2, node=1,
            nodes=4, restart_count=4, max_restarts=9, resume_step=96))

    def test_nonsense_is_as_good_as_nothing(self):
        os.environ.update({"RANK": "x", "WORLD_SIZE": ""})
        self.assertEqual(regroup.context(), regroup.Context())


class Reports(WorkerTest):
    def test_hello_then_the_newest(self):
        self.become_worker(RANK="2", LOCAL_RANK="1", REGROUP_WORKER_TOKEN="3f")
        regroup.progress(step=7, samples=56, tokens=56_000, loss=2.5, restored_step=0)
        said = self.agent.await_step(7)
        self.assertEqual(said[0], {"hello": {"version": 1, "job": "gpt-3", "generation": 5, "rank": 2, "local_rank": 1,
                                             "token": "3f", "takes_notice": False}})
        self.assertEqual(said[1], {"progress": {"step": 7, "samples": 56, "tokens": 56_000, "loss": 2.5, "restored_step": 0}})

    def test_a_program_may_have_another_idea_of_its_local_rank(self):
        self.become_worker(LOCAL_RANK="0", REGROUP_LOCAL_RANK="3")
        regroup.progress(step=1)
        self.assertEqual(self.agent.await_step(1)[0]["hello"]["local_rank"], 3)
        self.assertEqual(regroup.context().local_rank, 0)

    def test_what_was_said_stays_until_it_is_said_anew(self):
        self.become_worker()
        regroup.progress(step=1, loss=3.0, restored_step=0)
        self.agent.await_step(1)
        regroup.progress(step=2, init_s=0.5)
        self.assertEqual(self.agent.await_step(2)[-1],
                         {"progress": {"step": 2, "loss": 3.0, "restored_step": 0, "init_s": 0.5}})

    def test_a_flood_is_thinned_but_its_last_one_arrives(self):
        self.become_worker()
        begun = time.monotonic()
        for step in range(1, 50001):
            regroup.progress(step=step)
        took = time.monotonic() - begun
        self.assertLess(len(self.agent.await_step(50000)), 5 + 2 * took / _client.REPORT_EVERY_S + 2)

    def test_what_is_no_number_is_left_out(self):
        class Hostile:
            def __float__(self):
                raise RuntimeError("no")
            __int__ = __float__

        self.become_worker()
        for bad in (math.nan, math.inf, "x", Hostile(), object()):
            regroup.progress(step=3, loss=bad, samples=bad, tokens_per_second=bad)
        regroup.progress(step=-1)
        regroup.progress(step=1 << 63)
        regroup.progress(step=None, loss=1.5)
        regroup.progress(step=4)
        self.assertEqual(self.agent.await_step(4)[-1], {"progress": {"step": 4, "loss": 1.5}})

    def test_a_tensor_of_a_gpu_is_read_by_the_thread_and_keeps_no_graph(self):
        readers = []

        class Tensor:
            is_cuda = True

            def detach(self):
                return self

            clone = detach

            def __float__(self):
                readers.append(threading.current_thread().name)
                return 0.25

        self.become_worker()
        regroup.progress(step=1, loss=Tensor())
        self.assertEqual(self.agent.await_step(1)[-1]["progress"]["loss"], 0.25)
        self.assertEqual(set(readers), {"regroup"})

    def test_flush_says_whether_all_is_on_its_way(self):
        self.become_worker()
        regroup.progress(step=9)
        self.assertTrue(regroup.flush(5.0))
        self.agent.await_step(9)
        self.agent.close()
        regroup.progress(step=10)
        self.assertFalse(regroup.flush(0.2))

    def test_the_thread_takes_none_of_the_programs_signals(self):
        self.become_worker()
        regroup.progress(step=1)
        self.agent.await_step(1)
        with open(f"/proc/self/task/{_worker._client._thread.native_id}/status") as f:
            blocked = int(next(line for line in f if line.startswith("SigBlk")).split()[1], 16)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGALRM):
            self.assertTrue(blocked >> (number - 1) & 1, number)
        self.assertFalse(blocked >> (signal.SIGSEGV - 1) & 1)

    def test_a_signal_handler_may_call_while_the_first_call_is_under_way(self):
        self.become_worker()
        before = signal.signal(signal.SIGUSR1, lambda *_: regroup.progress(step=5))
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        made = _worker.Client

        def interrupted(*args):
            signal.raise_signal(signal.SIGUSR1)
            return made(*args)
        self.addCleanup(setattr, _worker, "Client", made)
        _worker.Client = interrupted
        regroup.progress(step=6)
        self.agent.await_step(6)
        self.assertEqual(self.agent.connections, 1)

    def test_many_threads(self):
        self.become_worker()
        threads = [threading.Thread(target=lambda n=n: [regroup.progress(step=n * 1000 + i) for i in range(500)]) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        regroup.progress(step=99999)
        self.agent.await_step(99999)


class InPlace(WorkerTest):
    """What a process that outlives its generation hears and says."""

    NEXT = {"REGROUP_GENERATION": "6", "RANK": "1", "WORLD_SIZE": "4", "REGROUP_WORKER_TOKEN": "9a"}

    def worker(self):
        self.broken_off = []
        self.become_worker(REGROUP_WORKER_TOKEN="3f")
        client = _worker.client()
        client.offer_in_place(lambda: self.broken_off.append(threading.current_thread().name))
        self.await_hello(5, "3f")
        return client

    def await_hello(self, generation, token):
        self.agent.await_(lambda said: any(
            (body.get("hello", {}).get("generation"), body.get("hello", {}).get("token"), body.get("hello", {}).get("in_place"))
            == (generation, token, True) for body in said))

    def next_generation(self, client):
        said = client.await_new_generation(10)
        os.environ.update(said[1])
        client.adopt()
        return said

    def test_from_one_generation_to_the_next(self):
        client = self.worker()
        regroup.progress(step=7)
        self.agent.await_step(7)
        self.assertIsNone(client.retire)
        self.agent.tell({"retire": {"generation": "5", "leftS": 20}})
        self.assertTrue(client.await_retire(10))
        wait_for(lambda: self.broken_off == ["regroup"])
        client.retired()
        self.agent.await_(lambda said: {"retired": {"generation": 5}} in said)
        self.agent.tell({"newGeneration": {"generation": "6", "environment": self.NEXT}})
        before = len(self.agent.said)
        self.assertEqual(self.next_generation(client), (6, self.NEXT))
        self.await_hello(6, "9a")
        self.agent.await_(lambda said: {"progress": {"step": 7}} in said[before:])
        self.assertIsNone(client.retire)
        self.assertEqual((client.who.rank, regroup.context().world_size, self.agent.connections), (1, 4, 1))

    def test_said_again_to_another_agent_and_when_asked_again(self):
        client = self.worker()
        retire = {"retire": {"generation": "5", "leftS": 20}}
        self.agent.tell(retire)
        client.await_retire(10)
        client.retired()
        self.agent.await_(lambda said: {"retired": {"generation": 5}} in said)
        self.agent.tell(retire)
        self.agent.await_(lambda said: said.count({"retired": {"generation": 5}}) == 2)
        self.agent.close()
        self.agent.open()
        said = self.agent.await_(lambda said: said.count({"retired": {"generation": 5}}) == 3)
        self.assertEqual([next(iter(body)) for body in said[-2:]], ["hello", "retired"])
        self.assertEqual(len(self.broken_off), 1)

    def test_what_is_of_an_older_generation_or_no_message_is_ignored(self):
        client = self.worker()
        for line in ({"retire": {"generation": "4"}}, {"retire": []}, {"retire": {"generation": "x"}},
                     {"newGeneration": {"generation": "5", "environment": {}}}, {"newGeneration": {"generation": "6", "environment": {"A": 1}}},
                     {"newGeneration": 3}):
            self.agent.tell(line)
        self.agent.tell({"retire": {"generation": "5"}})
        self.assertTrue(client.await_retire(10))
        self.assertEqual((client.retire.generation, client.await_new_generation(0.01)), (5, None))

    def test_it_cannot_go_on(self):
        client = self.worker()
        client.cannot_go_on("é" * 5000)
        said = self.agent.await_(lambda said: any("cannot_go_on" in body for body in said))[-1]["cannot_go_on"]
        self.assertEqual((said["generation"], set(said["why"]), len(said["why"])), (5, {"é"}, 2048))

    def test_without_the_offer_nothing_is_said(self):
        self.become_worker()
        regroup.progress(step=1)
        self.agent.await_step(1)
        self.assertNotIn("in_place", self.agent.said[0][1]["hello"])
        self.agent.tell({"retire": {"generation": "5", "leftS": 20}})
        wait_for(lambda: _worker._client.retire)
        self.assertEqual(self.agent.kinds(), ["hello", "progress"])


class Reconnecting(WorkerTest):
    def test_after_the_agent_restarts_it_says_hello_and_repeats_what_counts(self):
        self.become_worker()
        regroup.progress(step=5)
        self.agent.await_step(5)
        self.agent.close()
        before = len(self.agent.said)
        self.agent.open()
        said = self.agent.await_(lambda said: len(said) >= before + 2)[before:]
        self.assertEqual([next(iter(body)) for body in said], ["hello", "progress"])
        self.assertEqual(said[1]["progress"]["step"], 5)

    def test_without_an_agent_nothing_waits(self):
        self.become_worker(agent=False)
        begun = time.monotonic()
        for step in range(1000):
            regroup.progress(step=step)
            self.assertFalse(regroup.should_stop())
        self.assertLess(time.monotonic() - begun, 1.0)
        self.agent = FakeAgent(os.environ["REGROUP_SOCKET"])
        self.addCleanup(self._close_agent)
        self.agent.await_step(999)

    def test_an_agent_that_throws_it_out_is_dialled_ever_more_seldom(self):
        self.become_worker(agent=False)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.environ["REGROUP_SOCKET"])
            listener.listen(64)
            listener.settimeout(0.05)
            regroup.progress(step=1)
            dialled, end = 0, time.monotonic() + 1.0
            while time.monotonic() < end:
                try:
                    listener.accept()[0].close()
                    dialled += 1
                except OSError:
                    continue
        self.assertIn(dialled, range(2, 7))

    def test_an_agent_that_does_not_read_costs_a_bounded_amount(self):
        self.become_worker(agent=False)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.environ["REGROUP_SOCKET"])
            listener.listen(1)
            regroup.progress(step=1)
            peer, _ = listener.accept()
            with peer:
                for step in range(2000):
                    regroup.progress(step=step)
                self.assertLess(len(_worker._client._outgoing), _client._wire.MAX_LINE_BYTES)

    def test_a_path_of_any_length(self):
        long = self.path("x" * 120)
        os.mkdir(long)
        os.environ["REGROUP_SOCKET"] = os.path.join(long, "agent.sock")
        self.become_worker(agent=False, REGROUP_SOCKET=os.path.join(long, "agent.sock"))
        self.agent = FakeAgent(os.environ["REGROUP_SOCKET"])
        self.addCleanup(self._close_agent)
        regroup.progress(step=2)
        self.agent.await_step(2)

    def test_rubbish_from_the_agent_is_survived(self):
        self.become_worker()
        regroup.progress(step=1)
        self.agent.await_step(1)
        for rubbish in (b"\n", b"not json\n", b"[1]\n", b"null\n", b"\xff\xfe\n", b'{"notice": 3, "commit": []}\n',
                        b'{"commit": {"attempt": "x"}}\n', b'{"newer": {}}\n', b"[" * 30000 + b"\n"):
            self.agent.tell(rubbish)
        regroup.progress(step=2)
        self.agent.await_step(2)
        self.agent.tell(b"x" * (_client._wire.MAX_LINE_BYTES + 5000))
        self.agent.await_(lambda said: len([b for b in said if "hello" in b]) == 2)


class Notices(WorkerTest):
    def test_hello_says_so_only_once_the_program_asks(self):
        self.become_worker()
        regroup.progress(step=1)
        self.agent.await_step(1)
        self.assertFalse(regroup.should_stop())
        self.agent.await_hello(takes_notice=True)
        self.assertEqual(self.agent.connections, 1, "no moment without a connection: the agent would send SIGTERM")
        self.agent.tell({"notice": {"leftS": 12.5}})
        wait_for(regroup.should_stop)
        self.assertAlmostEqual(regroup.notice().remaining, 12.5, delta=5)
        self.assertAlmostEqual(regroup.notice().deadline - time.monotonic(), 12.5, delta=5)

    def test_an_older_agent_is_dialled_again(self):
        self.become_worker()
        self.agent.strict = True
        regroup.progress(step=1)
        self.agent.await_step(1)
        regroup.should_stop()
        self.agent.await_hello(takes_notice=True)
        self.assertEqual(self.agent.connections, 2)

    def test_whoever_asks_has_spoken(self):
        """The coordinator waits for a save only where a rank has told of progress."""
        self.become_worker()
        regroup.should_stop()
        self.agent.await_step(0)

    def test_a_notice_is_told_again_after_a_reconnect_and_never_gets_later(self):
        self.become_worker()
        regroup.should_stop()
        self.agent.await_hello(takes_notice=True)
        self.agent.tell({"notice": {"leftS": 5}})
        wait_for(regroup.should_stop)
        first = regroup.notice().deadline
        self.agent.tell({"notice": {"leftS": 500}})
        self.agent.tell({"notice": {"left_s": 2}})
        wait_for(lambda: regroup.notice().deadline < first - 1)
        self.assertLessEqual(regroup.notice().remaining, 2)

    def test_nonsense_is_as_good_as_none_left(self):
        for left in ("NaN", -3, 1e300, None, "x", {}):
            heard = _client._wire.notice_of({"leftS": left})
            self.assertEqual(heard.remaining, 0.0, left)
        self.assertEqual(_client._wire.notice_of("x").remaining, 0.0)

    def test_callbacks_are_called_once_also_late_ones_and_may_fail(self):
        self.become_worker()
        heard, threads = [], []
        regroup.on_notice(lambda notice: threads.append(threading.current_thread().name))
        regroup.on_notice(lambda notice: 1 / 0)
        regroup.on_notice(heard.append)
        self.agent.await_hello(takes_notice=True)
        with self.assertLogs("regroup", "WARNING"):
            self.agent.tell({"notice": {"leftS": 9}})
            wait_for(lambda: heard)
        regroup.on_notice(heard.append)
        wait_for(lambda: len(heard) == 2)
        self.agent.tell({"notice": {"leftS": 1}})
        self.assertEqual((len(heard), threads), (2, ["regroup"]))


class Forks(WorkerTest):
    def in_child(self, work):
        """Runs `work` in a forked child; what it returns is the exit code."""
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                code = int(work())
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if sys.version_info >= (3, 9) else os.WEXITSTATUS(os.waitpid(pid, 0)[1])

    def test_a_forked_child_does_not_speak_nor_hold_the_connection(self):
        self.become_worker()
        regroup.progress(step=1)
        self.agent.await_step(1)
        sockets = socket_count()

        def work():
            regroup.progress(step=1000)
            return regroup.should_stop() + 10 * (threading.active_count() - 1) + 2 * (socket_count() - sockets + 1)
        self.assertEqual(self.in_child(work), 0)
        regroup.progress(step=2)
        said = self.agent.await_step(2)
        self.assertNotIn(1000, [body.get("progress", {}).get("step") for body in said])
        self.assertEqual(self.agent.connections, 1)

    def test_a_fork_while_the_thread_holds_its_lock(self):
        self.become_worker()
        regroup.progress(step=1)
        held, go = threading.Event(), threading.Event()

        def hold():
            with _worker._client._changed, _worker._lock:
                held.set()
                go.wait()
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        self.assertEqual(self.in_child(lambda: (regroup.progress(step=2), regroup.should_stop())[1]), 0)
        go.set()
        thread.join()

    def test_a_data_loaders_worker_does_not_speak(self):
        self.become_worker()
        for method in ("fork", "spawn"):
            child = multiprocessing.get_context(method).Process(target=helper, daemon=True)
            child.start()
            child.join(30)
            self.assertEqual(child.exitcode, 0, method)
        self.assertEqual(self.agent.connections, 0)

    def test_a_rank_that_the_program_spawned_itself_does(self):
        self.become_worker()
        child = multiprocessing.get_context("spawn").Process(target=helper)
        child.start()
        child.join(30)
        self.agent.await_step(1000)


def helper():
    regroup.progress(step=1000)
    regroup.flush()


def socket_count():
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except OSError:
            continue
    return count


class TheEnd(WorkerTest):
    """How a worker's process ends, as a process of its own."""

    def setUp(self):
        super().setUp()
        self.agent = FakeAgent(self.path("agent.sock"))
        self.addCleanup(self._close_agent)

    def start(self, code):
        child = subprocess.Popen([sys.executable, "-c", code], env=environment(self.agent.path), stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE)
        self.addCleanup(lambda: (child.poll() is None and child.kill(), child.communicate()))
        return child

    def ends(self, child):
        return child.wait(20)

    def notified(self, rest):
        child = self.start("import regroup, time, sys, os, signal\nregroup.progress(step=3)\n"
                           "while not regroup.should_stop(): time.sleep(0.01)\n" + rest)
        self.agent.await_hello(takes_notice=True)
        self.agent.tell({"notice": {"leftS": 30}})
        return child

    def assert_waits(self, child):
        self.assertEqual(child.stdout.readline(), b"saved\n")
        self.assertFalse(select.select([child.stdout], [], [], 0.5)[0], "it ended before it was stopped")
        child.send_signal(signal.SIGTERM)
        self.assertEqual(self.ends(child), -signal.SIGTERM)

    def test_the_last_report_arrives(self):
        self.assertEqual(self.ends(self.start("import regroup\nfor i in range(1, 4): regroup.progress(step=i)")), 0)
        self.agent.await_step(3)

    def test_exit_code_0_after_a_notice_would_mean_done_so_it_waits(self):
        self.assert_waits(self.notified("print('saved', flush=True)"))

    def test_leave_waits_whatever_handlers_there_are(self):
        self.assert_waits(self.notified("signal.signal(signal.SIGTERM, lambda *_: None)\n"
                                        "print('saved', flush=True)\nregroup.leave()\nprint('returned')"))

    def commits(self):
        return [(b["commit"]["step"], b["commit"]["manifest_hash"], b["commit"]["for_notice"])
                for _, b in self.agent.said if "commit" in b]

    def test_after_a_commit_leave_tells_that_all_is_saved(self):
        """Not the commit itself: this process is stopped at once, and has its checkpoint to publish."""
        child = self.notified("assert regroup.checkpoint.commit(4, manifest_hash='ab')\nprint('saved', flush=True)\nregroup.leave()")
        self.assert_waits(child)
        self.assertEqual(self.commits(), [(4, "ab", False), (4, "ab", True)])

    def test_so_it_does_when_there_was_nothing_left_to_save(self):
        child = self.start("import regroup, time\nassert regroup.checkpoint.commit(4)\n"
                           "while not regroup.should_stop(): time.sleep(0.01)\nprint('saved', flush=True)")
        self.agent.await_hello(takes_notice=True)
        self.agent.tell({"notice": {"leftS": 30}})
        self.assert_waits(child)
        self.assertEqual(self.commits(), [(4, "", False), (4, "", True)])

    def test_without_a_commit_other_ranks_may_still_be_saving(self):
        child = self.start("import regroup, time\nassert regroup.checkpoint.commit(4)\nregroup.progress(step=5)\n"
                           "while not regroup.should_stop(): time.sleep(0.01)\nprint('saved', flush=True)")
        self.agent.await_hello(takes_notice=True)
        self.agent.tell({"notice": {"leftS": 30}})
        self.assert_waits(child)
        self.assertEqual(self.commits(), [(4, "", False)])

    def test_finished_is_finished(self):
        self.assertEqual(self.ends(self.notified("regroup.finished()")), 0)

    def test_a_failure_is_a_failure(self):
        self.assertEqual(self.ends(self.notified("raise ValueError('no')")), 1)

    def test_a_notice_that_nobody_looked_at_changes_nothing(self):
        child = self.start("import regroup, sys, time\nregroup.should_stop()\nsys.stdin.readline()\nwhile not regroup._worker._client.notice: time.sleep(0.01)")
        self.agent.await_hello(takes_notice=True)
        self.agent.tell({"notice": {"leftS": 30}})
        self.assertEqual(self.ends(child), 0)

    def test_never_stopped(self):
        child = self.notified("regroup._worker._AWAIT_STOP_S = -29.5\nregroup.leave()")
        self.assertEqual(self.ends(child), 17)
        self.assertIn(b"nobody stopped this worker", child.stderr.read())

    def test_sigterm_during_training_ends_it_at_once(self):
        child = self.start("import regroup, time\nregroup.should_stop()\nprint('up', flush=True)\ntime.sleep(60)")
        child.stdout.readline()
        child.send_signal(signal.SIGTERM)
        self.assertEqual(self.ends(child), -signal.SIGTERM)


if __name__ == "__main__":
    unittest.main()
