"""The page at `/`, in a real browser."""

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlencode

import pytest
from serve_server import TOKEN

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect
expect.set_options(timeout=60_000)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PAGE = Path(__file__).parents[2] / "src" / "ping_llm" / "serve" / "page"
# A browser that looks for updates, or for a GPU, takes longer to start.
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator["playwright.Browser"]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: make system-packages installs it")
    with playwright.sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield made
        made.close()


class Tab:
    """A tab that fails its test when the console has an error, or another host is asked."""

    def __init__(self, browser, server, width: int, token: bool):
        self.server = server
        self.context = browser.new_context(viewport={"width": width, "height": 900})
        self.context.set_default_timeout(60_000)
        if token:
            keep = f"sessionStorage.setItem('ping-llm token', '{TOKEN}')"
            self.context.add_init_script(f"if (location.protocol === 'http:') {keep}")
        self.troubles: list[str] = []
        #: Status of answers that a test makes happen; Chromium prints a line for each.
        self.meant: set[int] = set()
        self.page = self.context.new_page()
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("request", self._asked)

    def _said(self, message) -> None:
        if message.type in ("error", "warning") and not any(
            f"of {one}" in message.text for one in self.meant
        ):
            self.troubles.append(f"{message.text} {message.location}")

    def _asked(self, request) -> None:
        if not request.url.startswith((f"{self.server.url}/", "data:")):
            self.troubles.append(f"asked {request.url}")

    def go(self, view: str, **parameters: str) -> None:
        self.page.goto("about:blank")  # another fragment alone would not load the page again
        self.page.goto(f"{self.server.url}/#/{view}" + (f"?{urlencode(parameters)}" if parameters else ""))

    def answered(self):
        """The answer, when it is there."""
        expect(self.page.locator(".answer")).to_have_attribute("aria-busy", "false")
        return self.page.locator(".answer")

    def link(self) -> dict[str, list[str]]:
        return parse_qs(self.page.url.partition("?")[2])


@contextlib.contextmanager
def opened(browser, server, width: int = 1200, token: bool = True) -> Iterator[Tab]:
    tab = Tab(browser, server, width, token)
    try:
        yield tab
        assert tab.troubles == []
    finally:
        tab.context.close()


@pytest.fixture
def tab(browser, server) -> Iterator[Tab]:
    with opened(browser, server) as made:
        yield made


@pytest.fixture(scope="module")
def pair(server) -> dict[str, str]:
    """The most measured IPv4 pair, and the newest time of the data."""
    found = server.client.get("/v1/ends", params={"limit": 1, "version": 4}).json()
    src = found["ends"][0]["address"]
    dst = server.client.get("/v1/ends", params={"field": "dst", "src": src, "limit": 1}).json()["ends"][0]
    return {"src": src, "dst": dst["address"], "at": found["known"]["last_time"]}


def test_ask_by_keyboard_and_by_its_link(tab, server, pair):
    tab.go("ask")
    source = tab.page.get_by_label("Source", exact=True)
    source.press_sequentially(pair["src"][:4])
    option = tab.page.locator(f'datalist option[value="{pair["src"]}"]')
    expect(option).to_have_count(1)
    source.fill(pair["src"])
    tab.page.get_by_label("Destination").fill(pair["dst"])
    tab.page.get_by_label("Time").fill(pair["at"])
    tab.page.keyboard.press("Enter")
    answer = server.post("/v1/rtt", pair).json()
    guess = f"{answer['point']:.1f}\u00a0ms" if answer["point"] >= 10 else f"{answer['point']:.2f}\u00a0ms"
    expect(tab.page.locator("#best-guess")).to_have_text(guess)
    expect(tab.page.locator("#said")).to_contain_text(f"Best guess {guess}")
    rests = f"Rests on {answer['rests_on']['pair_measurements']} earlier measurements of this pair"
    expect(tab.page.locator(".basis")).to_contain_text(rests)
    methods = server.client.get("/v1/model").json()["methods"]
    expect(tab.page.locator("table.methods tbody tr")).to_have_count(1 + len(methods))
    assert {name: one[0] for name, one in tab.link().items()} == pair
    with opened(tab.context.browser, server) as other:
        other.page.goto(tab.page.url)
        expect(other.page.locator("#best-guess")).to_have_text(guess)
        expect(other.page.get_by_label("Source", exact=True)).to_have_value(pair["src"])


def test_the_slider_tells_the_probability_below_a_value(tab, server, pair):
    tab.go("ask", **pair)
    below = tab.page.get_by_label("RTT in ms")
    for limit in (0.0, 60.0, 90.0, 3000.0):
        below.fill(str(limit))
        truth = server.post("/v1/rtt", pair | {"below": limit}).json()["below"]["probability"]
        shown = tab.page.locator("#below-out").inner_text().split("= ")[1]
        share = float(re.search(r"[\d.]+", shown)[0]) / 100
        assert abs(share - truth) < 0.004
    before = tab.page.locator("#below-out").inner_text()
    tab.page.get_by_label("Below").press("Home")
    expect(tab.page.locator("#below-out")).not_to_have_text(before)


PING = """PING example.com (198.51.100.7) 56(84) bytes of data.
64 bytes from 198.51.100.7: icmp_seq=1 ttl=55 time=12.5 ms
64 bytes from 198.51.100.7: icmp_seq=2 ttl=55 time=13.5 ms
3 packets transmitted, 2 received, 33% packet loss, time 2004ms
"""


def test_a_pasted_context_is_used_and_travels_in_the_link(tab, server):
    tab.go("ask", src="192.0.2.1", dst="198.51.100.7")
    tab.answered()
    expect(tab.page.locator(".warning")).to_contain_text("wide on purpose")
    tab.page.get_by_text("Earlier measurements").click()
    box = tab.page.get_by_label("Paste or drop them here")
    box.fill(PING)
    tab.page.get_by_role("button", name="Ask", exact=True).click()
    expect(tab.page.locator(".basis")).to_contain_text("Rests on 3 earlier measurements of this pair")
    expect(tab.page.locator("details.context")).to_contain_text("3 measurements read (ping)")
    assert tab.link()["context"] == ["198.51.100.7,12.5\n198.51.100.7,13.5\n198.51.100.7,-1"]
    guess = tab.page.locator("#best-guess").inner_text()
    with opened(tab.context.browser, server) as other:
        other.page.goto(tab.page.url)
        expect(other.page.locator("#best-guess")).to_have_text(guess)
    tab.page.get_by_role("button", name="Remove").click()
    tab.page.get_by_role("button", name="Ask", exact=True).click()
    expect(tab.page.locator(".basis")).to_contain_text("no earlier measurement of this pair")


def test_a_file_or_a_dropped_text_is_read(tab):
    tab.go("ask")
    result = (
        '{"type":"ping","af":4,"timestamp":1704067200,"from":"85.212.133.33","src_addr":"10.0.0.2","sent":1,'
        '"rcvd":1,"dst_addr":"176.20.143.7","msm_id":1,"prb_id":2,"size":48,"result":[{"rtt":10.5}]}'
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        path.write_text(result)
        tab.page.locator("input[type=file]").set_input_files(path)
        # The browser reads the file when the page asks for it: it must still be there then.
        expect(tab.page.locator("details.context")).to_contain_text("1 measurement read (atlas)")
    expect(tab.page.get_by_label("Source", exact=True)).to_have_value("85.212.133.33")
    dropped = tab.page.evaluate_handle(
        "text => { const dropped = new DataTransfer(); dropped.setData('text', text); return dropped; }", PING
    )
    tab.page.locator("details.context").dispatch_event("drop", {"dataTransfer": dropped})
    expect(tab.page.locator("details.context")).to_contain_text("3 measurements read (ping)")


def test_a_text_that_is_no_measurement_is_explained(tab):
    tab.meant = {422}
    tab.go("ask", src="192.0.2.1", dst="198.51.100.7")
    tab.answered()
    tab.page.get_by_text("Earlier measurements").click()
    tab.page.get_by_label("Paste or drop them here").fill("hello")
    tab.page.get_by_role("button", name="Ask", exact=True).click()
    expect(tab.page.locator(".answer [role=alert]")).to_contain_text(
        "neither Atlas JSON nor the output of ping"
    )


def test_series_shows_results_unusual_ones_and_a_forecast(tab, server, pair):
    asked = {"src": pair["src"], "dst": pair["dst"], "limit": "50"}
    made = server.client.get("/v1/series", params=asked | {"forecast": "24"}).json()
    assert len(made["points"]) == 50
    assert len(made["forecast"]) == 48
    assert made["forecast"][0]["event_time"] > made["points"][-1]["event_time"]
    tab.go("series", **asked)
    chart = tab.page.locator(".plot")
    expect(chart.locator("canvas")).to_have_count(1)
    expect(tab.answered()).to_contain_text("Next day")
    tab.page.locator("summary", has_text="All points").click()
    rows = tab.page.get_by_role("region", name="All points").locator("tbody tr")
    expect(rows).to_have_count(50)
    chart.press("Home")
    told = tab.page.locator(".told")
    expect(told).to_contain_text(made["points"][0]["event_time"].replace("T", " ").replace("Z", ""))
    chart.press("End")
    expect(told).to_contain_text("forecast")
    unusual = sum(one["tail"] < 0.01 for one in made["points"])
    expect(tab.answered()).to_contain_text(f"{unusual} unusual result{'' if unusual == 1 else 's'}")
    tab.go("series", src=pair["src"], dst="192.0.2.99")
    expect(tab.page.locator(".warning")).to_contain_text("no measurement of this pair")


def test_rank_shows_the_chances_of_pasted_candidates(tab, server, pair):
    params = {"field": "dst", "limit": 3, "version": 4}
    candidates = [one["address"] for one in server.client.get("/v1/ends", params=params).json()["ends"]]
    tab.go("rank")
    tab.page.get_by_label("Source", exact=True).fill(pair["src"])
    tab.page.get_by_label("Candidates").fill(", ".join([*candidates, candidates[0]]))
    tab.page.get_by_label("Objective").fill("100")
    tab.page.get_by_role("button", name="Rank").click()
    body = {"src": pair["src"], "dst": candidates, "objective_ms": 100.0}
    made = server.post("/v1/rank", body).json()["candidates"]
    rows = tab.page.locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text(made[0]["dst"])
    expect(rows.first).to_contain_text(f"{100 * made[0]['fastest']:.1f}\u00a0%")
    expect(tab.page.locator("thead")).to_contain_text("P(< 100 ms)")


def test_map_colours_what_has_a_place_and_lists_the_rest(tab, server, pair):
    tab.go("map", src=pair["src"], at=pair["at"])
    made = server.client.get("/v1/map", params={"src": pair["src"], "at": pair["at"]}).json()
    sites = {(one["latitude"], one["longitude"]) for one in made["destinations"]}
    circles = tab.page.locator("circle.site")
    expect(circles).to_have_count(len(sites))
    circles.first.focus()
    expect(tab.page.locator(".told")).to_contain_text("median")
    networks = {one["network"] for one in made["destinations"]}
    expect(tab.page.locator("tbody tr")).to_have_count(len(networks))
    six = server.client.get("/v1/ends", params={"limit": 1, "version": 6}).json()["ends"][0]["address"]
    tab.go("map", src=six)
    expect(tab.answered()).to_contain_text("None of these destinations has a place")
    expect(tab.page.locator("circle.site")).to_have_count(0)
    expect(tab.page.locator("tbody tr").first).to_contain_text("::/32")


def test_model_says_what_answers(tab, server):
    about = server.client.get("/v1/model").json()
    tab.go("model")
    expect(tab.page.locator(".facts")).to_contain_text(f"{about['parameters']:,}")
    tab.page.get_by_text("Model card").click()
    expect(tab.page.locator("pre.card")).to_contain_text("decoder-only Transformer")


def test_what_is_wrong_is_said_at_its_field(tab, pair):
    tab.meant = {422}
    tab.go("ask", src=pair["src"], dst="198.51.100.7x")
    expect(tab.page.locator(".answer [role=alert]")).to_contain_text("neither an address nor a prefix")
    wrong = tab.page.get_by_label("Destination")
    expect(wrong).to_have_attribute("aria-invalid", "true")
    expect(wrong).to_be_focused()
    wrong.fill("")
    tab.page.get_by_role("button", name="Ask", exact=True).click()
    expect(tab.page.locator(".answer [role=alert]")).to_contain_text("Destination must be given")


def test_a_server_that_does_not_answer(tab, pair):
    tab.go("ask")
    tab.page.get_by_label("Source", exact=True).fill(pair["src"])
    tab.page.get_by_label("Destination").fill(pair["dst"])
    tab.context.set_offline(True)
    tab.page.get_by_role("button", name="Ask", exact=True).click()
    expect(tab.page.locator(".answer [role=alert]")).to_contain_text("The server does not answer")
    tab.troubles = [one for one in tab.troubles if "ERR_INTERNET_DISCONNECTED" not in one]


def test_examples_that_cannot_be_read_are_left_out(tab):
    """The server may stop, or the network go, between the page's questions."""
    tab.page.route("**/v1/ends?field=dst*", lambda route: route.abort())
    with tab.page.expect_event("requestfailed"):
        tab.go("ask")
    tab.page.wait_for_load_state("networkidle")
    expect(tab.page.locator(".view.ask .hint").first).to_be_visible()
    expect(tab.page.locator(".examples")).to_have_count(0)
    tab.troubles = [one for one in tab.troubles if "ERR_FAILED" not in one]


def test_a_busy_server_is_asked_again(tab, pair):
    tab.meant = {503}
    refused = []

    def busy(route) -> None:
        if refused:
            route.continue_()
            return
        refused.append(route)
        route.fulfill(status=503, headers={"Retry-After": "1"}, json={"error": "busy", "field": None})

    tab.page.route("**/v1/rank", busy)
    tab.go("rank", src=pair["src"], dst=pair["dst"])
    expect(tab.page.locator("tbody tr")).to_have_count(1)
    assert refused


def test_the_page_asks_for_a_token_and_forgets_it_with_the_tab(browser, server, pair):
    with opened(browser, server, token=False) as tab:
        tab.meant = {401}
        tab.go("ask", **pair)
        expect(tab.page.get_by_role("dialog")).to_be_visible()
        for token in ("wrong-token-of-the-tests", TOKEN):
            tab.page.get_by_label("Token", exact=True).fill(token)
            tab.page.get_by_role("button", name="Use the token").click()
            if token != TOKEN:
                expect(tab.page.locator("#token-why")).to_contain_text("does not know this token")
        expect(tab.page.locator("#best-guess")).to_contain_text("ms")
        expect(tab.page.get_by_role("dialog")).to_be_hidden()
        kept = tab.page.evaluate(
            "[Object.values(sessionStorage), Object.keys(localStorage), document.cookie]"
        )
        assert kept == [[TOKEN], [], ""]
        assert TOKEN not in tab.page.url


def test_every_view_fits_a_phone(browser, server, pair):
    with opened(browser, server, width=360) as tab:
        for view in ("ask", "series", "rank", "map", "model"):
            tab.go(view, **({} if view == "model" else pair))
            expect(tab.page.locator("h1")).to_be_visible()
            if view != "model":
                tab.answered()
            assert tab.page.evaluate("document.documentElement.scrollWidth") <= 360, view


def test_nothing_stands_inline_and_everything_is_local(server):
    html = (PAGE / "index.html").read_text()
    assert not re.findall(r"<script(?![^>]*\ssrc=)|<style|\son\w+=|\sstyle=|javascript:", html)
    for path in PAGE.rglob("*"):
        if path.suffix in (".html", ".css", ".js") and "vendor" not in path.parts:
            assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", path.read_text()), path
    response = server.client.get("/", headers={"Authorization": ""})
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    again = server.client.get("/", headers={"If-None-Match": response.headers["etag"]})
    assert again.status_code == 304
    assert server.client.get("/page/../run.py").status_code == 404
