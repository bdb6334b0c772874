"""Judges: an oracle, a noisy one, and an endpoint that is slow, broken or hostile."""

import contextlib
import http.server
import json
import threading
import time

import numpy as np
import pytest

from creditjax.process import judges
from creditjax.process.records import Record

RECORD = Record("0", "1 + 1 + 1", ("1 + 1 = 2", "2 + 1 = 4"), step_labels=(1, 0))


def many(count, steps=4):
    return [Record(str(i), f"p{i}", tuple("abcd"[:steps]), step_labels=(1.0,) * steps) for i in range(count)]


def adds_up(step):
    terms, total = step.split("=")
    return sum(map(int, terms.split("+"))) == int(total)


def test_an_oracle_says_what_it_knows():
    verdicts = judges.OracleJudge()([RECORD], draws=2)
    assert verdicts == [[judges.Verdict((1.0, 0.0))] * 2] and verdicts[0][0].first_error == 1
    sees = judges.OracleJudge(lambda record: [adds_up(step) for step in record.steps])
    assert sees([RECORD])[0][0].labels == (1.0, 0.0)
    with pytest.raises(ValueError, match="oracle: 1 labels of record '0', wanted 2"):
        judges.OracleJudge(lambda record: [1])([RECORD])


def test_noise_has_the_rate_of_its_dial_and_follows_the_content():
    records = many(600)
    for flip, missing in ((0.0, 0.0), (0.2, 0.1), (1.0, 0.0)):
        judge = judges.NoisyJudge(judges.OracleJudge(), flip, missing)
        labels = judges.label_signal(judge(records), 4)
        seen = labels[~np.isnan(labels)]
        assert abs(np.mean(np.isnan(labels)) - missing) < 0.03 and abs(np.mean(seen == 0) - flip) < 0.03
    judge = judges.NoisyJudge(judges.OracleJudge(), 0.5)
    assert judge(records[::-1], 2)[::-1] == judge(records, 2)
    longer = Record("other", "p0", (*"abcd", "e"), step_labels=(1.0,) * 5)
    assert judge([longer])[0][0].labels[:4] == judge(records[:1])[0][0].labels  # the prefix decides
    draws = judges.label_signal(judge(records, 2), 4)
    assert abs(np.mean(draws[..., 0] == draws[..., 1]) - 0.5) < 0.05  # draws are independent
    other = judges.label_signal(judges.NoisyJudge(judges.OracleJudge(), 0.5, seed=1)(records), 4)
    assert abs(np.mean(draws[..., 0] == other[..., 0]) - 0.5) < 0.05
    with pytest.raises(ValueError, match="flip: 1.5, wanted 0 to 1"):
        judges.NoisyJudge(judges.OracleJudge(), 1.5)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "no list"),
        ("[1, 0, 1]", "3 labels, wanted 2"),
        ("[1, 0] but then [1]", "1 labels"),
        ("[a, b]", "no JSON"),
        ("[1, NaN]", "label nan"),
        ("[1, 2]", "label 2"),
        ("[true, false]", "label True"),
        ('["1", "0"]', "label '1'"),
        ("[" * 200_000, "no list"),
        ("[1, " + "9" * 5000 + "]", "no JSON"),
    ],
)
def test_an_answer_that_cannot_be_read_is_missing(text, fault):
    verdict = judges.read_answer(text, 2)
    assert verdict.labels == (None, None) and fault in verdict.fault and verdict.first_error is None


def test_signals_of_verdicts():
    verdicts = [[judges.Verdict((1.0, 0.0)), judges.Verdict((None, 0.5))], [judges.Verdict((0.25,))]]
    np.testing.assert_array_equal(judges.error_signal(verdicts, 2)[0], [[0, np.nan], [1, np.nan]])
    np.testing.assert_array_equal(judges.error_signal(verdicts, 2)[1], [[1, np.nan], [np.nan, np.nan]])
    assert judges.label_signal(verdicts, 1).shape == (2, 1, 2) and judges.label_signal([], 3).shape == (0, 3, 0)


def answer(text):
    return 200, {}, json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()


@contextlib.contextmanager
def endpoint(respond):
    """A server on this machine. `respond(number, body, handler)` gives status, headers and body, or None when done."""
    seen, lock = [], threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                seen.append((self.path, dict(self.headers), body))
                number = len(seen)
            with contextlib.suppress(OSError):
                reply = respond(number, body, self)
                if reply is not None:
                    status, headers, content = reply
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", seen
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def test_an_endpoint_is_asked_and_its_answers_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("JUDGE_KEY", "secret")
    with endpoint(lambda number, body, _: answer(f"[1, {body['seed']}]")) as (url, seen):
        judge = judges.HTTPJudge(url, "m", key_variable="JUDGE_KEY", cache=tmp_path)
        verdicts = judge([RECORD, RECORD], draws=2)
        assert [[v.labels for v in row] for row in verdicts] == [[(1.0, 0.0), (1.0, 1.0)]] * 2
        assert len(seen) == 2, "the same request is sent once"
        path, headers, body = seen[0]
        assert path == "/v1/chat/completions" and headers["Authorization"] == "Bearer secret"
        assert body["model"] == "m" and json.loads(body["messages"][1]["content"])["steps"][1]["text"] == "2 + 1 = 4"
        again = judges.HTTPJudge(url, "m", key_variable="JUDGE_KEY", cache=tmp_path)
        assert again([RECORD], draws=2) == verdicts[:1] and len(seen) == 2
        assert not any("secret" in file.read_text() for file in tmp_path.iterdir())
        for file in tmp_path.iterdir():
            file.write_text("{")  # a broken entry is asked for again
        assert again([RECORD], draws=2) == verdicts[:1] and len(seen) == 4
        assert judges.HTTPJudge(url, "other", cache=tmp_path)([RECORD])[0][0].labels == (1.0, 0.0) and len(seen) == 5


def test_a_busy_endpoint_is_tried_again():
    def respond(number, *_):
        return [(429, {"Retry-After": "7"}, b""), (503, {}, b""), (200, {}, b"<html>"), answer("[1, 1]")][number - 1]

    waited = []
    with endpoint(respond) as (url, seen):
        judge = judges.HTTPJudge(url, "m", retries=3, backoff=1.0, sleep=waited.append)
        assert judge([RECORD])[0][0].labels == (1.0, 1.0)
    assert len(seen) == 4 and waited == [7.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "a body without"),
        (b"null", "a body without"),
        (b'{"choices": []}', "a body without"),
        (b'{"choices": [{"message": {"content": null}}]}', "content is NoneType"),
        (b"[" * 100_000, "a body without"),
        (b"x" * 300_000, "more than 200000 bytes"),
    ],
)
def test_what_is_no_answer_is_an_error_that_says_so(body, reason):
    with endpoint(lambda *_: (200, {}, body)) as (url, seen):
        judge = judges.HTTPJudge(url, "m", retries=1, backoff=0.0, max_bytes=200_000)
        with pytest.raises(judges.JudgeError, match=f"no answer, tried 2 times; last: .*{reason}"):
            judge([RECORD])
        assert len(seen) == 2
        missing = judges.HTTPJudge(url, "m", retries=0, max_bytes=200_000, on_failure="missing")([RECORD])[0][0]
        assert missing.labels == (None, None) and reason in missing.fault


@pytest.mark.parametrize("status", [301, 400, 401, 404])
def test_other_statuses_are_errors_at_once_and_do_not_show_the_key(status, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    headers = {"Location": "http://127.0.0.1:9/v1"}
    with endpoint(lambda *_: (status, headers, b"no: Bearer secret")) as (url, seen):
        with pytest.raises(judges.JudgeError, match=f"status {status}, wanted 200; it says 'no: Bearer") as error:
            judges.HTTPJudge(url, "m")([RECORD])
        assert len(seen) == 1 and "secret" not in str(error.value)


@pytest.mark.parametrize("trickle", [False, True])
def test_a_slow_endpoint_does_not_hold_us_up(trickle):
    over = threading.Event()

    def respond(number, body, handler):
        if trickle:
            handler.send_response(200)
            handler.end_headers()
        while not over.wait(0.05):
            if trickle:
                handler.wfile.write(b" ")
                handler.wfile.flush()

    with endpoint(respond) as (url, _):
        start = time.monotonic()
        judge = judges.HTTPJudge(url, "m", timeout=0.4, retries=1, backoff=0.0, on_failure="missing")
        verdict = judge([RECORD])[0][0]
        over.set()
        assert "no response within 0.4 s" in verdict.fault and time.monotonic() - start < 5.0


def test_a_dropped_connection_and_a_closed_port():
    def respond(number, body, handler):
        if number == 1:
            handler.connection.close()
            return None
        return answer("[0, 0]")

    with endpoint(respond) as (url, seen):
        assert judges.HTTPJudge(url, "m", backoff=0.0)([RECORD])[0][0].first_error == 0 and len(seen) == 2
    with pytest.raises(judges.JudgeError, match="tried once; last: ConnectionRefusedError"):
        judges.HTTPJudge(url, "m", retries=0)([RECORD])


def test_no_more_requests_at_a_time_than_allowed():
    active, most, lock = [0], [0], threading.Lock()

    def respond(*_):
        with lock:
            active[0] += 1
            most[0] = max(most[0], active[0])
        time.sleep(0.05)
        with lock:
            active[0] -= 1
        return answer("[1, 1, 1, 1]")

    with endpoint(respond) as (url, seen):
        verdicts = judges.HTTPJudge(url, "m", concurrency=3)(many(12))
    assert len(seen) == 12 and 2 <= most[0] <= 3 and all(row[0].first_error == -1 for row in verdicts)


def test_an_answer_cannot_do_more_than_judge():
    hostile = 'Ignore the format. {"cache": "../../x"} ' + "[" * 1000 + " [0, 1]"
    with endpoint(lambda *_: answer(hostile)) as (url, _):
        assert judges.HTTPJudge(url, "m")([RECORD])[0][0].labels == (0.0, 1.0)


def test_arguments_that_make_no_endpoint(monkeypatch):
    for url in ("ftp://host", "host/v1", "http://", "https://user:key@host/v1", "https://host/v1?key=1"):
        with pytest.raises(ValueError, match="url: wanted http"):
            judges.HTTPJudge(url, "m")
    for argument in ({"timeout": 0.0}, {"retries": -1}, {"concurrency": 0}, {"on_failure": "ignore"}):
        with pytest.raises(ValueError, match=next(iter(argument))):
            judges.HTTPJudge("https://host/v1", "m", **argument)
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with pytest.raises(ValueError, match="only sent over HTTPS"):
        judges.HTTPJudge("http://judge.example/v1", "m")([RECORD])
