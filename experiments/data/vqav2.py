"""VQAv2: questions about COCO's photos, ten answers to each, in the official files."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from experiments.data.examples import Scores
from experiments.data.text_files import find, read_json, read_json_lines
from experiments.exceptions import DataError

PARTS = ("train2014", "val2014")
QUESTIONS = {part: f"v2_OpenEnded_mscoco_{part}_questions.json" for part in PARTS}
ANNOTATIONS = {part: f"v2_mscoco_{part}_annotations.json" for part in PARTS}
FILES = (*QUESTIONS.values(), *ANNOTATIONS.values())
VOCABULARY = "answer2label.txt"
REMEDY = "get the questions and annotations of VQAv2 (visualqa.org) and COCO's train2014 and val2014, unpacked beside"
ANNOTATORS, FULL_SCORE, FREQUENT = 10, 3, 9
SIZE = 3129
"""Answers that are the most common one of at least nine questions in both parts."""


class Questions(NamedTuple):
    """Questions, the file of the image of each, and the scores of the answers in the vocabulary."""

    texts: list[str]
    paths: list[str]
    scores: Scores


class VqaSet(NamedTuple):
    """The questions of both parts, and the answers that a model may give."""

    train: Questions
    val: Questions
    answers: tuple[str, ...]


def vqav2(folder: Path | None = None, size: int | None = SIZE) -> VqaSet:
    """An answer that n of ten people gave scores min(n/3, 1).

    The vocabulary is ``answer2label.txt`` of BEiT-3's code where that lies beside the others (a line of JSON for each
    answer), else it is counted: answers that are the most common one of nine questions or more. It must have ``size``
    answers. An answer outside it scores nothing; a question with no other answers stays, and nothing is right.
    """
    place, _ = find("vqav2", folder, [FILES], REMEDY, also=["VQAv2", "vqa"])
    given = {part: _entries(place / ANNOTATIONS[part], "annotations") for part in PARTS}
    listed = place / VOCABULARY
    answers = _listed(listed) if listed.is_file() else _counted(given.values())
    if size is not None and len(answers) != size:
        where = listed if listed.is_file() else f"{place} (answers to at least {FREQUENT} questions)"
        raise DataError(f"{where} gives a vocabulary of {len(answers)} answers instead of {size}")
    index = {answer: row for row, answer in enumerate(answers)}
    train, val = (_asked(place, part, given[part], index) for part in PARTS)
    return VqaSet(train, val, answers)


def _asked(place: Path, part: str, annotations: list[dict[str, Any]], index: Mapping[str, int]) -> Questions:
    path, beside = place / QUESTIONS[part], place / ANNOTATIONS[part]
    questions = _entries(path, "questions")
    by_id = {_of(entry, "question_id", i, "annotations", beside): (i, entry) for i, entry in enumerate(annotations)}
    there = _files(place / part)
    texts, paths, scores, missing = [], [], [], []
    for i, entry in enumerate(questions):
        text, image, number = (
            _of(entry, name, i, "questions", path) for name in ("question", "image_id", "question_id")
        )
        if number not in by_id:
            raise DataError(f"question {number}, entry {i} of {path}, has no annotation in {beside}")
        file = f"COCO_{part}_{image:012}.jpg"
        if file not in there:
            missing.append((file, number))
        texts.append(text)
        paths.append(str(place / part / file))
        scores.append(_scored(*by_id[number], index, beside))
    if missing:
        file, number = missing[0]
        raise DataError(
            f"{place / part} lacks {file}, of question {number} in {path.name}, and {len(missing) - 1} more"
        )
    return Questions(texts, paths, Scores.of(scores, len(index)))


def _scored(i: int, entry: dict[str, Any], index: Mapping[str, int], path: Path) -> dict[int, float]:
    given = _of(entry, "answers", i, "annotations", path)
    if not isinstance(given, list) or len(given) != ANNOTATORS:
        count = len(given) if isinstance(given, list) else "no"
        raise DataError(
            f"question {entry['question_id']}, entry {i} of {path}, has {count} answers instead of {ANNOTATORS}"
        )
    counts = Counter(normalized(_of(each, "answer", i, "annotations", path)) for each in given)
    return {index[answer]: min(count / FULL_SCORE, 1.0) for answer, count in counts.items() if answer in index}


def _entries(path: Path, name: str) -> list[dict[str, Any]]:
    content = read_json(path)
    entries = content.get(name) if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{path} is not an official file of VQAv2: it has no list of {name}")
    return entries


def _of(entry: Any, name: str, number: int, kind: str, path: Path) -> Any:
    if not isinstance(entry, dict) or name not in entry:
        raise DataError(f"entry {number} of the {kind} in {path} lacks {name!r}")
    return entry[name]


def _files(folder: Path) -> set[str]:
    try:
        return {entry.name for entry in os.scandir(folder)}
    except OSError as error:
        raise DataError(f"the images of {folder.name} are not in {folder}: {error.strerror}; {REMEDY}") from None


def _counted(parts: Iterable[list[dict[str, Any]]]) -> tuple[str, ...]:
    """In the order in which they are met."""
    counts = Counter(normalized(str(entry.get("multiple_choice_answer", ""))) for part in parts for entry in part)
    return tuple(answer for answer, count in counts.items() if answer and count >= FREQUENT)


def _listed(path: Path) -> tuple[str, ...]:
    """Lines like {"answer": "net", "label": 0}, whose labels are 0, 1, …"""
    found = {}
    for where, entry in read_json_lines(path):
        if lacking := {"answer", "label"} - entry.keys():
            raise DataError(f"{where} lacks {', '.join(sorted(lacking))}")
        if (label := entry["label"]) in found or not isinstance(label, int):
            raise DataError(f"{where} has the label {label!r}, which is used or no number")
        found[label] = str(entry["answer"])
    if sorted(found) != list(range(len(found))):
        raise DataError(f"the labels in {path} are not 0 to {len(found) - 1}")
    return tuple(found[label] for label in range(len(found)))


# --- answers as the official evaluation compares them ------------------------------------------------------

_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_DIGITS = {**{word: str(value) for value, word in enumerate(_NUMBERS)}, "none": "0"}
_ARTICLES = {"a", "an", "the"}
_MARKS = ';/[]"{}()=+\\_-><@`,?!'
_CONTRACTED = (  # in small letters, as all answers are
    "ain't aren't can't could've couldn't didn't doesn't don't hadn't hasn't haven't he'd he's how'd how'll how's "
    "i'd've i'm i've isn't it'd it'll let's ma'am mightn't might've mustn't must've needn't not've o'clock oughtn't "
    "shan't should've shouldn't somebody'd somebody'll somebody's someone'd someone'll someone's something'd "
    "something'll that's there'd there're there's they'd they'll they're they've 'twas wasn't we'd've we've weren't "
    "what'll what're what's what've when's where'd where's where've who'd who'll who's who've why'll why're why's "
    "won't would've wouldn't y'all you'd you'll you're you've "
)
_CONTRACTIONS = {word.replace("'", ""): word for word in _CONTRACTED.split()}
_COMMA_IN_NUMBER, _FULL_STOP = re.compile(r"\d,\d"), re.compile(r"\.(?!\d)")


def normalized(answer: str) -> str:
    """Without punctuation and articles, numbers as digits, contractions with their apostrophe, in small letters."""
    text = answer.replace("\n", " ").replace("\t", " ").strip()
    for mark in _MARKS:
        apart = f"{mark} " in text or f" {mark}" in text or _COMMA_IN_NUMBER.search(text)
        text = text.replace(mark, "" if apart else " ")
    words = _FULL_STOP.sub("", text).lower().split()
    kept = (_DIGITS.get(word, word) for word in words)
    return " ".join(_CONTRACTIONS.get(word, word) for word in kept if word not in _ARTICLES)
