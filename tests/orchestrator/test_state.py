"""The state machine, by hand."""

from __future__ import annotations

import pytest

from orchestrator import state as machine
from orchestrator.events import BeginAll, Gone, Launch, Paused, Remove, Send
from orchestrator.group import Ending, Phase, Policy, Status
from tests.orchestrator.group_driver import Group, finished, launched, sent, told
from worker_image.protocol import AskSave, Dismiss, End, Leaving, Note, Prepare, Ready, SaveAt, Saved, SaveGo, SaveNoted, SaveTarget


def test_every_worker_is_launched_at_the_beginning() -> None:
    """A new group launches each worker once."""
    _, actions = machine.begin(Policy(workers=3), 0.0)
    assert actions == [Launch(0, 0), Launch(1, 0), Launch(2, 0)]


def test_the_attempt_begins_only_when_all_are_ready() -> None:
    """TensorFlow's workers meet best together: nobody starts before the last one is imported."""
    group = Group(workers=2)
    assert sent(group.join(0, 1), Prepare) == [0, 1]
    assert not group.ready(0)
    assert group.ready(1) == [BeginAll(0, ("127.0.0.1:9000", "127.0.0.1:9001"))]
    assert group.state.phase is Phase.RUNNING


def test_the_group_succeeds_when_every_program_ended_with_0() -> None:
    """One finished worker waits for the others; the last one ends the job."""
    group = Group(workers=2).run()
    assert not group.ended(0, "done")
    actions = group.ended(1, "done")
    assert sent(actions, Dismiss) == [0, 1]
    assert group.result
    assert group.result.exit_code == 0


@pytest.mark.parametrize(
    ("worker", "incarnation", "part"),
    [(2, 0, "no worker 2 in a group of 2"), (-1, 0, "no worker -1"), (0, 1, "not the current one (0)"), (1, 0, "has joined already")],
)
def test_an_agent_that_is_not_the_one_awaited_is_refused(worker: int, incarnation: int, part: str) -> None:
    """A stale incarnation, a second agent of a worker, or an unknown index never joins."""
    group = Group(workers=2)
    group.join(1)
    refused = machine.refusal(group.state, worker, incarnation)
    assert refused
    assert part in refused.reason
    assert not refused.retry
    assert machine.refusal(group.state, 0, 0) is None


def test_a_failure_ends_the_attempt_everywhere_at_once_and_starts_the_next() -> None:
    """The others hear of a failure from us, long before TensorFlow notices."""
    group = Group(workers=3).run()
    assert sent(group.ended(1, "signal", "was killed by SIGSEGV", "SIGSEGV"), End) == [0, 2]
    assert not sent(group.ended(0, "ended"), Prepare), "worker 2 still has a program of the old attempt"
    actions = group.ended(2, "ended")
    assert sent(actions, Prepare) == [0, 1, 2]
    assert "worker 1 was killed by SIGSEGV; starting again (restart 1 of 10)" in told(actions)
    group.ready(0, 1, 2)
    assert group.actions[0] == BeginAll(1, ("127.0.0.1:9000", "127.0.0.1:9001", "127.0.0.1:9002"))


def test_the_first_failure_is_told_apart_from_its_echo() -> None:
    """A peer's UnavailableError that is heard first does not hide what really happened."""
    group = Group(workers=2).run()
    group.ended(0, "peer", "raised UnavailableError")
    group.ended(1, "error", "raised ValueError: x", "ValueError at train.py:3")
    assert group.state.history[0].worker == 1
    assert str(group.state.history[0]) == "worker 1 raised ValueError: x (train.py:3)"


def test_uneven_steps_are_explained() -> None:
    """A worker that ended with 0 before the others leaves them with a lost peer: the user is told why."""
    group = Group(workers=2).run()
    group.ended(0, "done")
    assert "worker 0 had ended with 0 before, and every worker must make the same number of steps" in told(
        group.ended(1, "peer", "lost it")
    )


def test_the_same_failure_at_the_same_place_without_progress_fails_fast() -> None:
    """A bug is not tried ten times."""
    group = Group(workers=2).run()
    for _ in range(2):
        group.ended(0, "error", "raised ValueError: x", "ValueError at train.py:3", step=5)
        group.ended(1, "ended", step=5)
        if not group.result:
            group.restart()
    assert group.result
    assert group.result.exit_code == 1
    assert "twice in a row at the same place with no progress between" in group.result.reason


def test_progress_between_two_equal_failures_earns_another_attempt() -> None:
    """Coming further means that trying again is worth it."""
    group = Group(workers=1).run()
    for step in (5, 6, 7):
        group.ended(0, "error", "raised ValueError: x", "ValueError at train.py:3", step=step)
        group.restart()
    assert not group.result
    assert group.state.attempt == 3


def test_the_restart_budget_is_kept() -> None:
    """More failures than restarts.max within restarts.within end the job, with the last error shown."""
    group = Group(workers=1, restarts=2, within=60.0).run()
    for step in (1, 2, 3):
        group.ended(0, "error", "exited with code 3", "exit code 3", step=step)
        group.restart()
    assert group.result
    assert "worker 0 exited with code 3, and all 2 restarts within 60 s are used up" in group.result.reason


def test_old_restarts_leave_the_budget() -> None:
    """The budget is a window, not a lifetime."""
    group = Group(workers=1, restarts=1, within=60.0).run()
    for step in range(1, 5):
        group.ended(0, "error", "exited with code 3", "exit code 3", step=step)
        group.restart()
        group.later(61.0)
    assert not group.result
    assert group.state.attempt == 4


def test_no_restart_allowed_is_said_so() -> None:
    """restarts.max 0 fails at the first failure."""
    group = Group(workers=1, restarts=0).run()
    group.ended(0, "error", "exited with code 3", "exit code 3")
    assert group.result
    assert "the job allows no restart (restarts.max)" in group.result.reason


def test_a_crash_loop_backs_off_and_progress_resets_it() -> None:
    """Failures that come no further wait longer and longer, up to half a minute."""
    group = Group(workers=1, restarts=100).run()
    waits = []
    for place in "abcdefghi":
        group.ended(0, "error", "exited", f"exit {place}")
        waits.append(max(0.0, group.state.not_before - group.at))
        group.restart()
        group.later(waits[-1] + 1)
        assert group.state.phase is Phase.RUNNING
    assert waits == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    group.ended(0, "error", "exited", "exit z", step=9)
    assert group.state.fruitless == 0


@pytest.mark.parametrize("kind", ["lost", "silent", "preempted"])
def test_what_is_nobodys_mistake_spends_nothing(kind: str) -> None:
    """Lost and preempted workers never use up the restart budget."""
    group = Group(workers=1, restarts=0).run()
    for _ in range(20):
        if kind == "preempted":
            group.ended(0, "preempted", "was told to end")
        elif kind == "lost":
            group.disconnect(0)
            group.gone(0)
        else:
            group.silence(7.0)
            group.gone(0)
        group.restart()
        assert group.state.phase is Phase.RUNNING
    assert group.state.spent == ()


def test_a_lost_worker_is_removed_before_it_is_replaced() -> None:
    """Two incarnations of a worker never live at once, and no attempt begins while the old one may."""
    group = Group(workers=2).run()
    actions = group.disconnect(1)
    assert Remove(1, 0) in actions
    assert Launch(1, 1) in actions, "it starts and imports meanwhile"
    assert sent(actions, End) == [0]
    group.ended(0, "ended")
    assert group.state.phase is Phase.ENDING, "the backend has not yet said that worker 1 is gone"
    waits = machine.refusal(group.state, 1, 1)
    assert waits
    assert waits.retry
    actions = group.gone(1)
    assert not launched(actions)
    assert sent(actions, Prepare) == [0]
    group.restart()
    assert group.state.attempt == 1
    assert group.state.phase is Phase.RUNNING


def test_what_an_old_incarnation_does_is_ignored() -> None:
    """Late news of a replaced agent changes nothing."""
    group = Group(workers=1).run()
    group.disconnect(0)
    group.gone(0)
    before = group.state
    group.event(Gone(group.at, 0, 0, "again"))
    assert group.state == before


def test_a_child_that_dies_before_the_start_is_made_again_in_the_same_attempt() -> None:
    """An attempt that never began keeps its number, and those who are ready stay so."""
    group = Group(workers=2)
    group.join(0, 1)
    group.ready(0)
    actions = group.ended(1, "signal", "was killed by SIGABRT", "SIGABRT")
    assert sent(actions, Prepare) == [1]
    group.ready(1)
    assert group.begun()
    assert group.state.attempt == 0


def test_the_start_deadline_names_the_missing() -> None:
    """Who did not join and who did not get ready is said, with exit code 4."""
    group = Group(workers=4, start=20.0)
    group.join(0, 1)
    group.ready(0)
    told_early = told(group.later(6.0))
    assert "still waiting after" in told_early
    assert "workers 2 and 3 did not join" in told_early
    assert not finished(group.later(13.5))
    group.later(1.0)
    assert group.result
    assert group.result.exit_code == 4
    assert "workers 2 and 3 did not join, worker 1 joined but did not get ready" in group.result.reason
    assert "20 s (deadlines.start)" in group.result.reason


def test_the_run_deadline_ends_the_job() -> None:
    """A job that runs too long ends with exit code 4."""
    group = Group(workers=1, run=30.0).run()
    group.later(31.0)
    assert group.result
    assert group.result.exit_code == 4
    assert "deadlines.run" in group.result.reason


def test_an_agent_that_never_comes_up_ends_the_job() -> None:
    """Two agents in a row that die before joining: it can't be launched, exit code 3, with the reason."""
    group = Group(workers=1)
    assert Launch(0, 1) in group.gone(0, "no such file")
    group.gone(0, "no such file")
    assert group.result
    assert group.result.ending is Ending.NOT_LAUNCHED
    assert "worker 0 could not be started: no such file" in group.result.reason


def test_a_stopped_program_is_found_within_two_seconds() -> None:
    """SIGSTOP is seen by the agent, and the stacks are asked for before the kill."""
    group = Group(workers=2).run()
    group.beat(1, stopped=True)
    assert not sent(group.later(0.5), End)
    ends = [a for a in group.later(1.5) if isinstance(a, Send) and isinstance(a.message, End)]
    assert [a.worker for a in ends] == [0, 1]
    assert all(a.message.stacks for a in ends if isinstance(a.message, End))
    assert group.state.failures[0].kind == "frozen"


def test_a_program_that_goes_on_after_a_stop_is_left_alone() -> None:
    """Stopped for less than a second is no finding."""
    group = Group(workers=1).run()
    group.beat(0, stopped=True)
    group.later(0.5)
    group.beat(0, stopped=False)
    group.later(5.0)
    assert group.state.phase is Phase.RUNNING


def test_a_blocked_interpreter_is_found() -> None:
    """No pulse for a minute: the program's interpreter is blocked."""
    group = Group(workers=1).run()
    group.beat(0, pulse=59.0)
    group.later(1.0)
    assert group.state.phase is Phase.RUNNING
    group.beat(0, pulse=61.0)
    group.later(1.0)
    assert "gave no sign of life for 61 s" in group.state.failures[0].text


def test_no_step_while_all_are_idle_is_a_stall_of_the_one_behind() -> None:
    """A deadlock is found within ten seconds and named by the worker that is behind."""
    group = Group(workers=2).run()
    group.beat(0, step=41)
    group.beat(1, step=40)
    assert not sent(group.later(9.0), End)
    group.later(3.0)
    assert group.state.failures[0].worker == 1
    assert "made no step for" in group.state.failures[0].text


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"step": 5, "longest": 3.0}, "pauses of 3 s are normal here, so 15 s are allowed"),
        ({"step": 5, "activity": "evaluation"}, "it said that it does something else"),
        ({}, "it never reported a step"),
    ],
)
def test_no_false_alarm(fields: dict[str, object], why: str) -> None:
    """What may look like a stall and is none."""
    group = Group(workers=1).run()
    group.beat(0, **fields)
    group.later(14.0)
    assert group.state.phase is Phase.RUNNING, why


def test_a_busy_worker_is_not_stalled() -> None:
    """A long save or a slow input uses the processor: that must not end a job."""
    group = Group(workers=2).run()
    group.beat(0, step=5)
    for second in range(60):
        group.beat(1, step=5, busy=float(second))
        group.later(1.0)
    assert group.state.phase is Phase.RUNNING


def test_a_pause_of_this_process_is_nobodys_silence() -> None:
    """After Ctrl-Z and fg, or a laptop's sleep, nobody is declared lost."""
    group = Group(workers=2).run()
    group.at += 3600.0
    group.event(Paused(group.at, 3600.0))
    group.silence(0.1)
    assert group.state.phase is Phase.RUNNING


def test_ctrl_c_ends_in_order_and_a_second_one_at_once() -> None:
    """Once: the programs may end by themselves within the grace. Twice: nothing is waited for."""
    group = Group(workers=2).run()
    actions = group.stop()
    assert [a.message.grace for a in actions if isinstance(a, Send) and isinstance(a.message, End)] == [10.0, 10.0]
    assert "once more stops them at once" in told(actions)
    assert not group.result
    group.stop()
    assert group.result
    assert group.result.exit_code == 130


@pytest.mark.parametrize(("number", "code"), [(2, 130), (15, 143), (1, 129)])
def test_a_stopped_job_ends_with_the_signals_code(number: int, code: int) -> None:
    """130 after Ctrl-C, 143 after SIGTERM."""
    group = Group(workers=1).run()
    group.stop(number)
    group.ended(0, "ended")
    assert group.result
    assert group.result.exit_code == code


def test_a_stop_while_gathering_ends_at_once() -> None:
    """Nothing runs yet, so nothing is waited for."""
    group = Group(workers=2)
    group.join(0)
    assert finished(group.stop())


def test_a_stop_during_a_restart_wins() -> None:
    """Ctrl-C while an attempt is being ended starts no other."""
    group = Group(workers=2).run()
    group.ended(0, "error", "x", "p")
    group.stop()
    group.ended(1, "ended")
    assert group.result
    assert group.result.ending is Ending.STOPPED


def saving_group() -> Group:
    group = Group(workers=3).run()
    for worker in range(3):
        group.beat(worker, step=7, saver=True)
    return group


def test_a_preempted_worker_makes_everyone_save_at_the_same_step() -> None:
    """SIGTERM to one worker: one names the boundary, the others note it, then all save, and only that worker is replaced."""
    group = saving_group()
    assert group.say(1, Leaving()) == [Launch(1, 1), Send(0, AskSave())]
    assert group.say(0, SaveTarget(9)) == [Send(1, SaveAt(9)), Send(2, SaveAt(9))]
    assert group.say(1, SaveNoted(ok=True)) == []
    assert group.say(2, SaveNoted(ok=True)) == [Send(0, SaveGo(ok=True))]
    group.say(0, Saved(9))
    group.say(1, Saved(9))
    assert told(group.say(2, Saved(9))) == "every worker saved at step 9"
    group.ended(0, "left")
    group.ended(1, "left")
    actions = group.ended(2, "left")
    assert sent(actions, Prepare) == [0, 2]
    assert sent(actions, Dismiss) == [1]
    assert Remove(1, 0) in actions
    assert "worker 1 was told to leave (SIGTERM); starting again" in told(actions)
    assert not launched(group.gone(1)), "its successor was started when it was told to leave"
    assert machine.refusal(group.state, 1, 1) is None


def test_a_save_that_someone_is_past_is_called_off() -> None:
    """The programs are then ended at the end of the grace."""
    group = saving_group()
    group.stop(15)
    group.say(0, SaveTarget(9))
    assert group.say(1, SaveNoted(ok=False)) == [Send(0, SaveGo(ok=False))]
    assert sent(group.later(11.0), End) == [0, 1, 2]


def test_a_save_without_others_goes_on_at_once() -> None:
    """A single worker asks nobody."""
    group = Group(workers=1).run()
    group.beat(0, step=1, saver=True)
    group.stop()
    assert group.say(0, SaveTarget(3)) == [Send(0, SaveGo(ok=True))]


def test_a_worker_lost_during_the_save_ends_it() -> None:
    """Nobody can save without it, so nobody waits for the grace to pass."""
    group = saving_group()
    group.stop()
    group.disconnect(2)
    assert sent(group.later(0.5), End) == [0, 1]


def test_stray_words_of_a_save_are_answered_or_ignored() -> None:
    """A leader that nobody asked goes on; the rest changes nothing."""
    group = saving_group()
    assert group.say(0, SaveTarget(9)) == [Send(0, SaveGo(ok=False))]
    assert group.say(1, SaveNoted(ok=True)) == []
    assert group.say(1, Saved(9)) == []


def test_an_agent_that_is_told_to_go_while_gathering_is_replaced() -> None:
    """Nothing runs, so it goes at once."""
    group = Group(workers=2)
    group.join(0, 1)
    actions = group.say(1, Leaving())
    assert sent(actions, Dismiss) == [1]
    assert Remove(1, 0) in actions


def test_an_agent_that_does_not_end_its_program_is_given_up() -> None:
    """Even the end has a deadline."""
    group = Group(workers=2).run()
    group.ended(0, "error", "x", "p")
    assert Remove(1, 0) in group.later(31.0)


def test_messages_of_another_attempt_or_of_the_unknown_change_nothing() -> None:
    """What comes too late is ignored."""
    group = Group(workers=2).run()
    before = group.state
    assert group.ended(0, "error", attempt=7) == []
    assert group.say(0, Ready(7, "127.0.0.1:1")) == []
    assert group.say(0, Prepare(0)) == []
    assert group.state == before


def test_after_the_end_nothing_happens() -> None:
    """An ended job stays ended."""
    group = Group(workers=1).run()
    group.ended(0, "done")
    assert group.stop() == []
    assert group.gone(0) == []


def test_a_note_goes_to_the_user_once_a_topic() -> None:
    """What every worker says is told with its topic, so that it can be shown once."""
    group = Group(workers=1).run()
    actions = group.say(0, Note("no standby", topic="standby"))
    assert told(actions) == "no standby"
    assert [getattr(a, "topic", None) for a in actions] == ["standby"]


def test_a_gone_worker_that_was_never_missed_is_lost_then() -> None:
    """The backend may see the end of an agent before its connection closes."""
    group = Group(workers=2).run()
    actions = group.gone(1, "its agent was killed by SIGKILL")
    assert Launch(1, 1) in actions
    assert not any(isinstance(a, Remove) for a in actions)
    assert "was lost: its agent was killed by SIGKILL" in group.state.failures[0].text
    assert group.state.workers[1].status is Status.AWAITED


def test_a_straggler_that_makes_fewer_steps_is_named_once_and_lives() -> None:
    """E38: three times slower is reported with its index, and nobody is ended for it."""
    group = Group(workers=3).run()
    lines = []
    for second in range(30):
        for worker in range(3):
            group.beat(worker, step=1 + second * (3 if worker == 2 else 10))
        lines += told(group.later(1.0)).splitlines()
    assert lines == ["worker 2 makes 2.7 steps/s where the others make 9"]  # the last beat is a second old
    assert group.state.phase is Phase.RUNNING


def test_a_straggler_that_the_others_wait_for_is_named() -> None:
    """E38: in synchronous training all make the same steps; the slow one is who computes while the others wait."""
    group = Group(workers=3).run()
    lines = []
    for second in range(30):
        for worker in range(3):
            group.beat(worker, step=1 + second, busy=second * (0.9 if worker == 1 else 0.1))
        lines += told(group.later(1.0)).splitlines()
    assert lines == ["worker 1 uses 9.0 times the processor time of the others, which wait for it"]


def test_equal_workers_are_no_stragglers() -> None:
    """No line where there is nothing to say, also not about a group of one."""
    for size in (1, 3):
        group = Group(workers=size).run()
        for second in range(30):
            for worker in range(size):
                group.beat(worker, step=1 + second * 10 + worker, busy=second * (0.9 + worker / 10))
            assert told(group.later(1.0)) == ""
