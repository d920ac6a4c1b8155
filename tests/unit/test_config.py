"""Settings: what follows from what, what cannot hold, and where they are read from."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fleet.config import Settings, database_url, duration
from fleet.errors import ConfigurationError


def s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


DERIVED = (
    "renew_every", "reap_every", "margin", "drain_timeout", "stall_limit", "poll", "poll_listening", "backoff_base",
    "backoff_cap", "statement_timeout", "lock_timeout",
)  # fmt: skip


@pytest.mark.parametrize(("ttl", "derived"), [
    (30, (5, 5, 6, 30, 300, 1, 5, 1, 600, 10, 2)),
    (2, (2 / 6, 2 / 6, 0.4, 2, 20, 2 / 30, 2 / 6, 2 / 30, 40, 2 / 3, 2 / 15)),
    (300, (50, 50, 60, 300, 3000, 1, 5, 10, 6000, 10, 2)),
])  # fmt: skip
def test_all_periods_follow_from_the_ttl(ttl: float, derived: tuple[float, ...]) -> None:
    settings = Settings(ttl=s(ttl))
    for name, seconds in zip(DERIVED, derived, strict=True):
        assert abs(getattr(settings, name) - s(seconds)) <= timedelta(microseconds=1), name


def test_the_documented_defaults_are_the_defaults() -> None:
    settings = Settings()
    assert (settings.ttl, settings.slots, settings.retention) == (s(30), 64, timedelta(days=7))
    assert (settings.args_bytes_max, settings.result_bytes_max, settings.error_bytes_max) == (2**20, 2**20, 2**14)


def test_what_is_given_is_kept() -> None:
    assert Settings(ttl=s(30), poll=s(0.5), drain_timeout=s(0)).poll == s(0.5)
    assert Settings(drain_timeout=s(0)).drain_timeout == s(0)


VIOLATIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"ttl": s(0.999)}, "ttl >= 1s", "ttl is 0.999s"),
    ({"renew_every": s(0)}, "renew_every > 0", "renew_every is 0s"),
    ({"margin": s(0)}, "margin > 0", "margin is 0s"),
    ({"renew_every": s(8.001)}, "3 * renew_every <= ttl - margin", "ttl is 30s, renew_every is 8.001s, margin is 6s"),
    ({"margin": s(15.001)}, "3 * renew_every <= ttl - margin", "margin is 15.001s"),
    ({"reap_every": s(0)}, "reap_every > 0", "reap_every is 0s"),
    ({"reap_every": s(10.001)}, "3 * reap_every <= ttl", "reap_every is 10.001s"),
    ({"drain_timeout": s(-0.001)}, "drain_timeout >= 0", "drain_timeout is -0.001s"),
    ({"stall_limit": s(5)}, "stall_limit > renew_every", "renew_every is 5s, stall_limit is 5s"),
    ({"poll": s(0)}, "0 < poll <= poll_listening", "poll is 0s"),
    ({"poll": s(5.001)}, "0 < poll <= poll_listening", "poll is 5.001s, poll_listening is 5s"),
    ({"poll_listening": s(10.001)}, "poll_listening <= 10s", "poll_listening is 10.001s"),
    ({"backoff_base": s(0)}, "0 < backoff_base <= backoff_cap", "backoff_base is 0s"),
    ({"backoff_cap": s(0.999)}, "0 < backoff_base <= backoff_cap", "backoff_base is 1s, backoff_cap is 0.999s"),
    ({"lock_timeout": s(0)}, "0 < lock_timeout < statement_timeout", "lock_timeout is 0s"),
    ({"lock_timeout": s(10)}, "0 < lock_timeout < statement_timeout", "statement_timeout is 10s, lock_timeout is 10s"),
    ({"statement_timeout": s(30)}, "statement_timeout < ttl", "ttl is 30s, statement_timeout is 30s"),
    ({"slots": 0}, "1 <= slots <= 10000", "slots is 0"),
    ({"slots": 10_001}, "1 <= slots <= 10000", "slots is 10001"),
    ({"args_bytes_max": 0}, "args_bytes_max > 0", "args_bytes_max is 0"),
    ({"result_bytes_max": 0}, "result_bytes_max > 0", "result_bytes_max is 0"),
    ({"error_bytes_max": 255}, "error_bytes_max >= 256", "error_bytes_max is 255"),
    ({"retention": s(3599)}, "retention >= 1h", "retention is 3599s"),
]


@pytest.mark.fault("Deploy", "a configuration that violates an inequality")
@pytest.mark.parametrize(
    ("given", "rule", "facts"), VIOLATIONS, ids=[f"{rule} {given}" for given, rule, _ in VIOLATIONS]
)
def test_a_rule_that_does_not_hold_is_named_with_the_facts(given: dict[str, Any], rule: str, facts: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Settings(**given)
    assert str(raised.value).startswith(f"{rule} does not hold: ")
    assert facts in str(raised.value)


@pytest.mark.parametrize("given", [
    {"ttl": s(1)}, {"renew_every": s(8)}, {"margin": s(15)}, {"reap_every": s(10)}, {"drain_timeout": s(0)},
    {"stall_limit": s(5.001)}, {"poll": s(5)}, {"poll_listening": s(10)}, {"backoff_cap": s(1)}, {"lock_timeout": s(9.999)},
    {"statement_timeout": s(29.999)}, {"slots": 1}, {"slots": 10_000}, {"args_bytes_max": 1}, {"result_bytes_max": 1},
    {"error_bytes_max": 256}, {"retention": s(3600)},
], ids=str)  # fmt: skip
def test_every_rule_holds_at_its_very_bound(given: dict[str, Any]) -> None:
    Settings(**given)


@pytest.mark.fault("Deploy", "a configuration that violates an inequality")
def test_every_rule_is_violated_by_some_test() -> None:
    source = Path(str(Settings.__module__).replace(".", "/") + ".py")
    text = (Path(__file__).parents[2] / source).read_text(encoding="utf-8")
    rules = [line.split('": ')[0].strip().strip('"') for line in text.split("rules = {")[1].split("}")[0].splitlines()]
    assert {rule for rule in rules if rule} == {rule for _, rule, _ in VIOLATIONS}


def test_changed_settings_follow_the_new_ttl_where_they_followed_the_old_one() -> None:
    changed = Settings(poll=s(0.5)).changed(ttl=s(60), slots=None)
    assert (changed.renew_every, changed.poll, changed.slots) == (s(10), s(0.5), 64)
    with pytest.raises(ConfigurationError, match="ttl >= 1s"):
        Settings().changed(ttl=s(0.5))


def test_the_environment_is_read_and_what_is_given_goes_before() -> None:
    environ = {"FLEET_TTL": "60s", "FLEET_SLOTS": "8", "FLEET_POLL": "250ms", "FLEET_RETENTION": "2d", "OTHER": "x"}
    settings = Settings.from_environment(environ, slots=9, poll=None)
    assert (settings.ttl, settings.slots, settings.poll, settings.retention) == (s(60), 9, s(0.25), timedelta(days=2))
    assert settings.renew_every == s(10)


def test_overridden_settings_take_what_is_given_then_the_environment_and_keep_the_rest() -> None:
    overridden = Settings(ttl=s(10), slots=4, poll=s(0.5)).overridden({"FLEET_TTL": "60s", "FLEET_SLOTS": "8"}, slots=9)
    assert (overridden.ttl, overridden.slots, overridden.poll, overridden.renew_every) == (s(60), 9, s(0.5), s(10))
    assert Settings(slots=4).overridden({}, slots=None) == Settings(slots=4)


@pytest.mark.parametrize(("environ", "message"), [
    ({"FLEET_TTL": "soon"}, "FLEET_TTL is 'soon'; write seconds, or a number with ms, s, m, h or d"),
    ({"FLEET_SLOTS": "8.5"}, "FLEET_SLOTS is '8.5'; write a whole number"),
    ({"FLEET_TTL": "500ms"}, "ttl >= 1s does not hold"),
])  # fmt: skip
def test_a_variable_that_cannot_be_read_is_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Settings.from_environment(environ)


@pytest.mark.parametrize(("text", "seconds"), [
    ("30", 30), ("30s", 30), ("1.5s", 1.5), ("500ms", 0.5), ("5m", 300), ("2h", 7200), ("7d", 604_800), (" 3 s ", 3),
    ("0", 0), ("1e2", 100),
])  # fmt: skip
def test_durations_are_read(text: str, seconds: float) -> None:
    assert duration(text) == s(seconds)


@pytest.mark.parametrize("text", ["", "s", "ms", "1h30m", "5 minutes", "1x", "nan", "inf", "1e300d", "5sm", "--5"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="write seconds"):
        duration(text, "--ttl")


def test_the_database_is_named_by_argument_variable_file_or_libpq(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("postgresql://file\n")
    from_file = {"FLEET_DATABASE_URL_FILE": str(file)}
    assert database_url(from_file | {"FLEET_DATABASE_URL": "postgresql://b"}, "postgresql://a") == "postgresql://a"
    assert database_url(from_file | {"FLEET_DATABASE_URL": "postgresql://b"}) == "postgresql://b"
    assert database_url(from_file) == "postgresql://file"
    assert database_url(from_file, otherwise="postgresql://app") == "postgresql://file"
    assert database_url({"PGHOST": "somewhere"}, otherwise="postgresql://app") == "postgresql://app"
    assert database_url({"PGHOST": "somewhere"}) == ""
    assert database_url({}) is None
    with pytest.raises(ConfigurationError, match=r"FLEET_DATABASE_URL_FILE names .*nowhere"):
        database_url({"FLEET_DATABASE_URL_FILE": str(tmp_path / "nowhere")})
    file.write_text("\n")
    with pytest.raises(ConfigurationError, match="which is empty"):
        database_url(from_file)
