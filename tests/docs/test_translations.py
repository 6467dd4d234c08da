"""The Chinese README says the same as the English one: commands, outputs, tables, links, options and sections."""

from __future__ import annotations

import re

from tests.docs import pages

ENGLISH, CHINESE = "README.md", "README.zh-CN.md"
EACH_OTHER = {ENGLISH, CHINESE}


def test_each_leads_to_the_other_at_the_top() -> None:
    assert pages.links(ENGLISH)[0] == CHINESE
    assert pages.links(CHINESE)[0] == ENGLISH


def test_blocks_of_code_are_the_same() -> None:
    assert pages.blocks(CHINESE) == pages.blocks(ENGLISH)


def test_sections_are_the_same() -> None:
    assert [one.level for one in pages.headings(CHINESE)] == [one.level for one in pages.headings(ENGLISH)]


def test_links_are_the_same() -> None:
    """By where they lead; the order of words in a sentence may be another."""
    english, chinese = ({*pages.links(page)} - EACH_OTHER for page in (ENGLISH, CHINESE))
    assert chinese == english


def test_tables_are_the_same() -> None:
    assert pages.tables(CHINESE) == pages.tables(ENGLISH)
    first = [
        [re.split(r" *\| *", line)[1] for line in pages.prose(page) if line.startswith("|")]
        for page in (ENGLISH, CHINESE)
    ]
    codes = [[cell for cell in cells if re.match(r"[`\d]", cell)] for cells in first]
    assert codes[0] == codes[1]


def test_names_in_the_text_are_the_same() -> None:
    assert {*pages.inline_code(CHINESE)} == {*pages.inline_code(ENGLISH)}


def test_they_are_short_enough_to_be_read() -> None:
    for page in (ENGLISH, CHINESE):
        assert len(pages.read(page).splitlines()) < 150
