"""Parts of statements about generated scenes: which shapes, how many, and what a box may have.

What words mean was read off the labels of NLVR's dev and hidden parts: "two" is exactly two, "on", "over" and "above"
are directly above, "only black and blue" has some of both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from torch import Tensor

from experiments.data.nlvr import COLOUR_WORDS, COLOURS, SHAPES, SIZES
from experiments.data.nlvr_scenes import SCATTERED, TALLEST, SceneFacts

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven")
SIZE_WORDS = ("small", "medium", "big")
SIDES = ("left wall", "top", "right wall", "bottom")
ANY = 1000
"""No bound on a count."""

Clause = tuple[str, Tensor]
"""Words, and what they are true of: shapes [N, 3, 8], boxes [N, 3] or scenes [N]."""


@dataclass(frozen=True)
class Things:
    """Shapes, and what they are called."""

    noun: str
    where: Tensor
    tail: str = ""

    @property
    def plural(self) -> str:
        return f"{pluralised(self.noun)} {self.tail}".strip()

    @property
    def count(self) -> Tensor:
        """In a scene."""
        return self.where.flatten(1).sum(-1)


@dataclass(frozen=True)
class Quantity:
    """A count between two bounds."""

    words: str
    low: int
    high: int
    plural: bool

    def holds(self, count: Tensor) -> Tensor:
        return (count >= self.low) & (count <= self.high)

    def of(self, noun: str, tail: str = "") -> str:
        words = "an" if self.words == "a" and noun[0] in "aeiou" else self.words
        return f"{words} {pluralised(noun) if self.plural else noun} {tail}".strip()

    def there(self, noun: str, tail: str = "") -> str:
        return f"There {'are' if self.plural else 'is'} {self.of(noun, tail)}"


SOME, NONE = Quantity("a", 1, ANY, False), Quantity("no", 0, 0, False)


def pluralised(noun: str) -> str:
    return noun + ("es" if noun.endswith("x") else "s")


def draw_number(rng: Random, n: int) -> str:
    """As a digit or a word."""
    return rng.choice((str(n), NUMBERS[n], NUMBERS[n]))


def exactly(rng: Random, n: int) -> Quantity:
    words = rng.choice(("", "", "exactly ", "exactly ", "only "))
    return Quantity(words + draw_number(rng, n), n, n, n > 1)


def at_least(rng: Random, n: int) -> Quantity:
    return Quantity(f"{rng.choice(('at least', 'at least', 'atleast'))} {draw_number(rng, n)}", n, ANY, n > 1)


def draw_quantity(rng: Random, most: int) -> Quantity:
    n, draw = min(rng.choice((1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6)), most), rng.random()
    if draw < 0.3:
        return SOME
    if draw < 0.7:
        return exactly(rng, n)
    if draw < 0.85:
        return at_least(rng, n)
    if draw < 0.9:
        return Quantity(f"at most {draw_number(rng, n)}", 0, n, n > 1)
    if draw < 0.93:
        return Quantity(f"more than {draw_number(rng, n)}", n + 1, ANY, n > 1)
    if draw < 0.95 and n > 1:
        return Quantity(f"less than {draw_number(rng, n)}", 0, n - 1, True)
    return Quantity("no", 0, 0, rng.random() < 0.3)


# --- shapes ------------------------------------------------------------------------------------------


def draw_colour(rng: Random, facts: SceneFacts) -> Clause:
    colour = rng.randrange(len(COLOURS))
    return COLOUR_WORDS[colour], facts.colour[colour]


def draw_box(rng: Random, facts: SceneFacts) -> str:
    return rng.choice(("tower", "tower", "tower", "tower", "box")) if facts.towers else "box"


def draw_item(rng: Random, facts: SceneFacts) -> str:
    return rng.choice(("block", "block", "block", "item", "object") if facts.towers else ("item", "item", "object"))


def draw_things(rng: Random, facts: SceneFacts) -> Things:
    """Of a colour, a kind or both, sometimes of a size."""
    words, where, noun = "", facts.there, draw_item(rng, facts)
    if rng.random() < 0.8:
        words, where = draw_colour(rng, facts)
    if not facts.towers and (not words or rng.random() < 0.6):
        kind = rng.randrange(len(SHAPES))
        noun, where = SHAPES[kind], where & facts.kind[kind]
    if not facts.towers and rng.random() < 0.05:
        size = rng.randrange(len(SIZES))
        words, where = f"{SIZE_WORDS[size]} {words}".strip(), where & facts.size[size]
    return Things(f"{words} {noun}".strip(), where)


def draw_touched(rng: Random, facts: SceneFacts) -> Clause:
    """What shapes may touch, and which do: of a tower only the base touches a wall, that at the bottom."""
    draw = rng.random()
    if facts.towers or draw < 0.3:
        wall = ("the wall",) * 3 if facts.towers else ()
        return rng.choice(("the base", "the bottom edge", "the bottom of a box", *wall)), facts.sides[3]
    if draw < 0.75:
        return rng.choice(("the edge", "the edge", "an edge", "the wall", "the side", "a wall")), facts.wall
    if draw < 0.88:
        return rng.choice(("a corner", "the corner", "a corner of a box", "a box corner")), facts.corner
    side = rng.randrange(len(SIDES))
    return rng.choice(("the {} of a box", "{} of a box", "the {}")).format(SIDES[side]), facts.sides[side]


def draw_touching(rng: Random) -> str:
    return rng.choice(("touching", "touching", "closely touching"))


def draw_placed(rng: Random, facts: SceneFacts) -> Things:
    """Things, perhaps with what they touch or do not touch."""
    things, draw = draw_things(rng, facts), rng.random()
    if draw < (0.75 if facts.towers else 0.35):
        return things
    what, touching = draw_touched(rng, facts)
    if draw > 0.8 and not facts.towers:
        what = what.replace("the edge", rng.choice(("the edge", "any edge")))
        return Things(things.noun, things.where & ~touching, f"not touching {what}")
    return Things(things.noun, things.where & touching, f"{draw_touching(rng)} {what}")


# --- what a box may have: the words after "with" -----------------------------------------------------


def contents(rng: Random, facts: SceneFacts) -> Clause:
    things, quantity = draw_placed(rng, facts), draw_quantity(rng, 5)
    return quantity.of(things.noun, things.tail), quantity.holds(things.where.sum(-1))


def plain_contents(rng: Random, facts: SceneFacts) -> Clause:
    things, n = draw_things(rng, facts), rng.choice((1, 1, 2, 3))
    quantity = rng.choice((SOME, exactly(rng, n), at_least(rng, n)))
    return quantity.of(things.noun), quantity.holds(things.where.sum(-1))


def two_contents(rng: Random, facts: SceneFacts) -> Clause:
    (one, has_one), (other, has_other) = (plain_contents(rng, facts) for _ in range(2))
    return f"{one} and {other}", has_one & has_other


def number_of_items(rng: Random, facts: SceneFacts) -> Clause:
    n = rng.randint(1, TALLEST if facts.towers else SCATTERED)
    more = Quantity(f"more than {draw_number(rng, n)}", n + 1, ANY, n > 1)
    less = Quantity(f"less than {draw_number(rng, n)}", 0, n - 1, n > 1)
    quantity = rng.choice((exactly(rng, n), exactly(rng, n), exactly(rng, n), at_least(rng, n), more, less))
    return quantity.of(draw_item(rng, facts)), quantity.holds(facts.height)


def colours_of_items(rng: Random, facts: SceneFacts) -> Clause:
    items, shade = pluralised(draw_item(rng, facts)), rng.choice(("color", "colour"))
    (one, other), n = rng.sample(range(len(COLOURS)), 2), rng.choice((1, 2, 3))
    name, pair = COLOUR_WORDS[one], f"{COLOUR_WORDS[one]} and {COLOUR_WORDS[other]}"
    different = {
        1: rng.choice((f"only one {shade}", f"the same {shade}", f"one {shade} only")),
        2: f"{draw_number(rng, 2)} different {shade}s",
        3: f"all {draw_number(rng, 3)} {rng.choice(('', 'different '))}{shade}s",
    }
    kinds = [
        (rng.choice((f"only {name} {items}", f"{items} of only {name} {shade}")), facts.only([one])),
        (rng.choice((f"only {pair} {items}", f"{items} of only {pair} {shade}")), facts.only([one, other])),
        (f"{items} of {different[n]}", facts.colours == n),
    ]
    return rng.choice(kinds)


def two_colours(rng: Random, facts: SceneFacts) -> Clause:
    """Compared by their numbers."""
    one, other = rng.sample(range(len(COLOURS)), 2)
    (name, count), (another, fewer) = ((COLOUR_WORDS[c], facts.colour[c].sum(-1)) for c in (one, other))
    items = pluralised(draw_item(rng, facts))
    if rng.random() < 0.5:
        return f"the same number of {name} and {another} {items}", count == fewer
    return f"more {name} {items} than {another} {items}", count > fewer


def block_at_a_level(rng: Random, facts: SceneFacts) -> Clause:
    """Of a tower: its top, base, second block, or one between."""
    (name, colour), block = draw_colour(rng, facts), draw_item(rng, facts)
    if rng.random() < 0.1:
        other, top = draw_colour(rng, facts)
        has_both = (colour & facts.base).any(-1) & (top & facts.top).any(-1)
        return f"{name} as a base and {other} as a top {block}", has_both
    levels = [
        ("at the top", facts.top),
        ("at the top", facts.top),
        ("on top", facts.top),
        ("at the base", facts.base),
        ("at the base", facts.base),
        (rng.choice(("at the bottom", "at base", "touching the wall")), facts.base),
        (rng.choice(("in the middle", "in the middle of it")), facts.middle),
        ("at the second place from the base", facts.second),
    ]
    place, level = rng.choice(levels)
    return f"{rng.choice(('a', 'a', 'a', '1'))} {name} {block} {place}", (colour & level).any(-1)


def block_on_another(rng: Random, facts: SceneFacts) -> Clause:
    """Of a tower: one directly on another."""
    (name, colour), (another, other), block = draw_colour(rng, facts), draw_colour(rng, facts), draw_item(rng, facts)
    draw = rng.random()
    if draw < 0.25:
        together = rng.choice(("stacked together", "attached with each other", "on each other"))
        return f"{draw_number(rng, 2)} {name} {block}s {together}", facts.on(colour, colour).any(-1)
    if draw < 0.45:
        word = rng.choice(("below", "under", "beneath", "bellow"))  # which is how many write it
        return f"a {name} {block} {word} a {another} {block}", facts.on(other, colour).any(-1)
    word = rng.choice(("above", "over", "on", "on top of"))
    return f"a {name} {block} {word} a {another} {block}", facts.on(colour, other).any(-1)


def number_and_more(rng: Random, facts: SceneFacts) -> Clause:
    """So many items, and something about them."""
    of_towers = (block_at_a_level, block_at_a_level, block_on_another, colours_of_items)
    kind = rng.choice(of_towers if facts.towers else (contents, colours_of_items, plain_contents))
    (number, many), (more, has) = number_of_items(rng, facts), kind(rng, facts)
    if kind is colours_of_items and " of " in more:
        return f"{number} of {more.partition(' of ')[2]}", many & has
    return f"{number} {rng.choice(('and', 'with', 'having'))} {more}", many & has


WHAT_BOXES_HAVE: dict[Callable[[Random, SceneFacts], Clause], tuple[int, int]] = {
    contents: (3, 4),
    two_contents: (1, 2),
    number_of_items: (2, 2),
    number_and_more: (2, 1),
    colours_of_items: (2, 3),
    two_colours: (1, 1),
    block_at_a_level: (8, 0),
    block_on_another: (3, 0),
}
"""How often each is taken of towers, and of scattered shapes."""


def draw_clause(rng: Random, facts: SceneFacts) -> Clause:
    shares = [of_towers if facts.towers else scattered for of_towers, scattered in WHAT_BOXES_HAVE.values()]
    return rng.choices(list(WHAT_BOXES_HAVE), shares)[0](rng, facts)
