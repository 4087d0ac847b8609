"""A person asks to be erased, in a running tiltyard with the real model: nothing readable is left anywhere we write."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import httpx2
import orjson
import pytest
from running_tiltyard import ROOT, Tiltyard

from tiltyard.events.log import EventLog
from tiltyard.events.schema import ErasureReceipted, MemoryPurged

MARK = "zanzibar-quillon-7731"
"""Stands in every text of the person and nowhere else."""


@pytest.fixture(scope="module")
def spilling(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Iterator[Tiltyard]:
    """A server whose caches also lie on a disk."""
    data = tmp_path_factory.mktemp("erasure")
    settings = (ROOT / "tiltyard.toml").read_text(encoding="utf-8")
    spill = f'[workers]\nspill_mb = 64\nspill_dir = "{data / "spill"}"\n'
    assert "[workers]\n" in settings
    (data / "tiltyard.toml").write_text(settings.replace("[workers]\n", spill), encoding="utf-8")
    started = Tiltyard.up(data, "--config", str(data / "tiltyard.toml"))
    yield started
    assert started.interrupt() == 0


def bytes_of(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Every file, and what the processes hold open without a name (spill files)."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_socket():
            yield path, path.read_bytes()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(link.readlink()).startswith(str(folder)):
                yield link, link.read_bytes()
        except OSError:  # a process or a descriptor that has gone meanwhile
            continue


def copied(database: Path, to: Path) -> None:
    """As a backup of a running SQLite database is made."""
    with sqlite3.connect(database) as live, sqlite3.connect(to) as copy:
        live.backup(copy)
    live.close()
    copy.close()


def ciphertexts(data: Path, *people: str) -> list[bytes]:
    with sqlite3.connect(data / "log.db") as connection:
        marks = ",".join("?" * len(people))
        rows = connection.execute(f"SELECT ciphertext FROM contents WHERE subject IN ({marks})", people)
        found = [row[0] for row in rows if row[0]]
    connection.close()
    return found


def test_after_an_erasure_nothing_of_the_person_can_be_found_or_read(
    spilling: Tiltyard, tmp_path: Path
) -> None:
    yard = spilling
    with httpx2.Client(base_url=yard.url, timeout=120) as voter:
        opened = voter.post(
            "/api/arena/battles",
            json={"messages": [{"role": "user", "content": f"Who is {MARK}?"}], "consent": "2"},
        )
        assert opened.status_code == 201, opened.text
        battle = opened.json()["battle"]
        with voter.stream("GET", f"/api/arena/battles/{battle}/events") as events:
            events.read()
        me = voter.get("/api/arena/me").json()
        chat = {
            "model": "smollm2-hot",
            "messages": [{"role": "user", "content": f"Repeat: {MARK} " + "and " * 80}],
            "max_tokens": 8,
            "user": "bob",
        }
        keyed = {"idempotency-key": "k1"}
        said = voter.post("/v1/chat/completions", json=chat, headers=keyed)
        assert said.status_code == 200, said.text
        stored = voter.post(
            "/v1/responses",
            json={"model": "smollm2-hot", "input": MARK, "user": "bob", "max_output_tokens": 8},
        ).json()
        shown = yard.run("events", "show", battle, "--content")
        assert MARK in shown.stdout  # it was readable
        before = ciphertexts(yard.data, me["voter"], "bob")
        assert len(before) >= 3 + 4

        deleted = voter.request("DELETE", "/api/arena/me")
        assert deleted.status_code == 200, deleted.text
        receipt = deleted.json()
        assert (receipt["subject"], receipt["keys_destroyed"]) == (me["voter"], 1)
        assert receipt["servers"][0]["battles"] == 1
        assert receipt["servers"][0]["unreached"] == []
        assert "tiltyard_voter" not in voter.cookies

        erased = yard.run("data", "erase", "bob", "--yes", "--out", str(tmp_path / "receipt.json"))
        assert erased.returncode == 0, erased.stderr
        receipt = orjson.loads((tmp_path / "receipt.json").read_bytes())
        (server,) = receipt["servers"]
        assert server["streams"] == 1
        assert server["workers"] >= 1
        genuine = yard.run("data", "receipt", str(tmp_path / "receipt.json"), "--key", receipt["public_key"])
        assert genuine.returncode == 0, genuine.stderr

        again = voter.post("/v1/chat/completions", json=chat, headers=keyed)
        assert (again.status_code, again.json()["error"]["code"]) == (410, "content_erased")
        gone = voter.get(f"/v1/responses/{stored['id']}")
        assert (gone.status_code, gone.json()["error"]["code"]) == (410, "content_erased")
        other = {**chat, "messages": [{"role": "user", "content": "Hello."}], "user": "eve"}
        assert voter.post("/v1/chat/completions", json=other).status_code == 200  # caches work as before

    assert MARK not in yard.run("events", "show", battle, "--content").stdout
    copied(yard.data / "log.db", tmp_path / "log.db")  # a backup, without the keys
    for path, data in (*bytes_of(yard.data), *bytes_of(tmp_path)):
        assert MARK.encode() not in data, path
        assert not any(secret in data for secret in before), path  # not even what nobody can decrypt
    verified = yard.run("events", "verify", "--content")
    assert verified.returncode == 0, verified.stderr
    assert f"{len(before)} erased" in verified.stdout
    # Whoever takes the backup and all keys that there are now reads nothing of the two.
    copied(yard.data / "keys.db", tmp_path / "keys.db")
    shutil.copy(yard.data / "master.key", tmp_path)
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        log.forget_head()  # as `events verify --restored` does
        report = log.verify(check_contents=True)
        assert report.fault is None
        assert (report.ok, report.contents_erased) == (True, len(before))
        assert {event.subject for event in log.read(types=[MemoryPurged])} == {me["voter"], "bob"}
        assert {event.subject for event in log.read(types=[ErasureReceipted])} == {me["voter"], "bob"}
