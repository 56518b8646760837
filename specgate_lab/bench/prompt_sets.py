"""Prompts of three kinds: code to go on with, questions to answer, and texts to copy with changes."""

from collections.abc import Sequence

from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.terminal.prompts import Prompt
from specgate_lab.workload import BENCH_PROMPTS

_MODULE = '''\
class Account:
    """A bank account with a balance that is never negative."""

    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance += amount
        return self.balance

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance -= amount
        return self.balance
'''
_CONFIG = """\
DEFAULTS = {
    "host": "localhost",
    "port": 8080,
    "timeout": 30,
    "retries": 3,
    "debug": False,
}


def read_config(path):
    config = dict(DEFAULTS)
    with open(path) as file:
        for line in file:
            name, value = line.split("=", 1)
            config[name.strip()] = value.strip()
    return config
"""
_NOTES = """\
The meeting began at nine. Anna reported that the new pump was delivered on Tuesday and passed its first test. Bernd
said that the second pump would arrive three weeks late, because the supplier had lost the order. Carla asked whether
the old pump could run until then; Anna thought so, if its seals were changed. The group decided to change the seals on
Friday and to order a spare set. The next meeting is on the first of March."""
_LETTER = """\
Dear Mr Holm, thank you for your letter of 4 May. We are sorry that the bicycle reached you with a bent wheel and
without its bell. A new wheel was sent to you this morning by express, and the bell is in the same box. You do not have
to return the old wheel. If you would rather have your money back, please tell us within thirty days. Yours, P. Lind."""

CODE, CHAT, COPY = "code", "chat", "copy"
_QUESTIONS = (
    "Explain in a few sentences why the sky is blue.",
    "How do I reverse a list in Python? Show two ways.",
    "Write a short story about a fox who cannot find his way home.",
    "What is the difference between weather and climate?",
)
_COPIES = (
    f"Add type hints to this file and change nothing else. Answer with the whole file.\n\n{_MODULE}",
    f"Change the port to 9090 in this file. Answer with the whole file.\n\n{_CONFIG}",
    f"Summarise this text, in its own words where you can.\n\n{_NOTES}",
    f"Correct the spelling of this letter. Answer with the whole letter.\n\n{_LETTER}",
)
_EDITED = (
    f"{_MODULE}\n\n# The same class, with another name:\n\nclass Wallet:\n",
    f"{_CONFIG}\n\n# The same again, with another port:\n\nDEFAULTS = {{\n",
    f"def main():\n    print('''{_NOTES}''')\n\n\ndef again():\n    print('''The meeting",
    f"LETTER = '''{_LETTER}'''\n\nCOPY = '''Dear",
)
"""For a model that was never taught to answer: the copy is begun."""
SETS = (CODE, CHAT, COPY)


def prompt_set(name: str, request: GenerationRequest, tokenizer: TextTokenizer) -> list[Prompt]:
    """Return the prompts of a set: as messages of a chat, for a model that has a chat template."""
    if name == CODE:
        return [Prompt(request, text) for text in BENCH_PROMPTS[:4]]
    if not tokenizer.has_chat_template:
        return [Prompt(request, text) for text in (_EDITED if name == COPY else _QUESTIONS)]
    asked: Sequence[str] = _COPIES if name == COPY else _QUESTIONS
    return [
        Prompt(request, token_ids=tokenizer.encode_chat([{"role": "user", "content": question}])) for question in asked
    ]
