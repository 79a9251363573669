"""GenEval's rules on boxes made by hand, its scores and standard errors, and its records."""

import hashlib
import json
import math
import re
from collections import Counter

import numpy as np
import pytest
from conftest import ROOT

from tauflow.tasks.scenes.rules import CLASSES, Detection, ScoredImage, evaluate, records, relation, summarize

MIDDLE = (10.0, 10.0, 12.0, 12.0)


def box(x, y, side=2.0):
    """A square box by its center."""
    return (x - side / 2, y - side / 2, x + side / 2, y + side / 2)


def seen(*boxes, colors=(), scores=()):
    """Detections of falling scores, unless they are given."""
    scores = scores or [1 - n / 10 for n in range(len(boxes))]
    colors = colors or [None] * len(boxes)
    return [Detection(*each) for each in zip(scores, boxes, colors, strict=True)]


def asked(*include, exclude=(), tag="test"):
    return {"tag": tag, "include": list(include), "exclude": list(exclude), "prompt": "a photo"}


CAT = {"class": "cat", "count": 1}
DOG = {"class": "dog", "count": 1}


# Positions


def test_relations():
    wanted = {
        (1, 11): {"left of"},
        (21, 11): {"right of"},
        (11, 1): {"above"},
        (11, 21): {"below"},
        (1, 1): {"left of", "above"},
        (21, 21): {"right of", "below"},
        (11, 11): set(),  # the same place
        (11.4, 11): set(),  # centers differ by no more than a tenth of both sides
        (11.5, 11): set(),  # they do, but by too little of their distance
    }
    assert {center: relation(box(*center), MIDDLE) for center in wanted} == wanted


def test_a_relation_needs_half_of_the_distance_beyond_the_margin():
    """By (a, 10) apart, with a margin of 0.4, it is a - 0.4 of |(a, 10)|: a half at 3 a^2 - 3.2 a = 99.36."""
    edge = (3.2 + math.sqrt(3.2**2 + 12 * 99.36)) / 6
    assert relation(box(11 + edge + 0.001, 21), MIDDLE) == {"right of", "below"}
    assert relation(box(11 + edge - 0.001, 21), MIDDLE) == {"below"}


def test_large_boxes_have_a_wide_margin():
    assert relation(box(14, 11), MIDDLE) == {"right of"}
    assert relation(box(14, 11, side=20), MIDDLE) == set()  # 0.1 (20 + 2) of the distance of 3 is margin


# Verdicts


def test_objects_must_be_there():
    assert evaluate({"cat": seen(MIDDLE)}, asked(CAT)) == (True, "")
    assert evaluate({}, asked(CAT)) == (False, "expected 1 cat, found 0")
    both = asked(CAT, DOG)
    assert evaluate({"cat": seen(MIDDLE), "dog": seen(MIDDLE)}, both).correct
    assert evaluate({"cat": seen(MIDDLE)}, both) == (False, "expected 1 dog, found 0")
    assert evaluate({"dog": []}, both).reason == "expected 1 cat, found 0; expected 1 dog, found 0"


def test_counts_and_exclusion():
    three = asked({"class": "cat", "count": 3}, exclude=[{"class": "cat", "count": 4}])
    found = {count: evaluate({"cat": seen(*[MIDDLE] * count)}, three) for count in (2, 3, 4)}
    assert [verdict.correct for verdict in found.values()] == [False, True, False]
    assert found[2].reason == "expected 3 cat, found 2"
    assert found[4].reason == "expected fewer than 4 cat, found 4"
    assert evaluate({"cat": seen(*[MIDDLE] * 4)}, asked({"class": "cat", "count": 3})).correct, (
        "more are allowed"
    )
    assert evaluate({"cat": seen(MIDDLE), "dog": seen(*[MIDDLE] * 9)}, asked(CAT)).correct


def test_colors_of_the_most_certain_objects_only():
    red = asked({**CAT, "color": "red"})
    assert evaluate({"cat": seen(MIDDLE, colors=["red"])}, red).correct
    verdict = evaluate({"cat": seen(MIDDLE, MIDDLE, colors=["blue", "red"])}, red)
    assert verdict == (False, "expected 1 red cat, found 1 blue"), "the second one isn't checked"
    ranked = seen(MIDDLE, MIDDLE, colors=["blue", "red"], scores=[0.4, 0.8])
    assert evaluate({"cat": ranked}, red).correct, "by score, not by place"
    two = asked({"class": "cat", "count": 2, "color": "red"})
    assert evaluate({"cat": seen(*[MIDDLE] * 2, colors=["red", "red"])}, two).correct
    assert not evaluate({"cat": seen(*[MIDDLE] * 3, colors=["red", "blue", "red"])}, two).correct


def test_a_classifier_names_colors_where_the_detector_does_not():
    calls = []

    def colors(name, found):
        calls.append((name, len(found)))
        return ["red"] * len(found)

    objects = {"cat": seen(*[MIDDLE] * 3), "dog": seen(MIDDLE)}
    assert evaluate(objects, asked(DOG, {**CAT, "color": "red"}), colors).correct
    assert calls == [("cat", 1)], "only where a color is asked for"
    assert not evaluate({}, asked({**CAT, "color": "red"}), colors).correct
    assert len(calls) == 1, "and only where there are enough objects"
    assert not evaluate(objects, asked({**CAT, "color": "red"})).correct, "no color is not red"


def test_positions():
    centers = {"left of": (1, 11), "right of": (21, 11), "above": (11, 1), "below": (11, 21)}
    for word, center in centers.items():
        record = asked(DOG, {**CAT, "position": [word, 0]})
        assert evaluate({"dog": seen(MIDDLE), "cat": seen(box(*center))}, record).correct
        opposite = box(*(22 - value for value in center))
        verdict = evaluate({"dog": seen(MIDDLE), "cat": seen(opposite)}, record)
        assert not verdict.correct
        assert verdict.reason.startswith(f"expected cat {word} target, found ")
        assert evaluate({"dog": seen(MIDDLE), "cat": seen(MIDDLE)}, record).reason.endswith("found neither")
        both = evaluate({"dog": seen(MIDDLE), "cat": seen(box(1, 1))}, record)
        assert both.correct == (word in ("left of", "above")), "one of two relations suffices"


def test_every_object_must_be_in_its_position():
    record = asked({"class": "dog", "count": 2}, {"class": "cat", "count": 2, "position": ["left of", 0]})
    dogs, left, right = seen(box(30, 10), box(20, 10)), box(1, 10), box(25, 10)
    assert evaluate({"dog": dogs, "cat": seen(left, left)}, record).correct
    assert not evaluate({"dog": dogs, "cat": seen(left, right)}, record).correct, "right of the second dog"
    assert evaluate({"dog": dogs, "cat": seen(left, left, right)}, record).correct, "the third isn't checked"


def test_positions_need_what_they_refer_to():
    record = asked({**DOG, "color": "red"}, {**CAT, "position": ["left of", 0]})
    objects = {"dog": seen(MIDDLE, colors=["blue"]), "cat": seen(box(1, 11))}
    assert evaluate(objects, record).reason == (
        "expected 1 red dog, found 1 blue; expected cat left of something that was not found"
    )
    assert evaluate({"dog": objects["dog"]}, record).reason.endswith("expected 1 cat, found 0")
    colored = asked(DOG, {**CAT, "color": "red", "position": ["left of", 0]})
    wrong = {"dog": seen(MIDDLE), "cat": seen(box(21, 11), colors=["blue"])}
    assert evaluate(wrong, colored).reason == "expected 1 red cat, found 1 blue", (
        "no position of what is wrong"
    )


# Scores


def scored(tag, *prompts):
    return [ScoredImage(tag, number, bool(bit)) for number, bits in enumerate(prompts) for bit in bits]


def test_the_overall_score_is_the_mean_of_tasks():
    images = [*scored("position", (1, 0), (0, 0)), *scored("single_object", (1, 1))]
    summary = summarize(images)
    assert list(summary.tasks) == ["single_object", "position"], "in GenEval's order"
    assert summary.tasks["position"].value == 0.25
    assert summary.overall.value == pytest.approx((1 + 0.25) / 2)
    assert summary.images.value == pytest.approx(3 / 6)
    assert summary.prompts.value == pytest.approx(2 / 3), "with at least one correct image"
    assert math.isnan(summary.tasks["single_object"].error), "one prompt says nothing about others"
    assert (summary.images.count, summary.prompts.count, summary.tasks["position"].count) == (6, 3, 4)


def test_standard_errors_take_prompts_as_independent():
    """With the same number of images per prompt, it is that of the mean of the prompts' means."""
    prompts = [(1, 1, 1, 1), (0, 0, 0, 0), (1, 1, 0, 1), (0, 1, 0, 0), (1, 1, 1, 1)]
    means = np.array([sum(bits) / 4 for bits in prompts])
    error = means.std(ddof=1) / math.sqrt(len(means))
    summary = summarize([*scored("a", *prompts), *scored("b", *prompts)])
    assert summary.tasks["a"].error == pytest.approx(error)
    assert summary.overall.error == pytest.approx(math.hypot(error, error) / 2)
    uneven = summarize(scored("a", (1,), (0, 0, 0), (1, 0)))
    spread = (1 - 1 / 3) ** 2 + (0 - 1) ** 2 + (1 - 2 / 3) ** 2  # of correct - share x images
    assert uneven.images.error == pytest.approx(math.sqrt(spread * 3 / 2) / 6)


# Records


def test_the_records_are_those_of_geneval():
    """The digest is that of evaluation_metadata.jsonl, the published file."""
    found = records()
    text = "".join(json.dumps(record) + "\n" for record in found)
    digest = "5c48e0813e812e3c373fa5c8ed07a8f0a483be30272b4427b0559c8048e67c13"
    assert hashlib.sha256(text.encode()).hexdigest() == digest
    tags = ("single_object", "two_object", "counting", "colors", "position", "color_attr")
    assert Counter(record["tag"] for record in found) == dict(
        zip(tags, (80, 99, 80, 94, 100, 100), strict=True)
    )
    counts = Counter(record["include"][0]["count"] for record in found if record["tag"] == "counting")
    assert counts == {2: 26, 3: 28, 4: 26}
    found[0]["tag"] = "changed"
    assert records()[0]["tag"] == "single_object", "every caller has records of its own"
    assert len(set(CLASSES)) == 80


def test_the_example_of_the_guide(capsys):
    page = (ROOT / "docs" / "geneval.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "evaluate(" in block]
    exec(code, {})
    assert "Verdict(correct=True" in capsys.readouterr().out
