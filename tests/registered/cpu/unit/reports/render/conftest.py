"""Markdown as a renderer parses it."""

from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt


class Prose(HTMLParser):
    """The tags of a page, the number of cells in each row of its tables, and its text outside code, where GitHub looks
    for mentions."""

    def __init__(self, text) -> None:
        super().__init__()
        self.tags, self.rows, self.text, self.code = [], [], "", 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.code += tag == "code"
        if tag == "tr":
            self.rows.append(0)
        if tag in ("td", "th"):
            self.rows[-1] += 1

    def handle_endtag(self, tag):
        self.code -= tag == "code"

    def handle_data(self, data):
        self.text += "" if self.code else data


@pytest.fixture
def prose():
    """Markdown -> its tags and its text outside code; HTML inside it is kept, as GitHub does."""
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    return lambda text: Prose(parser.render(text))
