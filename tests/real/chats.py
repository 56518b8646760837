"""Twelve chats of different kinds, for a model that was taught to chat."""

from collections.abc import Sequence

Message = dict[str, str]

ORIGIN_QUESTION = "What is the capital of Taiwan. And why?"
"""What the experiment that this project grew from asked its models."""

_LOG_BOOK = """\
The lighthouse on the point was built in the spring of 1871, after two ships had been lost on the reef in one winter.
It is a plain round tower of grey stone, thirty-one metres high, with one room for oil at the foot, one for the keeper
in the middle, and the lamp at the top. The first keeper, a retired pilot, wrote a log every night: the wind, the
height of the sea, the ships that passed, and now and then a line about himself. From these books we know that the
lamp went out only three times in forty years. The first time a window broke in a storm and the wind blew out the
flame; he held a blanket against the hole until the morning. The second time a flock of geese, blinded by the light,
broke the glass. The third time nobody knows what happened: the page for that night has been cut out with a sharp
knife.

In 1911 the oil lamp was replaced by one that burned gas, and the keeper no longer had to climb the stairs every four
hours. His daughter, who had learned to read from the log books, became the keeper after him. She kept the books until
1946, in a smaller hand, and added what her father had left out: the names of the birds, the price of bread, and which
of the fishermen had been rude to her. Her last entry says that a cable is being laid, that the lamp will be electric,
and that no one will have to live on the point any more. She moved to the village and is said to have looked out of
her window every evening until the light came on.

Today the tower is a small museum. The log books lie under glass, and one page is turned each day, so that a visitor
who came every day would need more than ninety years to read them all. The missing page is there too: an empty sheet,
with the date written on it in pencil. The guides tell a different story about it every summer, and the visitors are
asked to vote for the one that they like best."""


def _asked(question: str) -> list[Message]:
    return [{"role": "user", "content": question}]


CHATS: dict[str, Sequence[Message]] = {
    "origin": _asked(ORIGIN_QUESTION),
    "prose": _asked("Describe a rainy morning in a small harbour town in one paragraph."),
    "story": _asked("Write the beginning of a story about a clockmaker who finds a clock that runs backwards."),
    "code": _asked("Write a Python function that returns the n-th Fibonacci number, with a docstring and an example."),
    "sql": _asked("Write an SQL query that lists the ten customers with the highest total of orders in 2023."),
    "list": _asked("Give me a numbered list of eight things to pack for a week of hiking in the mountains."),
    "arithmetic": _asked(
        "A train travels 180 km in 2 hours and 15 minutes. What is its average speed? Show each step."
    ),
    "french": _asked("Explique en français, en trois phrases, pourquoi le ciel est bleu."),
    "spanish": _asked("Escribe una carta corta a un amigo para invitarlo a una cena el sábado."),
    "system": [
        {"role": "system", "content": "You are a strict editor. Answer with the corrected text alone."},
        {"role": "user", "content": "Correct this: their going to the libary tomorow, becuase they has a exam."},
    ],
    "turns": [
        {"role": "user", "content": "What do bees make?"},
        {"role": "assistant", "content": "Bees make honey and wax."},
        {"role": "user", "content": "How do they make the first of these? Explain it to a child of six."},
    ],
    "long": _asked(
        f"{_LOG_BOOK}\n\nSummarise the text above in four sentences, and say what happened to the missing page."
    ),
}
