"""What counts as a word and as a sentence."""

import pytest

from fleet.demo.analysis import analyze, sentences, words


def test_a_text_is_described_by_five_figures() -> None:
    assert analyze("to be or not to be") == {
        "words": 6,
        "unique_words": 4,
        "sentences": 1,
        "longest_word": "not",
        "reading_seconds": 1.5,
    }


def test_an_empty_text_has_nothing() -> None:
    nothing = {"words": 0, "unique_words": 0, "sentences": 0, "longest_word": "", "reading_seconds": 0.0}
    assert analyze("") == analyze(" \n\t -- ... '' !?") == nothing


def test_words_are_the_same_in_capitals_and_however_their_accents_are_encoded() -> None:
    assert analyze("Straße STRASSE caf\u00e9 CAFE\u0301")["unique_words"] == 2


def test_the_longest_word_is_the_first_of_several() -> None:
    assert analyze("a bc de f")["longest_word"] == "bc"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("don't rock 'n' roll", ["don't", "rock", "n", "roll"]),
        ("l\u2019été", ["l'été"]),
        ("well-known snake_case 3.14", ["well", "known", "snake", "case", "3", "14"]),
        ("Привет, мир! γειά", ["Привет", "мир", "γειά"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("١٢٣ مرحبا", ["١٢٣", "مرحبا"]),
        ("\U0001f600 ok\u00a0then\u2028next", ["ok", "then", "next"]),
    ],
)
def test_words_are_runs_of_letters_marks_and_digits(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("no end", 1),
        ("One. Two! Three? Four", 4),
        ("Wait... what?!", 2),
        ("It costs 3.14 or so.", 1),
        ('He said "no." Then he left.', 2),
        ("A heading\n\nIts text.", 2),
        ("one line\nand the next", 1),
        ("你好。再见\uff01", 2),
        ("كيف حالك؟ جيد.", 2),
    ],
)
def test_sentences_end_at_their_signs_and_at_empty_lines(text: str, count: int) -> None:
    assert sentences(text) == count
