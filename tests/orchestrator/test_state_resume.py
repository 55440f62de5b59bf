"""The state machine after the loss of a controller, and with successors: what goes on, what is ended, what is never done twice."""

from __future__ import annotations

import pytest

from orchestrator import state as machine
from orchestrator.events import BeginAll, Finish, Gone, Launch, Leaves, Remove, Send, Waits
from orchestrator.group import Before, Ending, Phase, Policy, Result, Status
from tests.orchestrator.group_driver import Group, launched, sent, told
from worker_image.protocol import AskSave, Dismiss, End, Leaving, Prepare


def running(workers: int = 2) -> Group:
    group = Group(workers=workers).run()
    for worker in range(workers):
        group.beat(worker, step=7, busy=1.0)
    return group


def test_a_new_controller_takes_over_a_running_attempt() -> None:
    """Nobody is told anything: no attempt ends, no step is lost."""
    group = running().new_controller()
    assert group.actions == [Launch(0, 0), Launch(1, 0)], "to be watched; they are there already"
    assert group.join(0, 1, attempt=0, holds="running") == []
    assert group.beat(0, step=9, busy=2.0) == []
    assert told(group.beat(1, step=9, busy=2.0)) == "resumed attempt 0, which runs on every worker"
    assert group.state.phase is Phase.RUNNING
    group.ended(0, "error", "exited with code 3", "exit code 3", step=10)
    group.ended(1, "ended")
    group.restart()
    assert group.state.attempt == 1


def test_a_job_whose_workers_end_while_no_controller_is_there_has_succeeded() -> None:
    """Each says so to the next one."""
    group = running().new_controller()
    group.join(0, attempt=0, holds="ended")
    group.ended(0, "done")
    group.join(1, attempt=0, holds="ended")
    group.ended(1, "done")
    assert group.result
    assert group.result.ending is Ending.SUCCEEDED


def test_what_failed_while_no_controller_was_there_is_the_cause() -> None:
    """It ends the attempt as soon as it is heard, and spends a restart."""
    group = running().new_controller()
    group.join(1, attempt=0, holds="ended")
    group.join(0, attempt=0, holds="running")
    actions = group.ended(1, "error", "raised ValueError: x", "ValueError at train.py:3", step=8)
    assert sent(actions, End) == [0]
    assert "worker 1 raised ValueError: x (train.py:3); starting again (restart 1 of 10)" in told(group.ended(0, "ended"))


def test_an_attempt_that_is_not_whole_is_ended() -> None:
    """The controller was lost while it began it: one has it, the other never heard of it."""
    group = running().new_controller()
    group.join(0, attempt=0, holds="running")
    actions = group.join(1)
    assert sent(actions, End) == [0]
    actions = group.ended(0, "ended")
    assert sent(actions, Prepare) == [0, 1]
    assert group.state.attempt == 1
    assert group.state.spent == (), "a lost controller is nobody's mistake"


def test_one_that_comes_late_with_an_attempt_that_was_given_up_is_ended_first() -> None:
    """Two attempts never live at once, whoever decides."""
    group = running().new_controller()
    group.join(1)
    assert group.state.phase is Phase.GATHERING
    actions = group.join(0, attempt=0, holds="running")
    assert sent(actions, End) == [0]
    assert sent(group.ended(0, "ended", attempt=0), Prepare) == [0]
    group.ready(0, 1)
    assert group.begun()


def test_a_number_is_never_used_twice() -> None:
    """Agents may know of later attempts than what the controller before wrote."""
    group = running().new_controller(known=False, attempt=0, begun=False)
    group.join(1)
    group.ready(1)
    actions = group.join(0, attempt=3, holds="running")
    assert sent(actions, Prepare) == [1]
    assert group.state.attempt == 4


def test_one_that_was_lost_with_the_controller_is_replaced() -> None:
    """The backend of the new controller tells of it."""
    group = running(3).new_controller()
    group.join(0, 1, attempt=0, holds="running")
    actions = group.gone(2, "its pod was deleted")
    assert launched(actions) == [(2, 1)]
    assert sent(actions, End) == [0, 1]


def test_one_that_does_not_come_back_is_given_up() -> None:
    """Within half a minute after the others."""
    group = running(3).new_controller()
    group.join(0, 1, attempt=0, holds="running")
    group.later(29.0)
    assert group.state.phase is Phase.RESUMING
    actions = group.later(2.0)
    assert Remove(2, 0) in actions
    assert sent(actions, End) == [0, 1]
    group.ended(0, "ended")
    group.ended(1, "ended")
    assert "did not come back to the new controller within 30 s" in told(group.gone(2))


def test_a_new_controller_waits_for_all_as_long_as_for_a_start() -> None:
    """The start deadline holds, and who is missing is told."""
    group = running().new_controller()
    assert "workers 0 and 1 did not join" in told(group.later(6.0))
    group.later(600.0)
    assert group.result
    assert group.result.ending is Ending.DEADLINE


def test_a_worker_that_was_leaving_still_leaves() -> None:
    """Its agent says so again; when all are back, everyone saves."""
    group = running().new_controller()
    group.join(0, 1, attempt=0, holds="running")
    assert launched(group.say(1, Leaving())) == [(1, 1)]
    group.beat(0, step=9, busy=2.0, saver=True)
    actions = group.beat(1, step=9, busy=2.0, saver=True)
    assert sent(actions, AskSave) == [0]
    assert group.state.phase is Phase.ENDING


def test_a_stop_reaches_programs_that_a_new_controller_has_just_found() -> None:
    """They end in order; those that are not back are removed."""
    group = running().new_controller()
    group.join(0, attempt=0, holds="running")
    actions = group.stop(15)
    assert sent(actions, End) == [0]
    actions = group.ended(0, "ended")
    assert Remove(1, 0) in actions
    assert group.result
    assert group.result.exit_code == 143


def test_the_budget_outlives_the_controller() -> None:
    """A failure at the same place before and after its loss is the same failure twice."""
    group = running()
    group.ended(0, "error", "raised ValueError: x", "ValueError at train.py:3", step=8)
    group.ended(1, "ended")
    group.restart()
    group.new_controller(furthest=8)
    group.join(0, 1, attempt=1, holds="running")
    group.beat(0, step=8, busy=1.0)
    group.beat(1, step=8, busy=1.0)
    group.ended(0, "error", "raised ValueError: x", "ValueError at train.py:3", step=8)
    group.ended(1, "ended")
    assert group.result
    assert "twice in a row at the same place" in group.result.reason


def test_a_fresh_job_is_gathered_by_its_first_controller() -> None:
    """Nothing was told before: its workers are there, or on the way, and hold nothing."""
    group = Group(workers=2).new_controller(known=False)
    assert group.actions == [Launch(0, 0), Launch(1, 0)]
    assert sent(group.join(0), Prepare) == [0]
    assert group.state.phase is Phase.GATHERING
    assert sent(group.join(1), Prepare) == [1]
    group.ready(0, 1)
    assert group.state.attempt == 0
    assert group.state.phase is Phase.RUNNING


def test_an_attempt_that_no_controller_wrote_of_is_taken_over_too() -> None:
    """The one before was lost before its first status."""
    group = running().new_controller(known=False, attempt=0, begun=False)
    group.join(0, 1, attempt=0, holds="running")
    group.beat(0, step=9, busy=2.0)
    assert "resumed attempt 0" in told(group.beat(1, step=9, busy=2.0))


def test_a_worker_that_can_not_be_started_is_told_as_before() -> None:
    """Twice in a row, before anything ran."""
    group = Group(workers=2).new_controller(known=False)
    assert launched(group.gone(0, "no such file")) == [(0, 1)]
    group.gone(0, "no such file")
    assert group.result
    assert group.result.reason == "worker 0 could not be started: no such file before it joined"


def test_a_job_that_was_over_is_not_begun_again() -> None:
    """Its controller wrote the result and was lost before it could let everyone go."""
    result = Result(Ending.FAILED, "worker 0 raised ValueError")
    group = running().new_controller(result=result)
    assert group.actions == [Launch(0, 0), Launch(1, 0), Finish(result)]
    assert group.join(1, attempt=0, holds="ended") == [Send(1, Dismiss(1))]
    assert group.gone(0) == []


def test_a_successor_that_the_controller_before_made_is_watched_too() -> None:
    """Both are there: the old one that leaves, and the new one that waits for its end."""
    before = Before(((0, 0), (3, 4)), started=0.0, known=True, attempt=5, begun=True)
    state, actions = machine.resume(Policy(workers=2), 0.0, before)
    assert actions == [Launch(0, 0), Launch(1, 3), Launch(1, 4)]
    refused = machine.refusal(state, 1, 4)
    assert refused
    assert refused.retry


# ---- successors ----


def test_the_backend_may_know_before_the_agent_that_a_worker_has_to_leave() -> None:
    """It gives the reason; the agent's own word then changes nothing."""
    group = running()
    group.beat(0, step=8, saver=True)
    group.beat(1, step=8, saver=True)
    actions = group.event(Leaves(group.at, 1, 0, "its pod was evicted (drain)"))
    assert launched(actions) == [(1, 1)]
    assert sent(actions, AskSave) == [0]
    assert group.say(1, Leaving()) == []
    group.ended(0, "left")
    actions = group.ended(1, "left")
    assert "worker 1 has to leave: its pod was evicted (drain); starting again" in told(actions)
    assert sent(actions, Dismiss) == [1]


def test_a_successor_that_dies_is_made_again_once() -> None:
    """One that can't live says why, as any worker that can't be started."""
    group = running()
    group.say(1, Leaving())
    assert launched(group.event(Gone(group.at, 1, 1, "its pod was deleted"))) == [(1, 2)]
    group.event(Gone(group.at, 1, 2, "no such file"))
    assert group.result
    assert group.result.reason == "worker 1 could not be started: no such file before it joined"


def test_the_newest_successor_takes_over() -> None:
    """When the one before is gone, the newest incarnation is the one that is awaited."""
    group = running()
    group.say(1, Leaving())
    group.event(Gone(group.at, 1, 1, "its pod was deleted"))
    group.ended(0, "ended")
    group.ended(1, "ended")
    group.gone(1)
    assert group.state.workers[1].incarnation == 2
    group.restart()
    assert group.state.phase is Phase.RUNNING


@pytest.mark.parametrize("status", [Status.AWAITED, Status.LOST])
def test_no_successor_is_made_while_the_job_stops(status: Status) -> None:
    """What would be launched would only have to be removed."""
    group = running()
    group.stop()
    assert launched(group.disconnect(1) if status is Status.LOST else group.say(1, Leaving())) == []


def test_the_end_removes_successors() -> None:
    """They wait for nothing any more."""
    group = running()
    group.say(1, Leaving())
    group.ended(1, "error", "x", "p")
    actions = group.event(machine.StopAsked(group.at, 2))
    actions += group.ended(0, "ended")
    assert Remove(1, 1) in actions


def test_a_worker_that_ran_out_of_memory_is_no_lost_one() -> None:
    """The first that is seen is a closed connection; the backend knows better, and twice is final."""
    group = running()
    for _ in range(2):
        group.disconnect(1)
        group.ended(0, "ended", step=7)
        group.event(Gone(group.at, 1, group.state.workers[1].incarnation, "its pod ran out of memory (OOMKilled)", "memory"))
        group.restart()
    assert group.result
    assert "ran out of memory" in group.result.reason
    assert "twice in a row" in group.result.reason


def test_what_keeps_a_worker_from_starting_is_told() -> None:
    """While gathering, and at the deadline."""
    group = Group(workers=2)
    group.join(0)
    group.ready(0)
    group.event(Waits(group.at, 1, 0, "its pod has no image x (ErrImagePull)"))
    assert "worker 1 did not join (its pod has no image x (ErrImagePull))" in told(group.later(6.0))
    group.later(600.0)
    assert group.result
    assert "ErrImagePull" in group.result.reason


def test_an_attempt_begins_with_everyone_after_all_of_it() -> None:
    """The addresses of the new attempt are those that are told for it."""
    group = running().new_controller()
    group.join(0, attempt=0, holds="running")
    group.join(1)
    group.ended(0, "ended")
    group.ready(0)
    assert group.ready(1) == [BeginAll(1, ("127.0.0.1:9000", "127.0.0.1:9001"))]
