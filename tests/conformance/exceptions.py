"""What does not hold through a pooler in transaction mode, or without notifications, and why. Else it is a defect."""

_LOCK_STEP = "two sessions are kept in lock-step by their server processes, whose numbers a pooler does not tell"
_PLANS = (
    "the plans are those of a session whose settings the pooler drops: `fleet doctor` says how to give them to the role"
)
_TIME_OUTS = "the pooler drops the session's time-outs: `fleet doctor` says how to give them to the role"
_NOTIFICATIONS = "no notification comes through: workers poll"

# A folder → the reason. What a worker does through a pooler is shown by tests/faults/infrastructure/test_pooler.py.
LEFT_OUT = {
    "tests/worker": "its tests find and end the sessions of one worker by their server processes, which a pooler shares",
    "tests/processes": "as tests/worker",
}

# A part of a test's id → the reason.
REASONS: dict[str, str] = {
    "tests/postgres/test_races": _LOCK_STEP,
    "test_a_second_submitter_waits_for_the_first_and_takes_over_if_that_is_undone": _LOCK_STEP,
    "test_a_count_that_comes_during_the_folding_is_not_lost[True]": _LOCK_STEP,
    "test_an_upgrade_waits_for_a_worker_that_is_just_registering_and_sees_it": _LOCK_STEP,
    "test_a_worker_that_registers_while_an_upgrade_is_committed_waits_and_is_refused": _LOCK_STEP,
    "tests/postgres/test_plans.py": _PLANS,
    "test_the_limit_and_the_order_hold_under_every_plan": _PLANS,
    "test_a_lock_on_the_requests_to_cancel_costs_nobody_a_lease": _TIME_OUTS,
    "tests/postgres/test_listen.py": _NOTIFICATIONS,
    "test_a_requeued_task_announces_itself": _NOTIFICATIONS,
    "test_a_resumed_queue_wakes_its_workers": _NOTIFICATIONS,
}

_CALLED = "it promises that a worker is called, and nobody is: polling finds the same work later"
_TROUBLES = "it looks at all troubles of a worker, and that LISTEN is refused is one of them"

# Without notifications: neither LISTEN nor the trigger on fleet.task. Everything else must hold.
SILENT_LEFT_OUT = {"tests/migrations": "it looks at the schema as it is made, the trigger with it"}
SILENT_REASONS: dict[str, str] = {
    "tests/postgres/test_listen.py": _CALLED,
    "tests/worker/test_wake_up.py": _CALLED,
    "-listen]": "LISTEN is refused to every role",
    "test_the_heartbeat_connects_again": _TROUBLES,
    "test_a_row_that_somebody_holds_does_not_keep_the_others_from_being_settled": _TROUBLES,
    "test_a_drain_right_after_a_lost_claim_hands_back_what_it_took": _TROUBLES,
    "test_what_was_forgotten_is_found_even_where_no_connection_broke": _TROUBLES,
}
