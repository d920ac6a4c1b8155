"""Where the texts come from, and what is refused."""

from pathlib import Path

import pytest

from fleet.demo.errors import DemoError
from fleet.demo.plan import Plan
from fleet.demo.texts import BYTES_MAX, Text, at_least, built_in, from_folder
from fleet.payload import encode


def test_every_python_has_texts() -> None:
    texts = built_in()
    assert len(texts) > 50
    assert all(title and text for title, text in texts)


def test_a_folder_gives_its_text_files_by_name(tmp_path: Path) -> None:
    for name in ("b.md", "a.txt", "C.TXT", "d.rst", "e.py"):
        (tmp_path / name).write_text(f"text of {name}", encoding="utf-8")
    (tmp_path / "folder.txt").mkdir()
    assert from_folder(tmp_path) == [Text(name, f"text of {name}") for name in ("C.TXT", "a.txt", "b.md")]


def test_bytes_that_cannot_be_stored_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "raw.txt").write_bytes(b"zero \x00, no utf-8 \xff")
    assert from_folder(tmp_path)[0].text == "zero \ufffd, no utf-8 \ufffd"


def test_a_title_is_fit_for_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "red\x1b[31m.txt").touch()
    assert from_folder(tmp_path)[0].title == "red\\x1b[31m.txt"


def test_a_folder_without_texts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.rst").touch()
    with pytest.raises(DemoError, match=r"no \*\.txt or \*\.md file in .* leave --texts out"):
        from_folder(tmp_path)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="cannot be read: No such file"):
        from_folder(tmp_path / "nowhere")


def test_the_longest_text_fits_into_a_task(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("a line of prose, neither long nor short\n" * (BYTES_MAX // 40), encoding="utf-8")
    assert len(encode(from_folder(tmp_path)[0]._asdict()).encode()) < 1024 * 1024
    path.write_bytes(b"x" * (BYTES_MAX + 1))
    with pytest.raises(DemoError, match=r"long\.txt has 921,601 bytes; .* at most 921,600"):
        from_folder(tmp_path)


def test_few_texts_are_used_several_times_under_other_titles() -> None:
    texts = [Text("a", "1"), Text("b", "2")]
    assert [title for title, _ in at_least(5, texts)] == ["a", "b", "a (2)", "b (2)", "a (3)"]
    assert at_least(2, texts) == texts
    assert at_least(1, texts) == texts


@pytest.mark.parametrize("count", [1, 79, 5000])
@pytest.mark.parametrize("workers", [2, 16])
def test_a_plan_leaves_time_to_catch_a_worker(count: int, workers: int) -> None:
    plan = Plan.of([Text(str(number), "") for number in range(count)], workers)
    assert plan.tasks >= 16 * workers
    assert 0.15 <= plan.pace.total_seconds() <= 0.5
    assert 0.05 < plan.fresh.total_seconds() < 0.75 * plan.pace.total_seconds()
    assert plan.batch >= 2
