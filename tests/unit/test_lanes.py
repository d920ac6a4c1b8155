"""Where the next claim begins in each lane."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from fleet.lease import Lease
from fleet.postgres.claim import HEAD, Lane, Position
from fleet.task import PRIORITIES, ClaimedTask
from fleet.worker.lanes import BACKWARDS_EVERY, DEAR_SECONDS, EMPTY_SECONDS, Lanes

T0 = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
LEASE = Lease(UUID(int=9), "worker", timedelta(seconds=30))
GENERATIONS = {"a": 1, "b": 1}


def claimed(queue: str, priority: int, seconds: float, number: int = 1) -> ClaimedTask:
    run_at = T0 + timedelta(seconds=seconds)
    return ClaimedTask(UUID(int=number), "work", queue, priority, run_at, 1, True, 0, 0, None, "{}", None, LEASE)


def at(seconds: float, number: int = 0) -> Position:
    return Position((T0 + timedelta(seconds=seconds)).isoformat(), UUID(int=number))


class Walk:
    """A worker's claims, one after the other."""

    def __init__(self, *queues: str) -> None:
        self.lanes = Lanes(queues)
        self.generations = dict.fromkeys(queues, 1)

    def claim(self, *tasks: ClaimedTask, now: float, seen: float = 0, full: bool = False, cost: float = 0.0) -> None:
        self.lanes.learn(
            self.lanes.order(now), tasks, full=full, seen=T0 + timedelta(seconds=seen),
            generations=dict(self.generations), cost=cost, now=now,
        )  # fmt: skip

    def positions(self, now: float) -> dict[tuple[str, int], Position]:
        return {(lane.queue, lane.priority): lane.position for lane in self.lanes.order(now)}


def test_at_first_every_lane_is_walked_from_its_head_in_the_order_of_priorities() -> None:
    assert Lanes(["a", "b"]).order(0.0) == [Lane(queue, priority, HEAD) for priority in PRIORITIES for queue in "ab"]


def test_queues_take_turns_from_claim_to_claim() -> None:
    walk = Walk("a", "b", "c")
    firsts = []
    for _ in range(4):
        firsts.append([lane.queue for lane in walk.lanes.order(0.0)[:3]])
        walk.claim(now=0.0)
    assert firsts == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]


def test_every_sixteenth_claim_walks_the_priorities_backwards() -> None:
    walk = Walk("a")
    firsts = []
    for _ in range(2 * BACKWARDS_EVERY):
        firsts.append(walk.lanes.order(0.0)[0].priority)
        walk.claim(now=0.0)
    assert firsts == ([0] * 15 + [9]) * 2


def test_looking_at_the_order_does_not_change_it() -> None:
    lanes = Lanes(["a", "b"])
    assert lanes.order(0.0) == lanes.order(0.0)


def test_after_a_full_answer_a_lane_goes_on_behind_the_last_key() -> None:
    walk = Walk("a")
    walk.claim(claimed("a", 5, 2, 7), claimed("a", 5, 1, 9), claimed("a", 5, 2, 3), now=0.0, seen=10, full=True)
    assert walk.positions(0.5)["a", 5] == at(2, 7)


def test_after_a_full_answer_the_lanes_before_are_exhausted_and_those_behind_not_visited() -> None:
    walk = Walk("a")
    walk.claim(claimed("a", 3, 1), claimed("a", 5, 2), now=0.0, seen=10, full=True)
    positions = walk.positions(0.5)
    assert {positions["a", priority] for priority in range(5)} == {at(8)}
    assert positions["a", 5] == at(2, 1)
    assert {positions["a", priority] for priority in range(6, 10)} == {HEAD}


def test_after_a_short_answer_every_lane_trails_the_moment_by_two_seconds() -> None:
    walk = Walk("a", "b")
    walk.claim(claimed("a", 3, 1), now=0.0, seen=10)
    assert set(walk.positions(0.5).values()) == {at(8)}


def test_a_lane_that_was_not_visited_keeps_its_place() -> None:
    walk = Walk("a")
    walk.claim(now=0.0, seen=10)
    walk.claim(claimed("a", 2, 20), now=0.5, seen=21, full=True)
    positions = walk.positions(0.6)
    assert (positions["a", 1], positions["a", 2], positions["a", 3]) == (at(19), at(20, 1), at(8))


@pytest.mark.parametrize(("cost", "due"), [(0.0, 1.0), (DEAR_SECONDS, 1.0)])
def test_the_head_is_looked_at_again_after_a_second_while_that_is_cheap(cost: float, due: float) -> None:
    walk = Walk("a")
    walk.claim(now=100.0, seen=10, cost=cost)
    assert walk.positions(100.0 + due - 0.001)["a", 0] == at(8)
    assert walk.positions(100.0 + due)["a", 0] == HEAD
    assert walk.lanes.dear(100.0 + due) == []


@pytest.mark.parametrize(("cost", "due"), [(0.05, 1.0), (0.0625, 1.25), (1.0, 20.0)])
def test_a_dear_look_at_the_head_is_the_scouts_after_a_second_or_twenty_times_its_cost(cost: float, due: float) -> None:
    walk = Walk("a")
    walk.claim(now=100.0, seen=10, cost=cost)
    assert walk.lanes.dear(100.0 + due - 0.001) == []
    assert sorted(walk.lanes.dear(100.0 + due)) == [Lane("a", priority, at(8)) for priority in PRIORITIES]
    assert set(walk.positions(100.0 + due).values()) == {at(8)}


def test_what_the_scout_found_is_where_the_next_claim_begins() -> None:
    walk = Walk("a")
    walk.claim(now=100.0, seen=10, cost=1.0)
    looked_at = walk.lanes.dear(200.0)
    walk.lanes.scouted(looked_at, {("a", 5): at(3, 7)}, generations={"a": 1}, cost=1.0, now=201.0)
    assert walk.positions(201.0)["a", 5] == at(3, 7)
    assert walk.positions(201.0)["a", 4] == at(8)
    assert walk.lanes.dear(220.999) == []
    assert len(walk.lanes.dear(221.0)) == len(PRIORITIES)


def test_a_head_that_has_become_cheap_again_is_looked_at_by_claims() -> None:
    walk = Walk("a")
    walk.claim(now=100.0, seen=10, cost=1.0)
    walk.lanes.scouted(walk.lanes.dear(200.0), {}, generations={"a": 1}, cost=DEAR_SECONDS, now=200.0)
    assert walk.lanes.dear(201.0) == []
    assert set(walk.positions(201.0).values()) == {HEAD}


def test_what_is_put_back_while_the_scout_looks_is_looked_for_once_more() -> None:
    walk = Walk("a")
    walk.claim(now=100.0, seen=10, cost=0.5)
    looked_at, before = walk.lanes.dear(200.0), walk.lanes.generations
    walk.generations["a"] = 2
    walk.claim(now=200.1, seen=11)
    walk.lanes.scouted(looked_at, {}, generations=before, cost=0.5, now=200.5)
    assert walk.lanes.owed_seconds(200.5) == 10
    assert walk.lanes.dear(210.4) == []
    assert len(walk.lanes.dear(210.5)) == len(PRIORITIES)
    assert walk.lanes.owed_seconds(210.5) is None  # nobody needs to be woken: the scout has it


def test_a_claim_from_the_cursor_does_not_put_off_the_next_look_at_the_head() -> None:
    walk = Walk("a")
    walk.claim(now=0.0, seen=10)
    walk.claim(now=0.9, seen=11, cost=50.0)
    assert walk.positions(0.95)["a", 0] == at(9)
    assert walk.positions(1.0)["a", 0] == HEAD


def test_a_generation_that_moved_calls_back_to_the_head_of_that_queue_alone() -> None:
    walk = Walk("a", "b")
    walk.claim(now=0.0, seen=10)
    walk.generations["b"] = 2
    walk.claim(now=0.25, seen=11)
    positions = walk.positions(0.25)
    assert {positions["b", priority] for priority in PRIORITIES} == {HEAD}
    assert {positions["a", priority] for priority in PRIORITIES} == {at(9)}

    walk.claim(now=0.25, seen=12)
    assert set(walk.positions(0.5).values()) == {at(10)}


def test_a_generation_that_moves_all_the_time_cannot_cost_more_than_the_share() -> None:
    walk = Walk("a")
    walk.claim(now=0.0, seen=10, cost=DEAR_SECONDS)
    walk.generations["a"] = 2
    walk.claim(now=0.1, seen=11)
    assert walk.positions(0.399)["a", 0] == at(9)
    assert walk.positions(0.4)["a", 0] == HEAD


def test_a_queue_that_is_not_on_record_yet_is_called_back_when_it_appears() -> None:
    walk = Walk("a")
    walk.generations = {}
    walk.claim(now=0.0, seen=10)
    assert walk.positions(0.5)["a", 0] == at(8)
    walk.generations = {"a": 0}
    walk.claim(now=0.5, seen=11)
    assert walk.positions(0.5)["a", 0] == HEAD


def test_when_the_databases_clock_goes_back_every_lane_begins_again() -> None:
    walk = Walk("a", "b")
    walk.claim(now=0.0, seen=10, cost=5.0)
    walk.claim(now=0.1, seen=9.999999)
    assert set(walk.positions(0.2).values()) == {HEAD}


def test_the_same_moment_twice_is_no_step_back() -> None:
    walk = Walk("a")
    walk.claim(now=0.0, seen=10)
    walk.claim(now=0.1, seen=10)
    assert walk.positions(0.2)["a", 0] == at(8)


def test_a_full_answer_that_ends_with_the_last_lane_of_several_queues() -> None:
    walk = Walk("a", "b")
    walk.claim(claimed("a", 0, 1), claimed("b", 0, 2), claimed("a", 1, 3), now=0.0, seen=10, full=True)
    positions = walk.positions(0.5)
    assert (positions["a", 0], positions["b", 0], positions["a", 1], positions["b", 1]) == (
        at(8),
        at(8),
        at(3, 1),
        HEAD,
    )


def test_a_busy_worker_leaves_out_for_a_while_what_was_empty() -> None:
    walk = Walk("a", "b")
    walk.claim(claimed("a", 5, 0), now=10.0, full=True)  # priorities 0 to 4 were empty; b5 and behind were not visited
    empty = {(queue, priority) for queue in "ab" for priority in range(5)}
    every = {(queue, priority) for queue in "ab" for priority in PRIORITIES}
    assert set(walk.positions(10.0 + EMPTY_SECONDS / 2)) == every - empty
    assert set(walk.positions(10.0 + EMPTY_SECONDS)) == every


def test_a_worker_that_got_less_than_it_asked_for_looks_into_every_lane() -> None:
    walk = Walk("a")
    walk.claim(claimed("a", 5, 0), now=10.0, full=True)
    walk.claim(claimed("a", 5, 1), now=10.0)
    assert [lane.priority for lane in walk.lanes.order(10.0)] == list(PRIORITIES)
