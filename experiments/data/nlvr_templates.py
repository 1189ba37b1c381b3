"""Statements about generated scenes, from templates: words in the style of NLVR's, and truth that is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from experiments.data.nlvr import BOXES, COLOUR_WORDS, COLOURS, shape_tokens
from experiments.data.nlvr_phrases import (
    NONE,
    NUMBERS,
    SOME,
    Clause,
    block_at_a_level,
    block_on_another,
    colours_of_items,
    draw_box,
    draw_clause,
    draw_colour,
    draw_item,
    draw_number,
    draw_placed,
    draw_quantity,
    draw_things,
    draw_touched,
    draw_touching,
    number_of_items,
    plain_contents,
    pluralised,
)
from experiments.data.nlvr_scenes import TALLEST, SceneFacts, draw_scene

POOL, STATEMENTS = 1024, 512
"""Scenes that are drawn together, and statements about them: each is about some of them, each scene is in several."""
EACH = 8
"""Of the scenes in which a statement is true, and of those in which it is false."""


def existing_shapes(rng: Random, facts: SceneFacts) -> Clause:
    """The easiest: a network that has not learned these does not begin to learn the others."""
    things, quantity = draw_things(rng, facts), rng.choice((SOME, NONE))
    return quantity.there(things.noun), quantity.holds(things.count)


def counted_shapes(rng: Random, facts: SceneFacts) -> Clause:
    things, quantity = draw_placed(rng, facts), draw_quantity(rng, 6)
    return quantity.there(things.noun, things.tail), quantity.holds(things.count)


def counted_boxes(rng: Random, facts: SceneFacts) -> Clause:
    quantity, (words, has) = draw_quantity(rng, BOXES), draw_clause(rng, facts)
    link = rng.choice(("with", "with", "with", "that has", "which has", "having", "that contains"))
    return quantity.there(draw_box(rng, facts), f"{link} {words}"), quantity.holds(has.sum(-1))


def box_with_something(rng: Random, facts: SceneFacts) -> Clause:
    """At least one, with a single property."""
    of_towers = (block_at_a_level, block_at_a_level, block_on_another) if facts.towers else ()
    words, has = rng.choice((plain_contents, number_of_items, colours_of_items, *of_towers))(rng, facts)
    return f"There is a {draw_box(rng, facts)} with {words}", has.any(-1)


def some_of_the_boxes(rng: Random, facts: SceneFacts) -> Clause:
    """One, two or all of the three."""
    (words, has), n = draw_clause(rng, facts), rng.choice((1, 1, 2, 3))
    box = draw_box(rng, facts) if facts.towers else rng.choice(("box", "box", "grey box", "grey square"))
    boxes = pluralised(box)
    starts = {
        1: (f"One of the {boxes} has", f"One of the {box} contains", f"One {box} has"),
        2: (f"Two of the three {boxes} have", f"Two {boxes} have"),
        3: (f"Each {box} has", f"All 3 {boxes} have", f"All {boxes} contain", f"Every {box} has"),
    }
    return f"{rng.choice(starts[n])} {words}", has.sum(-1) == n


def all_or_none_touching(rng: Random, facts: SceneFacts) -> Clause:
    things, (what, which) = draw_things(rng, facts), draw_touched(rng, facts)
    noun, touching = things.plural, (things.where & which).flatten(1).sum(-1)
    where, every = f"{draw_touching(rng)} {what}", (touching == things.count) & (touching > 0)
    kinds = [
        (f"None of the {noun} are {where}", touching == 0),
        (f"{noun} are not {where}", touching == 0),
        (f"All {noun} are {where}", every),
        (f"All the {noun} are {where}", every),
        (f"{noun} are {where}", every),
    ]
    return rng.choice(kinds)


def colours_touching(rng: Random, facts: SceneFacts) -> Clause:
    what, which = draw_touched(rng, facts)
    count = torch.stack([(colour & which).flatten(1).any(-1) for colour in facts.colour], -1).sum(-1)
    items, three = pluralised(draw_item(rng, facts)), draw_number(rng, 3)
    kinds = [
        (f"There is only one color touching {what}", count == 1),
        (f"Only two colors are touching {what}", count == 2),
        (f"All {three} different colors are touching {what}", count == 3),
        (f"{items} of all {three} colors are touching {what}", count == 3),
    ]
    return rng.choice(kinds)


def compared_counts(rng: Random, facts: SceneFacts) -> Clause:
    one, other = draw_placed(rng, facts), draw_things(rng, facts)
    kinds = [
        (f"There are more {one.plural} than {other.plural}", one.count > other.count),
        (f"There are less {one.plural} than {other.plural}", one.count < other.count),
        (f"There are as many {one.plural} as {other.plural}", one.count == other.count),
    ]
    return rng.choice(kinds)


def boxes_with_things(rng: Random, facts: SceneFacts) -> Clause:
    """All in one box, or some in each."""
    things, box = draw_things(rng, facts), draw_box(rng, facts)
    boxes = things.where.any(-1).sum(-1)
    kinds = [
        (f"All {things.plural} are in the same {box}", boxes == 1),
        (f"Only one {box} has {things.plural}", boxes == 1),
        (f"There is at least {draw_number(rng, 1)} {things.noun} in each {box}", boxes == BOXES),
        (f"There is a {things.noun} in every {box}", boxes == BOXES),
    ]
    return rng.choice(kinds)


def one_end_of_towers(rng: Random, facts: SceneFacts) -> Clause:
    """Blocks as the top or the base of a tower, perhaps of a given height."""
    (name, colour), (size, fits) = draw_colour(rng, facts), number_of_items(rng, facts)
    end, level = rng.choice((("top", facts.top), ("base", facts.base)))
    has, draw = (colour & level).any(-1), rng.random()
    if draw < 0.2:
        n = rng.randint(1, TALLEST)
        text = f"The {end} of {rng.choice(('the', 'a'))} {_blocks(n)} tower is {name}"
        return text, (has & (facts.height == n)).any(-1)
    quantity = draw_quantity(rng, BOXES)
    text = quantity.there(f"{name} block", f"as the {end} of a tower")
    text, has = (f"{text} with {size}", has & fits) if draw < 0.6 else (text, has)
    return text, quantity.holds(has.sum(-1))


def tower_of_a_height(rng: Random, facts: SceneFacts) -> Clause:
    n, (words, has) = rng.randint(1, TALLEST), rng.choice((block_at_a_level, block_on_another))(rng, facts)
    exactly = rng.choice(("", "exactly "))
    return f"The tower with {exactly}{_blocks(n)} has {words}", (has & (facts.height == n)).any(-1)


def stacked_blocks(rng: Random, facts: SceneFacts) -> Clause:
    words, has = block_on_another(rng, facts)
    some, bare = has.any(-1), words.removeprefix("a ")
    if bare == words:
        return f"There are {words}", some
    kinds = [(f"There is a {bare}", some), (f"There is at least one {bare}", some), (f"There is no {bare}", ~some)]
    return rng.choice(kinds)


def tower_of_a_colour(rng: Random, facts: SceneFacts) -> Clause:
    colour, n, quantity = rng.randrange(len(COLOURS)), rng.randint(1, TALLEST), draw_quantity(rng, BOXES)
    has, tail = facts.only([colour]), ""
    if rng.random() < 0.5:
        has, tail = has & (facts.height == n), f"with {rng.choice(('', 'only ', 'exactly '))}{_blocks(n)}"
    return quantity.there(f"{COLOUR_WORDS[colour]} tower", tail), quantity.holds(has.sum(-1))


def towers_alike(rng: Random, facts: SceneFacts) -> Clause:
    """How many share a height, or the colour of an end."""
    end, level = rng.choice((("top", facts.top), ("base", facts.base)))
    colours = torch.stack([(colour & level).any(-1).sum(-1) for colour in facts.colour], -1).amax(-1)
    heights = torch.stack([(facts.height == n).sum(-1) for n in range(1, TALLEST + 1)], -1).amax(-1)
    what, alike = rng.choice((("height", heights), (f"{end} color", colours)))
    kinds = [
        (f"There are at least two towers with the same {what}", alike >= 2),
        (f"There are only two towers which has the same {what}", alike == 2),
        (f"Two towers have the same {what}", alike == 2),
        (f"One tower has a different {what}", alike == 2),
        (f"All towers have the same {what}", alike == BOXES),
        (f"The {end}s of the three towers are the same in color", colours == BOXES),
        (f"The {end}s of the three towers are not the same in color", colours < BOXES),
    ]
    return rng.choice(kinds)


def _blocks(n: int) -> str:
    return f"{NUMBERS[n]} block{'s' * (n > 1)}"


Template = Callable[[Random, SceneFacts], Clause]
Templates = Mapping[Template, tuple[int, int]]
"""How often each is taken for towers, and for scattered shapes."""
EASY: Templates = {existing_shapes: (1, 1)}
SIMPLE: Templates = {
    existing_shapes: (1, 1),
    counted_shapes: (3, 3),
    box_with_something: (5, 5),
    one_end_of_towers: (2, 0),
}
TEMPLATES: Templates = {
    existing_shapes: (2, 2),
    box_with_something: (4, 4),
    counted_shapes: (6, 6),
    counted_boxes: (8, 8),
    some_of_the_boxes: (4, 4),
    all_or_none_touching: (2, 2),
    colours_touching: (1, 1),
    compared_counts: (1, 1),
    boxes_with_things: (1, 1),
    one_end_of_towers: (5, 0),
    tower_of_a_height: (2, 0),
    stacked_blocks: (3, 0),
    tower_of_a_colour: (1, 0),
    towers_alike: (1, 0),
}


@dataclass(frozen=True)
class Generated:
    """Scenes as tokens, statements, and examples: which statement of which scene, and whether it is true."""

    tokens: Tensor
    present: Tensor
    texts: list[str]
    scene: Tensor
    text: Tensor
    truth: Tensor


def generate(count: int, seed: int, templates: Templates = TEMPLATES) -> Generated:
    """As many examples. Each statement is true in half of its scenes, so that words alone tell nothing.

    Of three pools of scenes two are towers, as in NLVR.
    """
    rng, pick = Random(seed), torch.Generator().manual_seed(seed)
    pools, texts, rows = list[tuple[Tensor, Tensor]](), list[str](), list[Tensor]()
    found = 0
    while found < count:
        towers = len(pools) % 3 < 2
        pool = shape_tokens([draw_scene(rng, towers) for _ in range(POOL)])
        facts, shares = SceneFacts(*pool, towers), [share[not towers] for share in templates.values()]
        for template in rng.choices(list(templates), shares, k=STATEMENTS):
            words, truth = template(rng, facts)
            each = min(EACH, int(truth.sum()), int((~truth).sum()))
            if each:
                scenes = torch.cat([_some(which, each, pick) for which in (truth, ~truth)])
                numbers, right = torch.full_like(scenes, len(texts)), torch.arange(2 * each) < each
                rows.append(torch.stack([scenes + POOL * len(pools), numbers, right], -1))
                texts.append(written(rng, words))
                found += 2 * each
            if found >= count:
                break
        pools.append(pool)
    scene, text, truth = torch.cat(rows)[:count].unbind(-1)
    tokens, present = (torch.cat(parts) for parts in zip(*pools, strict=True))
    return Generated(tokens, present, texts, scene, text, truth.float())


def _some(which: Tensor, count: int, pick: torch.Generator) -> Tensor:
    rows = which.nonzero()[:, 0]
    return rows[torch.randperm(len(rows), generator=pick)[:count]]


def written(rng: Random, words: str) -> str:
    """As people do: with a capital and a full stop or without. Some of NLVR's statements lack the A they began with."""
    text = words[0].upper() + words[1:] if rng.random() < 0.7 else words[0].lower() + words[1:]
    if text.startswith(("All", "At")) and rng.random() < 0.5:
        text = text[1:]
    return text + "." * (rng.random() < 0.5)
