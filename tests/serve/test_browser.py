"""The page at `/` in Chromium, as somebody at a keyboard meets it."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Page,
    Request,
    Route,
    expect,
    sync_playwright,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import linnet.torch
from linnet.serve.engine import PAGED, Engine
from linnet.serve.http import Server
from linnet.serve.text import Text

from ..models import tiny
from .served import serving

pytestmark = pytest.mark.slow

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
NEEDED = (
    "the tests of the page need Chromium: `apt-get install chromium` (as root), or name one that "
    "you have in LINNET_CHROMIUM=/path/to/chromium; LINNET_CHROMIUM=none leaves them out"
)
CHAT = "**/v1/chat/completions"
PATIENCE = 30_000  # ms, on a busy machine
expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    named = os.environ.get("LINNET_CHROMIUM")
    if named == "none":
        pytest.skip("LINNET_CHROMIUM=none: the page is not tested")
    found = named or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.fail(NEEDED, pytrace=False)
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=found, args=flags)
        yield browser
        browser.close()


@dataclass
class Visit:
    """A tab that shows the page, what it asked for, and what it complained of."""

    page: Page
    requests: list[Request] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def open(self) -> None:
        self.page.on("request", lambda request: self.requests.append(request))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on(
            "console",
            lambda said: self.complaints.append(said.text) if said.type == "error" else None,
        )
        self.page.goto("/")

    @property
    def asked(self) -> list[dict[str, Any]]:
        """The bodies that were posted."""
        return [one.post_data_json for one in self.requests if one.method == "POST"]

    def send(self, text: str) -> None:
        """Types a message and sends it, from wherever the focus is after loading or an answer."""
        expect(self.page.get_by_label("Your message")).to_be_focused()
        self.page.keyboard.insert_text(text)
        self.page.keyboard.press("Enter")

    def ended(self) -> None:
        """The answer is complete."""
        expect(self.page.get_by_role("button", name="Send")).to_be_visible()
        expect(self.page.locator(".running")).to_have_count(0)

    def answers(self, *chunks: dict[str, Any] | str, **response: Any) -> None:
        """From here on chats get these chunks as their stream."""

        def fulfil(route: Route) -> None:
            lines = (chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in chunks)
            body = "".join(f"data: {line}\n\n" for line in lines)
            route.fulfill(**{"body": body, "content_type": "text/event-stream", **response})

        self.page.unroute(CHAT)
        self.page.route(CHAT, fulfil)

    def says(self, *pieces: str) -> None:
        """From here on chats get this text, in these pieces."""
        chunks: list[dict[str, Any] | str] = [delta(piece) for piece in pieces]
        self.answers(*chunks, delta("", "stop"), "[DONE]")


def delta(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


def refusal(message: str, **more: Any) -> str:
    return json.dumps({"error": {"message": message, **more}})


KEY = "a key"
CONTEXT = 2048
CHATML = "{% for m in messages %}{{ m.role + ': ' + m.content + ' ' }}{% endfor %}"


@pytest.fixture(scope="module")
def text() -> Text:
    """A token for each character of ASCII; no token ends an answer."""
    vocabulary = {chr(k) if k > 32 else "Ġ": k - 32 for k in range(32, 127)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return Text(tokenizer, frozenset(), CHATML)


@pytest.fixture(scope="module")
def server(text: Text) -> Iterator[Server]:
    """`linnet serve` over a tiny random model, on a free port, with an API key."""
    sizes = {**tiny.SIZES, "Batch": 1, "MaxSeq": 2 * CONTEXT, "PageSize": 16}
    load = {"weights": tiny.weights(), "bindings": tiny.NAMES, "entries": PAGED}
    model = linnet.torch.load(tiny.FAMILY, generics=sizes, **load)
    with serving(Engine(model, text=text, rows=4, max_len=CONTEXT), text, api_key=KEY) as server:
        yield server


@pytest.fixture(scope="module")
def context(browser: Browser, server: Server) -> BrowserContext:
    """Where tabs are opened; each has its own conversation, and knows the key."""
    context = browser.new_context(viewport={"width": 1100, "height": 800}, base_url=server.address)
    context.set_default_timeout(PATIENCE)
    return context


@pytest.fixture
def stranger(context: BrowserContext) -> Iterator[Visit]:
    """A tab that does not know the key; the page is not open yet."""
    page = context.new_page()
    yield Visit(page)
    page.close()


@pytest.fixture
def visit(stranger: Visit) -> Visit:
    """A tab in which the page is open."""
    stranger.page.add_init_script(f"sessionStorage.setItem('linnet.key', {KEY!r})")
    stranger.open()
    return stranger


# --- with the model ---------------------------------------------------------------------------


def test_a_message_by_keyboard_is_answered_piece_by_piece(visit: Visit, server: Server) -> None:
    page = visit.page
    page.get_by_label("Max tokens").fill("40")
    page.get_by_label("Temperature").fill("0")  # no text that formatting makes shorter
    page.get_by_label("Your message").focus()
    page.evaluate(GROWTH)
    with slowly(server):
        visit.send("tell me")
        visit.ended()
    lengths = page.evaluate("lengths")
    assert len(lengths) > 3 and lengths == sorted(lengths)
    assert page.locator(".asked").inner_text() == "tell me"
    note = page.locator(".note").inner_text()
    assert re.fullmatch(
        r"[\d.]+ s to first\n[\d.]+ tokens/s\n14 in, 40 out\ntoken limit reached", note
    )
    # The focus is where it was: the next message is typed at once, and has the first before it.
    visit.send("more")
    visit.ended()
    said = visit.asked[-1]["messages"]
    assert [one["role"] for one in said] == ["user", "assistant", "user"]
    assert [said[0]["content"], said[2]["content"]] == ["tell me", "more"]
    paths = {one.url.removeprefix(server.address) for one in visit.requests}
    assert paths == {"/", "/v1/models", "/v1/chat/completions"}
    assert visit.complaints == []


GROWTH = """() => {
  window.lengths = [];
  const note = () => {
    const length = document.querySelector(".answer")?.textContent.length;
    if (length && lengths.at(-1) !== length) lengths.push(length);
  };
  const what = { childList: true, characterData: true, subtree: true };
  new MutationObserver(note).observe(document.querySelector("#turns"), what);
}"""


def test_stop_ends_the_request(visit: Visit, server: Server) -> None:
    page, worker = visit.page, server.worker
    for stop in (
        lambda: page.keyboard.press("Escape"),
        lambda: page.get_by_role("button", name="Stop").click(),
    ):
        with slowly(server):
            visit.send("talk on and on")
            expect(page.locator(".answer").last).not_to_be_empty()
            assert worker.open == 1
            stop()
            visit.ended()
        expect(page.locator(".note").last).to_contain_text("stopped")
        await_(lambda: worker.open == 0 and not worker.engine.busy)
        said = page.locator(".answer").last.text_content()
        assert said and len(said) < CONTEXT / 2
    assert visit.complaints == []


@contextmanager
def slowly(server: Server) -> Iterator[None]:
    """Steps take as long as those of a real model, so that a page can be watched."""
    engine: Any = server.worker.engine
    step = engine.step

    def slow() -> Any:
        time.sleep(0.02)
        return step()

    engine.step = slow
    try:
        yield
    finally:
        del engine.step


def test_the_end_stays_in_view_only_where_the_user_is_there(visit: Visit, server: Server) -> None:
    with slowly(server):
        the_end_stays_in_view(visit)


def the_end_stays_in_view(visit: Visit) -> None:
    page = visit.page
    page.set_viewport_size({"width": 360, "height": 400})
    bottom = "node => node.scrollHeight - node.scrollTop - node.clientHeight"
    scroll = page.get_by_role("region", name="Conversation")
    newest = page.get_by_role("button", name="Newest")

    def grown(letters: int) -> int:
        """How long the answer is, once that is so many letters."""
        await_(lambda: len(page.locator(".answer").text_content() or "") >= letters)
        return len(page.locator(".answer").text_content() or "")

    visit.send("x" * 300)
    length = grown(30)
    assert scroll.evaluate(bottom) < 2
    scroll.evaluate("node => { node.scrollTop = 0 }")
    expect(newest).to_be_visible()
    length = grown(length + 50)
    assert scroll.evaluate("node => node.scrollTop") == 0
    newest.click()
    expect(newest).to_be_hidden()
    grown(length + 100)
    assert scroll.evaluate(bottom) < 2
    page.keyboard.press("Escape")
    visit.ended()


def await_(condition: Callable[[], bool]) -> None:
    """Returns once it holds."""
    end = time.monotonic() + PATIENCE / 1000
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_text_goes_on(visit: Visit) -> None:
    page = visit.page
    page.get_by_label("Plain text").check()
    page.get_by_label("Max tokens").fill("5")
    page.get_by_label("Your message").focus()
    visit.send("Once **upon** ")
    visit.ended()
    page.keyboard.press("Enter")
    visit.ended()
    first = page.locator(".answer").first.text_content()
    assert first and visit.asked[-1]["prompt"] == "Once **upon** " + first
    assert page.locator(".asked").first.inner_html() == "Once **upon** "
    assert visit.complaints == []


def test_a_long_conversation_keeps_room_for_the_answer(visit: Visit) -> None:
    page = visit.page
    page.get_by_label("Max tokens").fill("5")
    page.get_by_label("Your message").focus()
    for k in range(3):
        visit.send(f"{k}" * 600)
        visit.ended()
    users = [one["content"][0] for one in visit.asked[-1]["messages"] if one["role"] == "user"]
    assert users == ["1", "2"] and len(visit.asked) == 3
    expect(page.locator(".left")).to_contain_text("the model no longer reads this")
    assert visit.complaints == []


def test_a_key_is_asked_for(stranger: Visit) -> None:
    page = stranger.page
    stranger.open()
    key = page.get_by_label("API key", exact=True)
    expect(key).to_be_focused()
    key.fill("no key")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("It did not accept the last one.")
    key.press("Escape")
    expect(page.get_by_role("banner")).to_contain_text("This server answers only with its API key.")
    page.get_by_label("Max tokens").fill("3")
    page.get_by_label("Your message").focus()
    stranger.send("hello")
    key.fill(KEY)
    page.keyboard.press("Enter")
    stranger.ended()
    expect(page.locator(".note")).to_contain_text("3 out")
    expect(page.get_by_role("banner")).to_contain_text("tiny")
    page.reload()
    expect(page).to_have_title("tiny · Linnet")


def test_a_refusal_is_in_the_servers_words(visit: Visit) -> None:
    page = visit.page
    page.get_by_label("Stop at").fill("a\nb\nc\nd\ne")
    page.get_by_label("Your message").focus()
    visit.send("hello")
    expect(page.locator(".trouble")).to_contain_text("stop")


def test_nothing_else_can_run(visit: Visit, server: Server) -> None:
    page = visit.page
    page.evaluate(
        """address => {
          const script = document.createElement("script");
          script.textContent = "window.ran = true";
          document.body.append(script);
          const image = new Image();
          image.src = address + "/health";
          document.body.append(image);
        }""",
        server.address,
    )
    await_(lambda: len(visit.complaints) == 2)
    assert all("Content Security Policy" in said for said in visit.complaints)
    assert page.evaluate("window.ran") is None


# --- with answers made up here ----------------------------------------------------------------


def test_text_of_the_model_stays_text(visit: Visit) -> None:
    page = visit.page
    attack = '<script>document.title="bad"</script><img src=x onerror="document.title=\'bad\'">'
    visit.says(attack, "\n\n```html\n", attack, "\n```\n- **", attack, "** `", attack, "`\n")
    visit.send(attack)
    visit.ended()
    assert page.locator("#turns").inner_text().count(attack) == 5
    assert page.locator("#turns :is(script, img)").count() == 0
    assert page.locator("pre code").inner_text() == attack
    assert page.locator("li strong").inner_text() == attack
    assert page.locator("li code").inner_text() == attack
    assert "bad" not in page.title()


def test_formatting_is_the_same_in_any_pieces(visit: Visit) -> None:
    page = visit.page
    text = (
        "A **bold** word, `code`, 2 * 3 * 4, a lone ` and **open\nsecond line\n\n"
        "- one\n  - **inner `x`**\n- two\n\n3. three\n4. four\n\n"
        "```py\nif x:\n\n    y = '**no**'\n```\nlast 1"
    )
    for size in (1, 3, len(text)):
        visit.says(*(text[k : k + size] for k in range(0, len(text), size)))
        visit.send("go")
        visit.ended()
        assert page.locator(".answer").last.evaluate(SHAPE) == [
            "P: A <STRONG: bold> word, <CODE: code>, 2 * 3 * 4, a lone ` and **open\nsecond line",
            "UL: <LI: one><LI: <STRONG: inner <CODE: x>>><LI: two>",
            "OL: <LI: three><LI: four>",
            "PRE: <CODE: if x:\n\n    y = '**no**'>",
            "P: last 1",
        ]


SHAPE = """answer => {
  const shape = node => node.nodeType === 3 ? node.data : `<${inner(node)}>`;
  const inner = node => `${node.tagName}: ${[...node.childNodes].map(shape).join("")}`;
  return [...answer.children].map(inner);
}"""


def test_thoughts_are_no_part_of_the_answer(visit: Visit) -> None:
    page = visit.page
    thought = {"choices": [{"delta": {"reasoning_content": "hm, <b>"}, "finish_reason": None}]}
    visit.answers(thought, thought, delta("yes"), delta("", "stop"), "[DONE]")
    for _ in range(2):
        visit.send("go")
        visit.ended()
    page.get_by_text("Thoughts").first.click()
    expect(page.get_by_text("hm, <b>hm, <b>").first).to_be_visible()
    assert visit.asked[-1]["messages"][1] == {"role": "assistant", "content": "yes"}


def test_right_to_left_and_emoji(visit: Visit) -> None:
    page = visit.page
    visit.says("שלום ", "`code`", " עולם 👩‍👩‍👧‍👦", "\n\nand English")
    visit.send("مرحبا")
    visit.ended()
    directions = "nodes => nodes.map(node => getComputedStyle(node).direction)"
    assert page.locator(".answer p").evaluate_all(directions) == ["rtl", "ltr"]
    assert page.locator(".asked").evaluate_all(directions) == ["rtl"]
    assert page.locator(".answer p").first.inner_text() == "שלום code עולם 👩‍👩‍👧‍👦"


def test_settings_are_sent(visit: Visit) -> None:
    page = visit.page
    visit.says("yes")
    page.get_by_label("System message").fill("Be brief.")
    page.get_by_label("Temperature").fill("1.3")
    page.get_by_label("Top-p").fill("0.5")
    page.get_by_label("Min-p").fill("0.1")
    page.get_by_label("Top-k").fill("40")
    page.get_by_label("Max tokens").fill("7")
    page.get_by_label("Seed").fill("11")
    page.get_by_label("Stop at").fill("END\n\\n\\n")
    page.get_by_text("Penalties").click()
    page.get_by_label("Repetition").fill("1.1")
    page.get_by_label("Presence").fill("0.5")
    page.get_by_label("Frequency").fill("-0.5")
    page.get_by_label("Your message").focus()
    visit.send("go")
    visit.ended()
    [sent] = visit.asked
    assert sent.pop("model")
    assert sent == {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "go"},
        ],
        "temperature": 1.3,
        "top_p": 0.5,
        "min_p": 0.1,
        "top_k": 40,
        "max_tokens": 7,
        "seed": 11,
        "stop": ["END", "\n\n"],
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    # They are still there when the page is loaded again, and so is the conversation.
    page.reload()
    expect(page.get_by_label("Seed")).to_have_value("11")
    expect(page.locator(".answer")).to_have_text("yes")
    # A value that cannot be is shown instead of sent.
    page.get_by_text("Penalties").click()
    page.get_by_label("Repetition").fill("0")
    page.get_by_text("Penalties").click()
    page.get_by_label("Your message").focus()
    visit.send("again")
    expect(page.get_by_label("Repetition")).to_be_focused()
    assert len(visit.asked) == 1
    assert visit.complaints == []


def test_what_goes_wrong_is_said(visit: Visit) -> None:
    page = visit.page
    trouble = page.locator(".trouble p")
    busy = {"status": 429, "headers": {"retry-after": "3"}, "content_type": "application/json"}
    visit.answers(**busy, body=refusal("64 wait already"))
    visit.send("hello")
    expect(trouble).to_have_text("The server is busy: 64 wait already (it asks to wait 3 s)")
    visit.answers(status=400, body=refusal("top_k is -3: it should be -1 or more"))
    page.get_by_role("button", name="Try again").click()
    expect(trouble).to_have_text("top_k is -3: it should be -1 or more")
    visit.answers(delta("one and "), json.loads(refusal("the engine has failed")))
    page.get_by_role("button", name="Try again").click()
    expect(trouble).to_have_text("The server could not answer: the engine has failed")
    expect(page.locator(".answer")).to_have_text("one and")
    visit.answers(delta("half an ans"))
    page.get_by_role("button", name="Try again").click()
    expect(trouble).to_have_text("The connection to the server broke off.")
    page.unroute(CHAT)
    page.route(CHAT, lambda route: route.abort("connectionrefused"))
    page.get_by_role("button", name="Try again").click()
    expect(trouble).to_have_text("The server does not answer. Is it still running?")
    # What was never answered is not part of what is asked next.
    visit.says("better")
    visit.send("once more")
    visit.ended()
    assert visit.asked[-1]["messages"] == [{"role": "user", "content": "once more"}]
    assert len(visit.asked) == 6


def test_what_no_longer_fits_is_left_out(visit: Visit) -> None:
    visit.says("first answer")
    visit.send("first")
    visit.ended()
    visit.says("second answer")
    visit.send("second")
    visit.ended()

    def small(route: Route) -> None:
        if len(route.request.post_data_json["messages"]) > 3:
            body = refusal("the prompt is too long", code="context_length_exceeded")
            route.fulfill(status=400, body=body)
        else:
            route.fallback()

    visit.says("third answer")
    visit.page.route(CHAT, small)
    visit.send("third")
    visit.ended()
    assert [one["content"] for one in visit.asked[-1]["messages"]] == [
        "second",
        "second answer",
        "third",
    ]
    expect(visit.page.locator(".left .asked")).to_have_text("first")


def test_the_last_message_can_be_edited_and_asked_again(visit: Visit) -> None:
    page = visit.page
    message = page.get_by_label("Your message")
    visit.says("one")
    visit.send("helo")
    visit.ended()
    page.keyboard.press("ArrowUp")
    expect(message).to_have_value("helo")
    page.keyboard.press("Escape")
    expect(message).to_have_value("")
    page.keyboard.press("ArrowUp")
    message.fill("hello")
    page.keyboard.press("Shift+Enter")
    page.keyboard.insert_text("you")
    visit.says("two")
    page.keyboard.press("Enter")
    expect(page.locator(".answer")).to_have_text("two")
    visit.ended()
    expect(page.locator(".asked")).to_have_text("hello\nyou")
    visit.says("three")
    page.get_by_role("button", name="Retry").click()
    expect(page.locator(".answer")).to_have_text("three")
    assert [sent["messages"] for sent in visit.asked[1:]] == 2 * [
        [{"role": "user", "content": "hello\nyou"}]
    ]
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "three"
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".turn")).to_have_count(0)
    page.get_by_role("button", name="Bring it back").click()
    expect(page.locator(".answer")).to_have_text("three")


def test_answers_are_told_to_screen_readers_in_sentences(visit: Visit) -> None:
    page = visit.page
    visit.says("One thi", "ng. Two", " things")
    visit.send("go")
    visit.ended()
    log = page.get_by_role("log")
    assert "".join(log.locator("p").all_text_contents()) == "One thing. Two things"


def test_every_control_has_a_name(visit: Visit) -> None:
    page = visit.page
    visit.says("answer")
    visit.send("go")
    visit.ended()
    page.get_by_text("Penalties").click()
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    controls = [node for node in nodes if focusable(node) and not node["ignored"]]
    roles = {node["role"]["value"] for node in controls}
    assert roles >= {"button", "textbox", "slider", "spinbutton", "radio"}
    assert len(controls) > 20
    nameless = [node["role"]["value"] for node in controls if not node["name"]["value"].strip()]
    assert nameless == []


def focusable(node: dict[str, Any]) -> bool:
    held = {one["name"]: one["value"].get("value") for one in node.get("properties", [])}
    return bool(held.get("focusable")) and node["role"]["value"] != "RootWebArea"


def test_text_can_be_told_from_its_ground(visit: Visit) -> None:
    page = visit.page
    visit.answers(delta("some `code`\n\n```\nx\n```\n\nand **more**"), json.loads(refusal("no")))
    visit.send("go")
    visit.ended()
    page.get_by_text("Penalties").click()
    grounds = set()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        ratios = page.evaluate(CONTRAST)
        assert len(ratios) > 25
        assert {text: ratio for text, ratio in ratios if ratio < 4.5} == {}
    assert len(grounds) == 2


CONTRAST = """() => {
  const channels = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = colour => {
    const [r, g, b] = channels(colour).map(c => c / 255)
      .map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const ground = node => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if ((channels(colour)[3] ?? 1) > 0) return colour;
    }
  };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement, text = walk.currentNode.data.trim();
    if (!text || !node.checkVisibility() || node.closest("script")) continue;
    const [a, b] = [light(getComputedStyle(node).color), light(ground(node))];
    found.push([text, (Math.max(a, b) + .05) / (Math.min(a, b) + .05)]);
  }
  return found;
}"""


def test_nothing_moves_where_that_is_not_wanted(visit: Visit) -> None:
    page = visit.page
    visit.says("answer")
    visit.send("go")
    visit.ended()
    moving = """() => {
      document.querySelector(".turn").classList.add("running");
      return getComputedStyle(document.querySelector(".answer p"), "::after").animationName;
    }"""
    assert page.evaluate(moving) == "wait"
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(moving) == "none"


def test_a_narrow_window_scrolls_only_down(visit: Visit) -> None:
    page = visit.page
    page.set_viewport_size({"width": 360, "height": 640})
    wide = "x" * 300
    visit.says(f"{wide}\n\n- `{wide}`\n\n```\n{wide} {wide}\n```\n")
    visit.send(wide)
    visit.ended()
    settings = page.get_by_role("button", name="Settings", exact=True)
    settings.press("Enter")
    expect(page.get_by_label("Seed")).to_be_hidden()
    settings.press("Enter")
    page.get_by_text("Penalties").click()
    for id in ("scroll", "settings"):
        fits = "node => node.scrollWidth <= node.clientWidth && node.clientWidth <= 360"
        assert page.locator(f"#{id}").evaluate(fits)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    cut = page.locator(".turn *").evaluate_all(
        """nodes => nodes.filter(node => !node.closest("pre, svg") && node.clientWidth)
             .filter(node => node.scrollWidth > node.clientWidth).map(node => node.outerHTML)"""
    )
    assert cut == []
    small = page.locator("button:visible").evaluate_all(
        "nodes => nodes.map(node => node.getBoundingClientRect()).filter(r => r.height < 24)"
    )
    assert small == []
