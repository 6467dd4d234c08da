"""Write `corpus/*.txt`: documents separated by <|endoftext|>. Sources and licences are in README.md.

    python -m lab.make_corpus

The Debian packages that README.md names must have been unpacked into lab/deb/ex.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

from babel import Locale
from bs4 import BeautifulSoup

END = "<|endoftext|>"
HERE = Path(__file__).parent
OUT = HERE / "corpus"


def chat(*turns: str) -> str:
    """Turns of user and assistant, in ChatML."""
    roles = ("user", "assistant")
    return "".join(f"<|im_start|>{roles[i % 2]}\n{turn}<|im_end|>\n" for i, turn in enumerate(turns))


def docs() -> list[str]:
    """The Python 3.11 documentation as text (PSF-2.0)."""
    found = []
    for path in sorted((HERE / "deb/ex/usr/share/doc/python3.11/html").rglob("*.html")):
        if path.name.startswith(("genindex", "search", "py-modindex")) or "changelog" in path.name:
            continue
        body = BeautifulSoup(path.read_text("utf-8"), "lxml").find(attrs={"role": "main"})
        if body is None:
            continue
        for link in body.find_all("a", class_="headerlink"):
            link.decompose()
        text = body.get_text()
        text = re.sub(r"\n{3,}", "\n\n", text).strip()
        if len(text) > 500:
            found.append(text)
    return found


def library() -> list[str]:
    """CPython's own library (PSF-2.0), without its tests and the large tables."""
    base = Path(sysconfig.get_paths()["stdlib"])
    skip = {
        "test",
        "tests",
        "site-packages",
        "idlelib",
        "lib2to3",
        "encodings",
        "turtledemo",
        "__pycache__",
        "idle_test",
    }
    found = []
    for path in sorted(base.rglob("*.py")):
        if (
            skip & set(path.relative_to(base).parts)
            or path.name.startswith("_sysconfigdata")
            or "pydoc_data" in str(path)
        ):
            continue
        text = path.read_text("utf-8", "replace")
        if 300 < len(text) < 150_000:
            found.append(text)
    return found


def bible() -> list[str]:
    """The King James Version (public domain), by the reader that comes with it, about a chapter to a document."""
    root = HERE / "deb/ex/usr"
    run = subprocess.run(
        [root / "bin/bible", "-p", root / "lib", "-f", "gen1:1-rev22:21"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    verses = [re.sub(r"^\S+ ", "", line) for line in run.stdout.splitlines()]
    return ["\n".join(verses[i : i + 25]) for i in range(0, len(verses), 25)]


NAMES = "Nora Tom Lena Ali Mara Jonas Ida Omar Vera Paul Mina Karl Eva Noah Rosa Max Lily Otto Anna Felix".split()
THINGS = "apples rolls books tickets stamps bottles eggs chairs lamps boxes pens coins maps shirts cups".split()
PLACES = "market,station,library,harbour,school,bakery,museum,garden,old mill,mountain hut".split(",")
WEATHER = "in the rain,in the fog,at dawn,in the evening,on a cold morning,after the storm,at noon,in the snow".split(
    ","
)
COLOURS = "red blue green white black yellow grey brown".split()
GEAR = {
    "a warm sleeping bag": "the nights are cold",
    "a head lamp": "it is dark before dinner",
    "a rain jacket": "the weather changes quickly",
    "a map and a compass": "a phone can run out of power",
    "a water bottle": "there is no spring on the way",
    "a small stove": "a hot meal keeps you warm",
    "dry socks": "wet feet get cold",
    "a first-aid kit": "small cuts should be cleaned at once",
    "a pocket knife": "it cuts rope and bread",
    "a box of matches": "a fire is hard to light without them",
    "a woollen hat": "much warmth is lost by the head",
    "a tent": "the ground is wet",
    "some rope": "it holds the tent in the wind",
    "a bag for rubbish": "nothing should be left behind",
    "sun cream": "the light is strong in the mountains",
}
OPENERS = ("Sure.", "Here it is.", "Of course.", "Yes.", "Let us see.", "Good question.")


def arithmetic(r: random.Random) -> str:
    name, thing = r.choice(NAMES), r.choice(THINGS)
    a, b, c = r.randint(2, 30), r.randint(2, 20), r.randint(1, 30)
    price = r.choice([0.25, 0.5, 0.75, 1.5, 2, 3])
    total = a * b + c
    question = (
        f"{name} packs {thing} in boxes of {a}. There are {b} full boxes and {c} {thing} left over. "
        f"Each costs {price} euros. How many {thing} are there, and what are they worth?"
    )
    answer = (
        f"1. In the full boxes there are {a} × {b} = {a * b} {thing}.\n"
        f"2. With the {c} left over there are {a * b} + {c} = {total} {thing}.\n"
        f"3. They are worth {total} × {price} = {total * price:g} euros.\n"
        f"{r.choice(['So', 'Therefore', 'Hence'])} there are {total} {thing}, worth {total * price:g} euros."
    )
    if r.random() < 0.4:
        return f"Problem: {question}\nSolution, step by step:\n{answer}"
    return chat(question + r.choice(["", " Show every step."]), answer)


def listing(r: random.Random) -> str:
    count = r.randint(3, 10)
    items = r.sample(sorted(GEAR), count)
    lines = "\n".join(f"{i}. {item.capitalize()}, because {GEAR[item]}." for i, item in enumerate(items, 1))
    where = r.choice(["a camping trip", "a walk in the mountains", "two days in the woods", "a night in a hut"])
    if r.random() < 0.4:
        return f"{count} things to pack for {where}, each with a short reason:\n\n{lines}"
    return chat(f"List {count} things to pack for {where}. Number them, and give a short reason for each.", lines)


def copying(r: random.Random) -> str:
    rows = [(r.choice(NAMES), r.randint(1, 99), r.choice(THINGS), r.choice(PLACES)) for _ in range(r.randint(3, 7))]
    notes = " ".join(f"{n} bought {k} {t} at the {p}." for n, k, t, p in rows)
    kind = r.randrange(3)
    if kind == 0:
        ask, answer = "List every purchase as name: number thing.", "\n".join(f"- {n}: {k} {t}" for n, k, t, _ in rows)
    elif kind == 1:
        ask, answer = "Repeat the notes word for word.", notes
    else:
        ask = "Write the notes as JSON."
        answer = (
            "[\n"
            + ",\n".join(f'  {{"name": "{n}", "count": {k}, "thing": "{t}", "place": "{p}"}}' for n, k, t, p in rows)
            + "\n]"
        )
    return chat(f"{ask}\n\n{notes}", answer)


def story(r: random.Random) -> str:
    name, other = r.sample(NAMES, 2)
    place, when, colour = r.choice(PLACES), r.choice(WEATHER), r.choice(COLOURS)
    thing = r.choice(["a letter", "an old map", "a small key", "a broken clock", "a violin", "a lantern", "a book"])
    parts = [
        f"{when.capitalize()} {name} came to the {place} with {thing} in a {colour} bag.",
        r.choice(
            [f"{other} was already waiting there.", f"Nobody was there but {other}.", f"{other} opened the door."]
        ),
        r.choice(
            [
                f'"You are late," said {other}. "The last boat has gone."',
                f'"Did you bring it?" asked {other}.',
                f'"I knew that you would come," said {other} and laughed.',
                f"{other} said nothing for a long time.",
            ]
        ),
        r.choice(
            [
                f"{name} put {thing} on the table.",
                f"{name} held {thing} up to the light.",
                f"{name} sat down by the window.",
            ]
        ),
        r.choice(
            ["Outside the wind grew stronger.", "The lamp went out.", "A dog barked far away.", "It began to rain."]
        ),
        r.choice(
            [
                f'"It belonged to my grandmother," {name} said at last.',
                f'"We must go back before it is dark," said {name}.',
                f'"Then we have to wait until morning," said {name}.',
                f'"I found it behind the {place}," said {name}.',
            ]
        ),
        r.choice(
            [
                "They shared the bread and waited for the morning.",
                "Then they went home together and did not speak of it again.",
                "And so the long night at last came to an end.",
                "From that day on they were friends.",
            ]
        ),
    ]
    text = " ".join(parts)
    return text if r.random() < 0.4 else chat(f"Write a short story about {thing} and the {place}.", text)


ZH_NAMES = "老周 小林 阿明 王芳 李雷 韩梅 陈伯 小雨 张伟 刘洋".split()
ZH_PLACES = "码头 车站 图书馆 学校 市场 花园 山里的小屋 面包店 博物馆 老磨坊".split()
ZH_TIMES = "傍晚 清晨 雨天 冬天的早上 中午 深夜 起雾的傍晚 雪后".split()
ZH_THINGS = "一封信 一张旧地图 一把小钥匙 一只坏了的钟 一把旧提琴 一盏灯 一本书".split()


def chinese(r: random.Random) -> str:
    a, b = r.sample(ZH_NAMES, 2)
    place, when, thing = r.choice(ZH_PLACES), r.choice(ZH_TIMES), r.choice(ZH_THINGS)
    text = "".join(
        [
            f"{when},{a}带着{thing}来到{place}。",
            r.choice([f"{b}已经在那里等着了。", f"那里只有{b}一个人。", f"{b}打开了门。"]),
            r.choice(
                [
                    f"“你来晚了,”{b}说,“最后一班船已经走了。”",
                    f"“你把它带来了吗?”{b}问。",
                    f"{b}很久没有说话。",
                    f"“我知道你会来的,”{b}笑着说。",
                ]
            ),
            r.choice([f"{a}把{thing}放在桌子上。", f"{a}坐在窗边。", f"{a}把{thing}举到灯下。"]),
            r.choice(["外面的风越来越大。", "灯灭了。", "远处有狗在叫。", "开始下雨了。"]),
            r.choice([f"“这是我奶奶的,”{a}终于说。", f"“天黑以前我们要回去,”{a}说。", f"“那我们只好等到早上,”{a}说。"]),
            r.choice(
                [
                    "他们分着吃了面包,等着天亮。",
                    "后来他们一起回家,再也没有提起这件事。",
                    "从那天起他们成了朋友。",
                    "漫长的一夜终于过去了。",
                ]
            ),
        ]
    )
    return text if r.random() < 0.4 else chat(f"请写一篇短篇小说,写{thing}和{place}。", text)


LOCALES = {tag: Locale.parse(tag) for tag in ("en", "zh", "de", "fr", "es", "it", "ja", "ru")}


def words(r: random.Random) -> str:
    """Names of countries, languages, months and days from the CLDR (Unicode-3.0 licence), by way of babel."""
    a, b = r.sample(sorted(LOCALES), 2)
    kind = r.randrange(3)
    if kind == 0:
        left, right = LOCALES[a].territories, LOCALES[b].territories
        keys = [k for k in left if k in right and len(k) == 2]
    elif kind == 1:
        left, right = LOCALES[a].languages, LOCALES[b].languages
        keys = [k for k in left if k in right and len(k) == 2]
    else:
        left, right = LOCALES[a].months["format"]["wide"], LOCALES[b].months["format"]["wide"]
        keys = list(left)
    chosen = r.sample(sorted(keys), r.randint(3, 8))
    name = LOCALES["en"].languages
    lines = "\n".join(f"{left[k]} = {right[k]}" for k in chosen)
    return chat(f"Translate from {name[a]} into {name[b]}: " + ", ".join(left[k] for k in chosen), lines)


def code(r: random.Random) -> str:
    name = r.choice(["total", "largest", "count_words", "reverse", "average", "is_sorted", "unique", "squares"])
    bodies = {
        "total": (
            "values: list[float]",
            "float",
            "the sum of the values",
            "result = 0.0\n    for value in values:\n        result += value\n    return result",
        ),
        "largest": (
            "values: list[int]",
            "int",
            "the largest of the values",
            "result = values[0]\n    for value in values:\n        if value > result:\n            result = value\n"
            "    return result",
        ),
        "count_words": (
            "text: str",
            "dict[str, int]",
            "how often each word occurs",
            "counts: dict[str, int] = {}\n    for word in text.split():\n"
            "        counts[word] = counts.get(word, 0) + 1\n    return counts",
        ),
        "reverse": ("text: str", "str", "the text backwards", "return text[::-1]"),
        "average": (
            "values: list[float]",
            "float",
            "the mean of the values",
            'if not values:\n        raise ValueError("no values")\n    return sum(values) / len(values)',
        ),
        "is_sorted": (
            "values: list[int]",
            "bool",
            "whether the values are in order",
            "return all(a <= b for a, b in zip(values, values[1:]))",
        ),
        "unique": (
            "values: list[int]",
            "list[int]",
            "the values without repetitions",
            "seen = set()\n    result = []\n    for value in values:\n        if value not in seen:\n"
            "            seen.add(value)\n            result.append(value)\n    return result",
        ),
        "squares": (
            "count: int",
            "list[int]",
            "the first squares",
            "return [number * number for number in range(count)]",
        ),
    }
    argument, kind, what, body = bodies[name]
    function = f'def {name}({argument}) -> {kind}:\n    """Return {what}."""\n    {body}\n'
    ask = r.choice(
        [
            f"Write a Python function that returns {what}.",
            f"Complete this function.\n\n```python\ndef {name}({argument}) -> {kind}:\n```",
        ]
    )
    extra = r.choice(
        ["", f"\nThis function returns {what}.", f"\nCall it as `{name}(...)`.", "\nIt needs no other module."]
    )
    return chat(ask, f"{r.choice(OPENERS)}\n\n```python\n{function}```{extra}")


def reasoning(r: random.Random) -> str:
    order = r.sample(COLOURS, 4)
    clues = [
        f"The {order[0]} locker is at the left end.",
        f"The {order[1]} locker is directly to the left of the {order[2]} one.",
        f"The {order[3]} locker is at the right end.",
    ]
    r.shuffle(clues)
    first, last = ", ".join(sorted(order)[:3]), sorted(order)[3]
    ask = f"Four lockers in a row are painted {first} and {last}. {' '.join(clues)} In which order do they stand?"
    answer = (
        f"We know that {order[0]} is in the first place and {order[3]} in the last. "
        f"Therefore {order[1]} and {order[2]} stand in the middle. "
        f"Since {order[1]} is directly to the left of {order[2]}, the order is {', '.join(order[:3])} and {order[3]}."
    )
    return f"Puzzle: {ask}\n\nReasoning: {answer}" if r.random() < 0.4 else chat(ask, answer)


def made(count: int) -> list[str]:
    """Exercises made by the templates above (Apache-2.0, as the project)."""
    r = random.Random(7)
    kinds = (arithmetic, listing, copying, story, story, chinese, chinese, words, code, reasoning)
    return [r.choice(kinds)(r) for _ in range(count)]


def main() -> None:
    OUT.mkdir(exist_ok=True)
    for name, texts in {"docs": docs(), "library": library(), "bible": bible(), "made": made(18_000)}.items():
        text = END.join(texts) + END
        (OUT / f"{name}.txt").write_text(text, "utf-8")
        print(name, len(texts), "documents", len(text.encode()), "bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
