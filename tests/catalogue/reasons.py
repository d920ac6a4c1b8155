"""What no test of this repository breaks, and why: (group, fault) → a sentence."""

NOT_TESTED: dict[tuple[str, str], str] = {
    (
        "Network",
        "packets lost and reordered",
    ): "TCP mends both before a process sees them; what is left are delays, and a connection that ends: both are tested.",
    ("Submit", "three schedulers, one of them paused"): "There are no schedules yet.",
    ("Submit", "the scheduler is down for three ticks"): "There are no schedules yet.",
    (
        "Deploy",
        "the previous release on the new schema",
    ): "There is no previous release yet: the first one to be followed by another brings this test.",
}
