"""Generated statements: true where a person would say so, as often as not, and in scenes like NLVR's."""

import itertools
from random import Random

import pytest
import torch

from experiments.data import nlvr_phrases, nlvr_templates
from experiments.data.nlvr import SIDE, shape_tokens
from experiments.data.nlvr_phrases import WHAT_BOXES_HAVE
from experiments.data.nlvr_scenes import SceneFacts, draw_scene
from experiments.data.nlvr_templates import EACH, TEMPLATES, generate
from tests.experiments.data.multimodal_files import shape

NAMES = {"y": "Yellow", "k": "Black", "b": "#0099ff"}
KINDS = {"c": "circle", "t": "triangle", "s": "square"}


def towers(*colours):
    """From the base up."""
    return [[shape(x=40, y=80 - 21 * level, colour=NAMES[c]) for level, c in enumerate(box)] for box in colours]


def scattered(*boxes):
    """Words of a kind, a colour, a size and two places."""
    found = ((part.split(":") for part in box.split()) for box in boxes)
    return [[shape(KINDS[k], int(x), int(y), int(size), NAMES[c]) for k, c, size, x, y in box] for box in found]


TOWERS = [towers("yk", "bbk", "y"), towers("kyb", "k", "kyky"), towers("bb", "b", "ybk")]
SCATTERED = [
    scattered("c:y:10:0:50 s:k:20:40:40", "t:b:30:70:70", "c:k:10:50:90 t:k:20:20:20 s:k:10:60:5"),
    scattered("c:y:10:50:50", "c:y:30:30:0 s:b:10:5:50", "s:b:20:80:30 t:b:10:10:10"),
    scattered("t:k:10:90:0 t:k:10:20:50", "t:k:20:20:80", "t:k:10:30:30 s:y:10:60:60"),
]
OF_TOWERS = {
    "existing_shapes": {"There is a black block": [1, 1, 1], "There is no yellow block": [0, 0, 0]},
    "counted_shapes": {
        "There are exactly two yellow blocks": [1, 0, 0],
        "There are at least four black blocks": [0, 1, 0],
        "There is a yellow block touching the wall": [1, 0, 1],
        "There are at most two black blocks": [1, 0, 1],
    },
    "counted_boxes": {
        "There are two towers with a black block at the top": [1, 0, 0],
        "There is a tower with a blue block at the base": [1, 0, 1],
    },
    "box_with_something": {
        "There is a tower with a yellow block over a black block": [0, 1, 0],
        "There is a tower with exactly two blocks": [1, 0, 1],
    },
    "some_of_the_boxes": {
        "One of the towers has a yellow block at the base": [0, 0, 1],
        "Each tower has a black block at the base": [0, 1, 0],
        "Two towers have a black block at the top": [1, 0, 0],
    },
    "all_or_none_touching": {
        "None of the yellow blocks are touching the wall": [0, 1, 0],
        "All yellow blocks are touching the wall": [1, 0, 1],
    },
    "colours_touching": {"There is only one color touching the wall": [0, 1, 0]},
    "compared_counts": {"There are more black blocks than blue blocks": [0, 1, 0]},
    "boxes_with_things": {"All yellow blocks are in the same tower": [0, 0, 1]},
    "one_end_of_towers": {
        "There is a black block as the top of a tower with three blocks": [1, 0, 1],
        "There are two yellow blocks as the base of a tower": [1, 0, 0],
        "The base of the two blocks tower is yellow": [1, 0, 0],
    },
    "tower_of_a_height": {"The tower with four blocks has a black block at the top": [0, 0, 0]},
    "stacked_blocks": {
        "There is a black block on a yellow block": [1, 1, 0],
        "There is no black block on a blue block": [0, 1, 0],
    },
    "tower_of_a_colour": {"There is a black tower": [0, 1, 0], "There is a blue tower with two blocks": [0, 0, 1]},
    "towers_alike": {
        "All towers have the same base color": [0, 1, 0],
        "There are at least two towers with the same height": [0, 0, 0],
        "Two towers have the same base color": [1, 0, 1],
    },
}
OF_SCATTERED = {
    "existing_shapes": {"There is a yellow circle": [1, 1, 0], "There is no blue triangle": [0, 0, 1]},
    "counted_shapes": {
        "There are two yellow circles": [0, 1, 0],
        "There is a circle touching the edge": [1, 1, 0],
        "There is a square not touching the edge": [1, 1, 1],
        "There is a triangle touching the bottom of a box": [1, 0, 1],
    },
    "counted_boxes": {"There is a box with only black items": [1, 0, 1]},
    "some_of_the_boxes": {"One box has only black items": [1, 0, 0]},
    "all_or_none_touching": {"None of the circles are touching the edge": [0, 0, 1]},
    "colours_touching": {"There is only one color touching the edge": [0, 0, 1]},
    "compared_counts": {"There are more squares than triangles": [0, 1, 0]},
    "boxes_with_things": {"There is a triangle in every box": [0, 0, 1]},
}
BOXES_OF_TOWERS = {
    "contents": {"two black blocks": [0, 1, 0], "no blue blocks": [2, 2, 0], "at least one yellow block": [2, 2, 1]},
    "two_contents": {"a yellow block and a black block": [1, 2, 1]},
    "number_of_items": {"exactly three blocks": [1, 1, 1], "less than three blocks": [2, 1, 2]},
    "number_and_more": {"two blocks of all three colors": [0, 0, 0], "two blocks with a black block on top": [1, 0, 0]},
    "colours_of_items": {
        "only blue blocks": [0, 0, 2],
        "only black and blue blocks": [1, 0, 0],
        "blocks of all three colors": [0, 1, 1],
    },
    "two_colours": {
        "more black blocks than yellow blocks": [1, 1, 0],
        "the same number of black and yellow blocks": [1, 2, 3],
    },
    "block_at_a_level": {
        "a black block at the top": [2, 1, 1],
        "a yellow block at the base": [2, 0, 1],
        "a blue block in the middle": [1, 0, 1],
        "a yellow block at the second place from the base": [0, 2, 0],
        "yellow as a base and black as a top block": [1, 0, 1],
    },
    "block_on_another": {
        "a yellow block over a black block": [0, 2, 0],
        "a black block below a yellow block": [0, 2, 0],
        "a black block on a yellow block": [1, 1, 0],
        "2 blue blocks stacked together": [1, 0, 1],
    },
}
BOXES_OF_SCATTERED = {
    "contents": {
        "a square not touching the edge": [2, 1, 1],
        "a circle touching the edge": [2, 1, 0],
        "a triangle touching the bottom of a box": [1, 0, 1],
        "a triangle touching a corner": [1, 0, 1],
        "a small circle": [2, 1, 0],
    },
    "number_of_items": {"more than two items": [1, 0, 0], "exactly two items": [1, 2, 2]},
    "colours_of_items": {"only black items": [1, 0, 2], "items of two different colors": [1, 1, 1]},
}
WHOLE = [(nlvr_templates, True, OF_TOWERS), (nlvr_templates, False, OF_SCATTERED)]
PARTS = [(nlvr_phrases, True, BOXES_OF_TOWERS), (nlvr_phrases, False, BOXES_OF_SCATTERED)]
CASES = [pytest.param(*kind[:2], *case, id=case[0]) for kind in WHOLE + PARTS for case in kind[2].items()]


@pytest.mark.parametrize(("module", "of_towers", "name", "expected"), CASES)
def test_hand_made_scenes(module, of_towers, name, expected):
    """Where a statement is true, or in how many boxes a part of one."""
    facts = SceneFacts(*shape_tokens(TOWERS if of_towers else SCATTERED), of_towers)
    rng, left = Random(0), dict(expected)
    for _ in range(20000):
        words, truth = getattr(module, name)(rng, facts)
        if words in left:
            assert (truth if truth.ndim == 1 else truth.sum(-1)).tolist() == left.pop(words), words
            if not left:
                return
    pytest.fail(f"never said: {list(left)}")


def test_every_template_has_a_case():
    assert {template.__name__ for template in TEMPLATES} == set(OF_TOWERS)
    assert {part.__name__ for part in WHAT_BOXES_HAVE} == set(BOXES_OF_TOWERS)


def test_words_alone_and_the_number_of_shapes_tell_little():
    found = generate(6000, 3)
    assert len(found.truth) == 6000
    whole = found.text < found.text[-1]  # the last may have been cut
    counts = torch.zeros(2, len(found.texts)).index_put_((found.truth.long(), found.text), torch.ones(6000), True)
    false, true = counts[:, : int(found.text[-1])]
    assert whole.sum() > 5900
    assert true.equal(false)
    assert 1 <= true.min() <= true.max() == EACH
    shapes = found.present.sum(-1)[found.scene]
    assert torch.corrcoef(torch.stack([shapes, found.truth]))[0, 1].abs() < 0.1


def test_the_same_seed_says_the_same(monkeypatch):
    monkeypatch.setattr(nlvr_templates, "POOL", 40)
    monkeypatch.setattr(nlvr_templates, "STATEMENTS", 20)
    first, again, other = generate(300, 1), generate(300, 1), generate(300, 2)
    assert first.texts == again.texts != other.texts
    assert first.tokens.equal(again.tokens)
    assert first.scene.equal(again.scene)
    assert not first.tokens.equal(other.tokens[: len(first.tokens)])


def test_scenes_are_like_those_of_nlvr():
    rng = Random(0)
    for box in itertools.chain(*(draw_scene(rng, True) for _ in range(20))):
        assert [(each["x_loc"], each["y_loc"]) for each in box] == [(40, 80 - 21 * i) for i in range(len(box))]
    boxes = list(itertools.chain(*(draw_scene(rng, False) for _ in range(100))))
    shapes = list(itertools.chain(*boxes))
    assert {len(box) for box in boxes} == set(range(1, 8))
    assert all(0 <= each[place] <= SIDE - each["size"] for each in shapes for place in ("x_loc", "y_loc"))
    at_the_bottom = sum(each["y_loc"] + each["size"] == SIDE for each in shapes) / len(shapes)
    assert 0.15 < at_the_bottom < 0.25, "in NLVR it is 0.195"
    for box in boxes:
        for one, other in itertools.combinations(box, 2):
            gaps = [max(a[p] - b[p] - b["size"] for a, b in ((one, other), (other, one))) for p in ("x_loc", "y_loc")]
            assert max(gaps) > 0
