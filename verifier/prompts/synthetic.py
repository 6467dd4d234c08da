"""Prompts made by rule: long texts of an exact length in tokens, with something in them to find or to copy.

Everything is a function of a seed and of the counter it is given; nothing here talks to a server. Only `Random.random`
is drawn from, the one method whose sequence Python promises to keep, so that a seed means the same text everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Literal, TypeVar, get_args

from verifier.errors import PromptSetError
from verifier.records import Message, Prompt

T = TypeVar("T")
Count = Callable[[str], int]
"""Tokens of a text as the server would be sent it, its chat template and begin token included."""
Task = Literal["needle", "records", "copy"]
TASKS: tuple[Task, ...] = get_args(Task)
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Where the needle lies, as a share of the text."""
ALLOWED_ERROR = 0.01
"""A made prompt is at most this share of the asked length longer or shorter."""
AIMED_ERROR = 0.001
"""Fitting stops here; going on would cost a request for nothing."""
MOST_COUNTS = 25
"""Requests to the counter in each of the two steps of fitting. Ten in all are usual."""
LONG_MAX_TOKENS = 256
RECORDS = 8


def _list(words: str) -> tuple[str, ...]:
    return tuple(words.split())


NOUNS = _list("""
anchor apron atlas axle balcony banner barrel basin basket bell bench blanket boiler bolt bottle bridge broom brush
bucket button cabinet cable candle canvas carpet carriage cart chain chart chest chimney chisel clock coat coil compass
copper cork counter crane crate cup curtain desk dial door drawer drum engine fence file flag flask flute frame furnace
gate gauge glass globe glove grain gutter hammer handle harness hatch hinge hook hose inkwell iron jar kettle key kiln
ladder lamp lantern latch lathe ledger lens lever lid lock loom map mast mattress mill mirror mortar motor nail needle
net oar oven paddle pan parcel pedal pencil picture pillar pipe plank plate plough pocket pole press pulley pump quilt
rail rake ribbon ring roof rope rudder sack saddle sail saw scale scarf screen seal shelf shovel shutter sieve signal
sledge spade spindle spool spring stamp stove strap switch table tank tent thread ticket tile timber tin tower tray
trough trunk tube turbine valve vase violin wagon wall wedge wheel whistle window wire yarn
""")
ADJECTIVES = _list("""
amber ancient angular bent black blue blunt borrowed brass bright broad broken brown careful cheap clean coarse cold
common cracked crooked curved damp dark deep dented double dry dull dusty empty faded false fine flat foreign fragile
fresh frozen gilded grey hairline half-built heavy hidden hollow honest idle invisible jointed large late lean lead
light little local long loose lost low marked medium mended mild narrow neat new northern numbered odd old open orange
oval painted pale patched plain polished private quick quiet rare red repaired rough round rusty sealed second-hand
separate shallow sharp short silent silver simple single slow small smooth soft sound spare square stiff stolen straight
strange striped strong sudden thick thin tidy unsigned upright useful violet warm weathered wide wooden yellow
""")
VERBS = _list("""
adjusted borrowed bought broke brought carried catalogued checked cleaned closed collected compared copied counted
covered delivered described divided drew emptied examined exchanged fastened filled found greased hid inspected kept
labelled left lent lifted listed loaded locked lost made marked measured mended moved named noticed numbered offered
opened ordered packed painted photographed placed planned polished praised raised received refused remembered rented
repaired replaced returned rolled sealed sent shipped showed signed sketched sold sorted stacked stamped stored stripped
studied swapped tested tied took traced traded trimmed turned unpacked unwound used valued washed weighed wound wrapped
""")
TRADES = _list("""
accountant apprentice archivist baker beekeeper boatman bookbinder brewer builder caretaker carpenter chemist clerk
clockmaker cook cooper customs-officer doctor driver electrician engraver farmer ferryman fisher forester gardener
geologist glazier guard harbour-master innkeeper inspector joiner judge librarian machinist mason mechanic merchant
messenger miller musician nurse optician painter pilot plumber porter postman potter printer sailor schoolteacher
shepherd shoemaker signalman smith stoker student surveyor tailor tanner teacher typist watchman weaver widow
""")
PLACES = _list("""
abbey academy aqueduct arsenal bakery bank barracks bathhouse boatyard brewery brickworks cannery canal cellar chapel
cinema courthouse dairy depot dockyard embassy factory fairground farm ferry-house fort foundry garrison gasworks grange
greenhouse hospital hostel inn island kitchen laboratory laundry library lighthouse market mill mine monastery museum
observatory orchard orphanage park pier prison quarry quay railway-yard ropewalk sawmill school seminary shipyard
slaughterhouse smithy stable station tannery theatre toll-house town-hall tram-shed vineyard warehouse waterworks
workshop
""")
SYLLABLES = _list(
    "bar bel bran cal cor dal dor ell fal far gar gol har hel ister jor kar kel lan lor mar mel mor nar nel "
    "or pel quen ral rin sal sel tal tor ul val ver wen yar zel"
)
ENDINGS = _list(
    "a ach ak and as by den do en er esk et eth ford gard ham holm ia in is ley mar mund o on ra rath stad ton us"
)
MONTHS = _list("January February March April May June July August September October November December")
ADVERBS = _list(
    "afterwards again carefully early eventually hastily late openly quickly quietly rarely secretly slowly soon twice "
    "unwillingly usually wrongly"
)


class Words:
    """Endless varied English from one seed: names, dates, codes, sentences. Each call draws anew."""

    def __init__(self, seed: int | str) -> None:
        self._random = Random(f"lossless {seed}")  # noqa: S311 - text, no secret

    def number(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included."""
        return low + int(self._random.random() * (high - low + 1))

    def pick(self, choices: Sequence[T]) -> T:
        return choices[int(self._random.random() * len(choices))]

    def name(self) -> str:
        """An invented name of a person or a place."""
        middle = self.pick(SYLLABLES) if self.number(0, 2) == 0 else ""
        return (self.pick(SYLLABLES) + middle + self.pick(ENDINGS)).capitalize()

    def date(self) -> str:
        return f"{self.number(1, 28)} {self.pick(MONTHS)} {self.number(1851, 1989)}"

    def hexadecimal(self, digits: int) -> str:
        return "".join(self.pick("0123456789abcdef") for _ in range(digits))

    def code(self) -> str:
        """Such as ``KD-4071-QX``: letters and digits that no model can guess."""
        letters = "ABCDEFGHJKLMNPQRSTUVWXYZ"
        first, last = ("".join(self.pick(letters) for _ in range(2)) for _ in range(2))
        return f"{first}-{self.number(1000, 9999)}-{last}"

    def thing(self) -> str:
        return f"{self.pick(ADJECTIVES)} {self.pick(NOUNS)}"

    def a_thing(self) -> str:
        thing = self.thing()
        return f"{'an' if thing[0] in 'aeio' else 'a'} {thing}"

    def some_things(self, low: int, high: int) -> str:
        """Such as ``217 benches``."""
        noun = self.pick(NOUNS)
        return f"{self.number(low, high)} {noun}{'es' if noun.endswith(('s', 'ch', 'sh', 'x')) else 's'}"

    def sentence(self) -> str:
        """One sentence of 12 to 40 words. There are over 10^12, so a text does not run into a loop."""
        who = f"the {self.pick(TRADES)} {self.name()}".replace("-", " ")
        where = f"the {self.pick(PLACES)} of {self.name()}".replace("-", " ")
        act = f"{self.pick(VERBS)} {self.some_things(2, 990)}"
        act_two = f"{self.pick(VERBS)} the {self.thing()}"
        forms: tuple[Callable[[], str], ...] = (
            lambda: f"On {self.date()} {who} {act} at {where} and {act_two} that belonged to {self.name()}.",
            lambda: (
                f"{who} wrote to {self.name()} that somebody at {where} had {act_two}, though the {self.thing()} "
                f"was still in its place."
            ),
            lambda: f"Because the {self.thing()} did not arrive before {self.date()}, {who} {act} instead.",
            lambda: (
                f"In the inventory of {where} {self.a_thing()} stands beside "
                f"{self.some_things(2, 400)}, valued at {self.number(11, 9800)} crowns by {who}."
            ),
            lambda: f"Nobody at {where} remembered why {who} {act_two}, but {self.name()} {act} in the same week.",
            lambda: (
                f"{self.a_thing()}, {self.a_thing()} and the {self.pick(NOUNS)} of {self.name()} were "
                f"{self.pick(VERBS)} {self.pick(ADVERBS)}, as {who} told the court on {self.date()}."
            ),
            lambda: f"When the {self.pick(NOUNS)} fell, {who} ran from {where} and {act_two}.",
            lambda: (
                f"{self.name()} paid {self.number(3, 950)} crowns for {self.a_thing()}; {who} thought that it was "
                f"{self.a_thing()} and {act}."
            ),
            lambda: f"Of the {self.some_things(12, 700)} in {where}, {who} {self.pick(ADVERBS)} {act}.",
            lambda: (
                f"The letter of {self.date()} mentions {self.a_thing()}, which {who} {self.pick(VERBS)} near {where}."
            ),
        )
        made = self.pick(forms)()
        return made[0].upper() + made[1:]

    def paragraph(self, sentences: int) -> str:
        return " ".join(self.sentence() for _ in range(sentences))


def make_long(tokens: int, seed: int, count: Count, *, task: Task | None = None, depth: float | None = None) -> Prompt:
    """One long prompt whose length is ``tokens`` within 1%, by ``count``.

    Args:
        tokens: length of the whole prompt, in tokens.
        seed: any whole number; it gives the text and, where they are left out, task and depth.
        count: tokens of a text in the server's own tokenizer. It is called about ten times with the whole text.
        task: ``needle`` asks for a code that is told once, ``records`` for eight numbered records that lie all over
            the text, ``copy`` for a marked passage word for word.
        depth: where in the text it lies, from 0 (the beginning) to 1; of no meaning for ``records``.

    Raises:
        PromptSetError: when the length is too short for the task or cannot be reached with this counter.
    """
    task = TASKS[seed % len(TASKS)] if task is None else task
    depth = DEPTHS[seed // len(TASKS) % len(DEPTHS)] if depth is None else depth
    if not 0 <= depth <= 1:
        raise PromptSetError(f"The depth {depth} is not between 0 and 1.", "0.5 is the middle of the text.")
    text = _fit(_Frame(task, depth, seed), tokens, count)
    place = () if task == "records" else (f"depth:{round(depth * 100)}",)
    return Prompt(
        id="-".join(("long", str(tokens), task, *(p.removeprefix("depth:") for p in place), str(seed))),
        category=task,
        language="en",
        text=text,
        # The same words in both forms: what was counted is what is sent, whichever the server takes.
        messages=(Message(role="user", content=text),),
        max_tokens=LONG_MAX_TOKENS,
        tags=(f"tokens:{tokens}", *place),
    )


def make_long_set(lengths: Iterable[int], seed: int, count: Count, *, each: int = len(TASKS)) -> Iterator[Prompt]:
    """``each`` prompts of every length, task after task at changing depths. Raises as `make_long`."""
    for tokens in lengths:
        for number in range(each):
            # The depth goes on with every prompt, not with every third one, so that few prompts meet several depths.
            depth = DEPTHS[number * 2 % len(DEPTHS)]
            yield make_long(tokens, seed + number, count, task=TASKS[number % len(TASKS)], depth=depth)


class _Frame:
    """A text around its task: any number of sentences, and single words at the end for the last few tokens."""

    def __init__(self, task: Task, depth: float, seed: int) -> None:
        self._words = Words(f"long text {seed}")
        self._padding = Words(f"long padding {seed}")
        self._sentences: list[str] = []
        self._extra: list[str] = []
        self._depth = depth
        secrets = Words(f"long task {seed}")
        self._hidden, self._head, self._question = _task(task, secrets)

    def compose(self, sentences: int, extra: int) -> str:
        """The whole prompt; the same arguments always give the same text."""
        while len(self._sentences) < sentences:
            self._sentences.append(self._words.sentence())
        while len(self._extra) < extra:
            self._extra.append(self._padding.pick(NOUNS))
        body = list(self._sentences[:sentences])
        for number, hidden in enumerate(self._hidden):
            share = self._depth if len(self._hidden) == 1 else (number + 0.5) / len(self._hidden)
            body.insert(min(len(body), round(share * sentences) + number), hidden)
        paragraphs = [" ".join(body[start : start + 7]) for start in range(0, len(body), 7)]
        if extra:
            paragraphs.append("Also on the list: " + ", ".join(self._extra[:extra]) + ".")
        return "\n\n".join((self._head, *paragraphs, self._question))


def _task(task: Task, words: Words) -> tuple[tuple[str, ...], str, str]:
    """What is hidden in the text, what stands before it and what is asked after it."""
    if task == "needle":
        thing, place = words.thing(), words.name()
        return (
            (f"The secret code of the {thing} in {place} is {words.code()}.",),
            "The following pages come from an archive. Somewhere in them a secret code is told.",
            f"Question: What is the secret code of the {thing} in {place}? Copy the sentence that tells it.\nAnswer:",
        )
    if task == "records":
        hidden = tuple(
            f"[Record {number}: {words.name()}; {words.thing()}; {words.code()}; {words.number(100, 99999)} crowns]"
            for number in range(1, RECORDS + 1)
        )
        return (
            hidden,
            f"The following pages come from an archive. {RECORDS} records in square brackets are spread over them.",
            f"Copy all {RECORDS} records in square brackets, in order and letter by letter, one a line.\nRecords:\n",
        )
    passage = words.paragraph(4)
    return (
        (f"<passage> {passage} </passage>",),
        "The following pages come from an archive. One passage in them stands between <passage> and </passage>.",
        "Copy the passage between <passage> and </passage> word for word, and nothing else.\nPassage:",
    )


def _fit(frame: _Frame, tokens: int, count: Count) -> str:
    """The longest text of ``frame`` that has at most ``tokens``, found by counting whole texts.

    First whole sentences, then single words. Counting the pieces by themselves would be cheaper and wrong, since
    tokens may reach over their seams.
    """
    empty = count(frame.compose(0, 0))
    if empty > tokens:
        raise PromptSetError(
            f"A long prompt of {tokens} tokens is too short: the task alone takes {empty}.", "Ask for more tokens."
        )
    sentences, got = _most(lambda n: count(frame.compose(n, 0)), empty, tokens, rate=25.0)
    words, got = _most(lambda n: count(frame.compose(sentences, n)), got, tokens, rate=2.0)
    if tokens - got > tokens * ALLOWED_ERROR:
        raise PromptSetError(
            f"No text of {tokens} tokens was found; the nearest has {got}.", "Ask for another length or seed."
        )
    return frame.compose(sentences, words)


def _most(length: Callable[[int], int], empty: int, tokens: int, *, rate: float) -> tuple[int, int]:
    """The largest n with ``length(n) <= tokens``, and that length; ``rate`` is a first guess of tokens for each n.

    A search between a low and a high end that guesses by the rate seen so far. It gives up after `MOST_COUNTS`.
    """
    low, high, got = 0, tokens + 1, empty  # a sentence or word that takes no token does not exist
    for _ in range(MOST_COUNTS):
        if high - low <= 1 or tokens - got <= tokens * AIMED_ERROR:
            break
        guess = min(high - 1, low + max(1, int((tokens - got) / rate)))
        longer = length(guess)
        # No lower than half a token, or one short stretch would send the next guess far beyond the length.
        rate = max(0.5, (longer - got) / (guess - low))
        if longer <= tokens:
            low, got = guess, longer
        else:
            high = guess
    return low, got
