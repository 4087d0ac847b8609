"""`tiltyard fleet` as people type it."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from own_certificate import write_certificate
from tiltyard.cli.fleet_table import fleet_table
from tiltyard.cli.main import main
from tiltyard.events.log import EventLog
from tiltyard.events.schema import ReplicasSet, WorkerAdded, WorkerDrained, WorkerRemoved
from tiltyard.fleet import probe
from tiltyard.fleet.membership import Members

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "gateway"))

from foreign_server import ForeignServer
from gateway_stage import served, staged, worker_spec
from stand_in_worker import StandIn


@pytest.fixture(scope="module")
def vllm() -> Iterator[str]:
    with served(ForeignServer("vllm-0.32.0").app) as url:
        yield url


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "tiltyard.toml").write_text(
        '[models.m]\nsource = "file:m.gguf"\n[identities.plum]\nmodel = "m"\n', encoding="utf-8"
    )
    return tmp_path


def run(home: Path, *arguments: str) -> Result:
    own = ["--data", str(home), "--config", str(home / "tiltyard.toml")]
    return CliRunner().invoke(main, ["fleet", *own, *arguments])


def told(home: Path) -> list[object]:
    with EventLog.open(home / "log.db", keys=home / "keys.db") as log:
        return [e.data for e in log.read(types=(WorkerAdded, WorkerDrained, WorkerRemoved, ReplicasSet))]


def test_a_server_is_added_as_what_its_replies_say(
    home: Path, vllm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILTYARD_BY", "ann")
    result = run(home, "add", vllm + "/", "--as", "quince")
    assert result.exit_code == 0, result.output
    name = f"vllm-{vllm.removeprefix('http://').replace(':', '-')}"
    assert f"{name} is vllm 0.32.0 at {vllm}; it serves" in result.output
    assert "quince: tiny, 512 tokens of context; declared, not verified" in result.output
    assert told(home) == [
        WorkerAdded(worker=name, url=vllm, engine="vllm", identities={"quince": "tiny"}, by="ann")
    ]
    again = run(home, "add", vllm, "--name", "other")
    assert again.exit_code == 1
    assert (
        f"{vllm} is in the fleet already, as {name} at {vllm}; it would count twice. `tiltyard fleet remove {name}` takes it out."
        in again.output
    )
    by_name = run(home, "add", vllm.replace("127.0.0.1", "localhost"), "--name", "other")
    assert f"is in the fleet already, as {name} at {vllm}" in by_name.output


def test_a_gateway_is_no_worker(home: Path, tmp_path: Path) -> None:
    """Added to itself, it would ask itself without end."""
    with (
        EventLog.open(tmp_path / "other.db", keys=tmp_path / "other-keys.db") as log,
        staged(log, tmp_path) as stage,
    ):
        for kind in ((), ("--kind", "openai")):
            refused = run(home, "add", stage.url, *kind)
            assert (refused.exit_code, "is a gateway of tiltyard" in refused.output) == (1, True), (
                refused.output
            )
    assert told(home) == []


def test_a_server_that_cannot_be_understood_is_told_from_one_that_is_not_there(
    home: Path, vllm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = run(home, "add", vllm.replace("http:", "https:"))
    assert "does not speak TLS" in plain.output
    assert "Write http:// instead of https://" in plain.output
    monkeypatch.setattr(probe, "PROBE_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:  # the kernel accepts, nobody answers
        silent = run(home, "add", f"http://127.0.0.1:{mute.getsockname()[1]}")
    assert "says nothing within 0 s" in silent.output
    assert "try again when its log says that it is ready" in silent.output


def test_a_certificate_that_nobody_vouches_for_is_said(home: Path, tmp_path: Path) -> None:
    certificate = write_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, tmp_path / "key.pem")
    with socket.create_server(("127.0.0.1", 0)) as plain:

        def shake_hands() -> None:
            with contextlib.suppress(OSError):
                for _ in range(2):  # it is asked whether it is a worker of ours, and then what it serves
                    with contextlib.suppress(ssl.SSLError):
                        context.wrap_socket(plain.accept()[0], server_side=True)

        shaking = threading.Thread(target=shake_hands)
        shaking.start()
        refused = run(home, "add", f"https://127.0.0.1:{plain.getsockname()[1]}")
        shaking.join()
    assert "its certificate is not trusted here" in refused.output
    assert "SSL_CERT_FILE" in refused.output


def test_a_worker_of_ours_elsewhere_is_added_as_what_it_is(home: Path, tmp_path: Path) -> None:
    """It has vLLM's metrics, and is no vLLM."""
    with served(StandIn(worker_spec("far", tmp_path)).app) as url:
        result = run(home, "add", url, "--name", "far")
        assert "far is tiltyard" in result.output, result.output
        assert "plain: plain, 2,048 tokens of context\n" in result.output
        refused = run(home, "add", url, "--as", "plum")
        assert "is a worker of tiltyard, whose identities have names of their own" in refused.output
    (added,) = told(home)
    assert isinstance(added, WorkerAdded)
    assert (added.engine, added.identities) == ("tiltyard", {"plain": "plain", "warm": "warm"})


def test_a_worker_is_drained_given_work_again_and_removed(home: Path, vllm: str) -> None:
    assert run(home, "add", vllm, "--name", "gpu").exit_code == 0
    assert "gpu gets nothing new within a second" in run(home, "drain", "gpu", "--why", "new driver").output
    assert "gpu is draining already; --undo gives it work again" in run(home, "drain", "gpu").output
    assert "gpu takes work again" in run(home, "drain", "gpu", "--undo").output
    assert "gpu is not draining" in run(home, "drain", "gpu", "--undo").output
    assert "answers under way end where they are" in run(home, "remove", "gpu").output
    assert (
        "no worker 'gpu' was added with `tiltyard fleet add`; known: none"
        in run(home, "remove", "gpu").output
    )
    members = Members()
    with EventLog.open(home / "log.db", keys=home / "keys.db") as log:
        members.look(log)
    assert (members.added, members.draining) == ({}, set())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("add", "http://127.0.0.1:9"), "nobody answers at http://127.0.0.1:9"),
        (
            ("add", "ftp://there"),
            "'ftp://there' is no place for a worker; it must be http://HOST:PORT, without a path",
        ),
        (("add", "http://there:80/v1"), "without a path (leave out /v1), user or password"),
        (("add", "http://ann:pw@there"), "is no place for a worker"),
        (("add", "VLLM", "--as", "plum=big"), "--as plum: the server has no model 'big'; it lists tiny"),
        (("add", "VLLM", "--as", "a b"), "--as 'a b' is no name"),
        (("add", "VLLM", "--name", "a/b"), "--name 'a/b' is no name"),
        (("add", "VLLM", "--key-env", "NO_SUCH_KEY"), "there is no environment variable NO_SUCH_KEY"),
        (("drain", "nobody"), "no worker 'nobody' ever served here; known: none"),
        (("scale", "nobody", "2"), "declares no identity 'nobody'; known: plum"),
        (("scale", "plum", "-1"), "No such option"),
        (("scale", "plum", "many"), "'many' is no number of workers; write 0 to 1,024, or auto"),
        (("status", "--url", "http://127.0.0.1:9", "--once"), "nothing answers at http://127.0.0.1:9"),
    ],
)
def test_what_cannot_be_done_is_one_line_with_the_way_out(
    home: Path, vllm: str, arguments: tuple[str, ...], said: str
) -> None:
    result = run(home, *(vllm if word == "VLLM" else word for word in arguments))
    assert result.exit_code != 0
    assert said in result.output
    assert "Traceback" not in result.output


def test_how_many_there_are_to_be_is_an_event(home: Path) -> None:
    assert run(home, "scale", "plum", "3", "--why", "fair").output == "plum: 3 workers, from now on\n"
    assert "as many workers as needed" in run(home, "scale", "plum", "auto").output
    three, any_ = told(home)
    assert isinstance(three, ReplicasSet)
    assert (three.identity, three.replicas, three.why) == ("plum", 3, "fair")
    assert isinstance(any_, ReplicasSet)
    assert any_.replicas is None


def test_the_workers_of_a_running_server_are_shown(tmp_path: Path) -> None:
    with (
        EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log,
        staged(log, tmp_path, workers=2) as stage,
    ):
        stage.registry.failed("stand-in-1", "broke", gone=True)
        stage.registry.workers[1].breaker.failed(stage.registry.workers[1].clock() + 60, "broke", gone=True)
        arguments = ["fleet", "status", "--url", stage.url]
        shown = CliRunner().invoke(main, [*arguments, "--once"])
        assert shown.exit_code == 0, shown.output
        assert "stand-in-0" in shown.output
        assert "plain, warm" in shown.output
        assert "tripped its circuit is open: broke" in " ".join(shown.output.split())
        assert "1 of 2 workers take work; 0 tokens unfinished" in shown.output
        lines = CliRunner().invoke(main, [*arguments, "--json"]).output.splitlines()
        assert [json.loads(line)["alive"] for line in lines] == [True, False]


def test_what_a_worker_is_called_is_text_and_no_markup() -> None:
    row = {
        "worker": "[red]w", "kind": "vllm", "version": "[/]", "identities": {"[bold]": "x"}, "verified": True,
        "alive": False, "state": "silent", "note": "[x]", "requests": 0, "unfinished_tokens": 0, "tokens_per_s": None,
        "waiting": 0, "kv_use": None, "answered_s_ago": None,
    }  # fmt: skip
    cells = [column._cells for column in fleet_table([row]).columns]
    assert cells[0] == [r"\[red]w"]
    assert cells[2] == [r"\[bold]"]
