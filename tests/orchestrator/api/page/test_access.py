"""Who has no mouse, a small screen, weak eyes or a screen reader: the page is theirs, too."""

import pytest

from tests.orchestrator.api.http_serving import said_to
from tests.orchestrator.api.page.conftest import Doors, Visit
from tests.orchestrator.api.page.serving import slow
from tests.orchestrator.api.page.visitor import Visitor
from tests.support.loop_thread import LoopThread

REACHABLE = """[...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex="0"]')]
  .filter(one => !one.disabled && one.checkVisibility() && (one.type !== 'radio' || one.checked))"""
NUMBERED = f"{REACHABLE}.forEach((one, i) => one.dataset.number = i)"
FOCUSED = """() => {
  const at = document.activeElement, {top, left, width, height} = at.getBoundingClientRect();
  if (at === document.body) return null;
  const {outlineStyle, outlineWidth} = getComputedStyle(at);
  const onTop = document.elementFromPoint(left + width / 2, top + Math.min(height, 20) / 2);
  return [at.dataset.number, outlineStyle, outlineWidth, at === onTop || at.contains(onTop)];
}"""
WIDER = """width => [...document.querySelectorAll('body *')].filter(one => one.checkVisibility() &&
  !one.matches('.unseen, .skip') && one.getBoundingClientRect().right > width + 0.5).map(one => one.outerHTML)"""
BARS = ("open", "accepted", "gate", "drafted", "alone", "lost")
DRAW_ALL = """kinds => document.querySelectorAll('#strips svg').forEach(svg => kinds.forEach(kind => {
  const bar = document.createElementNS('http://www.w3.org/2000/svg', 'rect');
  bar.setAttribute('class', `bar-${kind}`);
  svg.append(bar);
}))"""
COUNT_SPOKEN = """() => {
  window.spoken = 0;
  const isSpoken = ({target}) => {
    const element = target.nodeType === Node.ELEMENT_NODE ? target : target.parentElement;
    const region = element?.closest('[role=status], [aria-live]');
    return region && region.getAttribute('aria-live') !== 'off' && !element.closest('[aria-hidden]');
  };
  const watched = new MutationObserver(changes => window.spoken += changes.filter(isSpoken).length);
  watched.observe(document.body, {subtree: true, childList: true, characterData: true});
}"""


@pytest.fixture
def url(doors: Doors) -> str:
    return doors(slow(0.005))[1]


def begin(visitor: Visitor) -> None:
    """Go by Tab to the first thing on the page."""
    visitor.page.focus(".skip")
    visitor.page.keyboard.press("Shift+Tab")
    visitor.page.keyboard.press("Tab")


def test_tab_comes_to_everything_and_shows_where_it_is(url: str, visit: Visit) -> None:
    visitor = visit(url).open().set(mode="text", race="both", max_tokens=10, gamma=4).generate("Hello").ended()
    page = visitor.page
    page.evaluate(NUMBERED)
    number = page.evaluate(f"{REACHABLE}.length")
    begin(visitor)
    assert page.evaluate("document.activeElement.className") == "skip"
    places = []
    for _ in range(number):
        places.append(page.evaluate(FOCUSED))
        page.keyboard.press("Tab")
    assert [int(place[0]) for place in places] == list(range(number))
    # A panel of either side and the replay are among them.
    assert number >= 20
    for _, style, width, is_on_top in places:
        assert (style, width) == ("solid", "2px")
        assert is_on_top


def test_keyboard_alone_makes_a_text_and_stops_it(doors: Doors, visit: Visit, loop: LoopThread) -> None:
    room, url = doors(slow())
    visitor = visit(url).open().set(mode="text", max_tokens=400)
    keyboard = visitor.page.keyboard
    begin(visitor)
    keyboard.press("Enter")
    visitor.until("document.activeElement.id === 'prompt'")
    keyboard.press("Control+A")
    keyboard.type("Hello")
    keyboard.press("Control+Enter")
    visitor.has_tokens(3)
    keyboard.press("Escape")
    visitor.ended()
    loop.run(room.freed())
    assert visitor.outcome() == "Stopped."
    assert said_to("Hello", 400).startswith(visitor.text())
    assert visitor.page.evaluate("document.activeElement.id") == "prompt"


def test_dialog_keeps_the_focus_and_gives_it_back(url: str, visit: Visit) -> None:
    visitor = visit(url).open()
    page = visitor.page
    page.focus("#key-open")
    page.keyboard.press("Enter")
    seen = set()
    for _ in range(8):
        seen.add(page.evaluate("document.activeElement.id || document.activeElement.textContent.slice(0, 6)"))
        page.keyboard.press("Tab")
    assert {"key", "Use it", "key-cancel"} <= seen
    # Between the last and the first it is the browser's own.
    assert not seen & {"key-open", "theme", "prompt", "send"}
    page.keyboard.press("Escape")
    assert not page.locator("#key-dialog").is_visible()
    assert page.evaluate("document.activeElement.id") == "key-open"


def test_phone_has_no_sideways_scrolling(url: str, visit: Visit) -> None:
    visitor = visit(url, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True).open()
    visitor.set(mode="text", race="both", max_tokens=80, gamma=4).generate("x" * 200).ended()
    page = visitor.page
    assert page.evaluate(WIDER, 360) == []
    assert page.evaluate("document.scrollingElement.scrollWidth") == 360
    visitor.panel().locator(".t").nth(7).tap()
    assert "probability" in visitor.panel().locator(".detail").inner_text()
    page.tap("#key-open")
    assert page.evaluate(WIDER, 360) == []
    page.tap("#key-cancel")
    for control in page.locator("button:visible, select:visible, summary:visible").all():
        assert control.evaluate("control => control.getBoundingClientRect().height") >= 24


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast(theme: str, url: str, visit: Visit) -> None:
    visitor = visit(url, color_scheme=theme).open()
    check_contrast(visitor.set(mode="text", race="both", max_tokens=80, gamma=4))
    visitor.generate("Hello")
    check_contrast(visitor.has_tokens(1))
    visitor.ended().page.locator(".t").nth(3).hover()
    visitor.page.evaluate(DRAW_ALL, BARS)
    visitor.page.evaluate(
        "['#state', '#why', '.notice'].forEach(one => document.querySelector(one).classList.add('bad'))"
    )
    check_contrast(visitor)
    visitor.page.click("#key-open")
    check_contrast(visitor)


def check_contrast(visitor: Visitor) -> None:
    """Fail where something that is shown is too pale."""
    contrasts = visitor.contrasts()
    least = {"text": 4.5, "edge": 3.0, "bar": 3.0}
    assert not [one for one in contrasts if one[2] < least[one[0]]]
    assert {kind for kind, _, _ in contrasts} == set(least)


def test_everything_has_a_name(url: str, visit: Visit) -> None:
    visitor = visit(url).open().set(mode="text", race="both", max_tokens=5).generate("Hello").ended()
    session = visitor.context.new_cdp_session(visitor.page)
    tree = session.send("Accessibility.getFullAXTree")["nodes"]
    named = {"button", "textbox", "combobox", "spinbutton", "radio", "link", "dialog", "figure"}
    nodes = [node for node in tree if node.get("role", {}).get("value") in named and not node["ignored"]]
    assert len(nodes) > 20
    assert not [node for node in nodes if not node.get("name", {}).get("value")]
    for title in ("With drafts", "Target alone", "What is sent"):
        assert visitor.page.get_by_role("group", name=title).count() == 1
    assert visitor.page.evaluate("document.documentElement.lang") == "en"
    assert len(visitor.page.query_selector_all("h1")) == 1


def test_a_text_is_not_read_aloud_token_by_token(url: str, visit: Visit) -> None:
    visitor = visit(url).open().set(mode="text", max_tokens=200, gamma=4)
    visitor.page.evaluate(COUNT_SPOKEN)
    visitor.generate("Hello").ended()
    assert len(visitor.tokens()) == 200
    assert 1 <= visitor.page.evaluate("window.spoken") <= 3
