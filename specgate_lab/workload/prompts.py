"""The prompts of ``bench`` and ``demo``: beginnings of Python code of different kinds, easy and hard to go on with."""

BENCH_PROMPTS = (
    'def read_lines(path, encoding="utf-8"):\n    """Return the lines of a text file without their line ends."""\n',
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "import os\nimport sys\nimport argparse\n\n\ndef main(argv=None):\n    parser = argparse.ArgumentParser(",
    "def binary_search(values, wanted):\n    low, high = 0, len(values) - 1\n    while low <= high:\n",
    "class TestParser(unittest.TestCase):\n    def setUp(self):\n        self.parser = Parser()\n\n    def test_",
    "def load(filename):\n    try:\n        with open(filename, 'rb') as file:\n            data = file.read()\n",
    "async def fetch(reader, writer, timeout=None):\n    loop = asyncio.get_running_loop()\n    future = loop.",
    '"""Utilities for working with dates and times."""\n\nimport datetime\n\n__all__ = [',
)

DEMO_PROMPTS = (
    'def count_words(text):\n    """Return a dictionary that maps each word of text to how often it occurs."""\n',
    "class Queue:\n    def __init__(self, maxsize=0):\n        self.maxsize = maxsize\n        self.items = []\n",
    "def main():\n    parser = argparse.ArgumentParser(description=__doc__)\n    parser.add_argument('-v',",
)


def mixed_prompts() -> list[str]:
    """Return as many prompts as ``BENCH_PROMPTS`` has, of mixed lengths: 1, 2, 4 or 8 of them in one.

    Each ends with another one's text, so that no two go on alike.
    """
    count, doubled = len(BENCH_PROMPTS), BENCH_PROMPTS * 2
    return ["\n".join(doubled[end - (1 << end % 4) : end]) for end in range(count + 1, 2 * count + 1)]
