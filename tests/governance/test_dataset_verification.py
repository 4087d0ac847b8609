"""Verification, revocation and lineage of releases, by the command line as people use it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from dataset_yard import allow, battle, consent, imported, row, rows_in, voter

from tiltyard.cli.main import main
from tiltyard.events.log import EventLog
from tiltyard.events.schema import FeedbackReviewed, PreferenceModelTrained
from tiltyard.governance.datasets.files import digest_of_file
from tiltyard.governance.datasets.manifest import FileNote, parse_manifest
from tiltyard.governance.datasets.release import PREDICATE
from tiltyard.governance.erasure import erase
from tiltyard.identity.canonical import canonical_json, digest_of, digest_of_json
from tiltyard.identity.signature import BadSignature, Signing, signed_statement, verify_statement

PLAN = """
name: votes
version: 1.0.0
licence: CC-BY-4.0
layout: preferences
sources: [arena, import/others]
files: [jsonl]
anonymity: {k: 2, columns: [language, turns]}
where: {votes: all}
"""


def run(data: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["data", *arguments, "--data", str(data)])


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory, and in it `out`, a release of four battles and six imported votes."""
    data = tmp_path_factory.mktemp("data")
    with EventLog.open(data / "log.db", keys=data / "keys.db") as log:
        for number in range(4):
            consent(log, voter(number))
            battle(log, number, voter(number))
        imported(log, data / "in.jsonl", [row(n, f"p{n % 3}") for n in range(6)])
        allow(log, "others", "publish")
    (data / "plan.yaml").write_text(PLAN, encoding="utf-8")
    done = run(data, "release", str(data / "plan.yaml"), "--output", str(data / "out"))
    assert done.exit_code == 0, done.output
    assert "votes-1.0.0: 10 rows of 10 records as preferences" in done.output
    return data


def test_a_release_is_verified_by_its_bytes_made_again(scene: Path) -> None:
    done = run(scene, "verify", str(scene / "out"))
    assert done.exit_code == 0, done.output
    assert "made again from the log: the same bytes, 10 rows" in done.output
    key = done.output.splitlines()[1].split()[0]
    assert run(scene, "verify", str(scene / "out"), "--files-only", "--public-key", key).exit_code == 0
    other = run(scene, "verify", str(scene / "out"), "--files-only", "--public-key", "00" * 32)
    assert (other.exit_code, "is signed by" in other.output) == (1, True)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("data/train-00000-of-00001.jsonl", "was changed"),
        ("README.md", "was changed"),
        ("manifest.json", "of another manifest.json"),
        ("signature.json", "signature"),
    ],
)
def test_one_changed_byte_is_found_and_named(scene: Path, tmp_path: Path, path: str, said: str) -> None:
    copy = tmp_path / "out"
    shutil.copytree(scene / "out", copy)
    data = bytearray((copy / path).read_bytes())
    place = data.index(b"1.0.0") if path == "manifest.json" else len(data) // 2
    data[place] = ord("2") if data[place] != ord("2") else ord("3")
    (copy / path).write_bytes(bytes(data))
    done = run(scene, "verify", str(copy), "--files-only")
    assert done.exit_code == 1
    assert said in done.output


@pytest.mark.parametrize("path", ["data/train-00001-of-00001.jsonl", "more/poison.parquet"])
def test_a_file_that_the_release_does_not_name_is_found(scene: Path, tmp_path: Path, path: str) -> None:
    """Loaders take every file of a folder: rows put beside ours would be read as ours."""
    copy = tmp_path / "out"
    shutil.copytree(scene / "out", copy)
    (copy / path).parent.mkdir(exist_ok=True)
    (copy / ".cache").mkdir()  # what loaders and version control keep is theirs
    (copy / ".cache" / "lock").touch()
    assert run(scene, "verify", str(copy), "--files-only").exit_code == 0
    (copy / path).write_text("{}")
    done = run(scene, "verify", str(copy), "--files-only")
    assert (done.exit_code, f"{path} is no file of the release" in done.output) == (1, True), done.output


def test_a_release_of_another_log_is_not_taken_for_ours(scene: Path, tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db"):
        pass
    done = run(tmp_path, "verify", str(scene / "out"))
    assert (done.exit_code, "was made from the log" in done.output) == (1, True)


def test_a_rewritten_row_is_found_even_under_the_logs_own_signature(scene: Path, tmp_path: Path) -> None:
    """Whoever holds the log's key can sign anything; the log does not give it again."""
    copy = tmp_path / "out"
    shutil.copytree(scene / "out", copy)
    rows = copy / "data" / "train-00000-of-00001.jsonl"
    rows.write_bytes(rows.read_bytes().replace(b'"winner":"model_a"', b'"winner":"model_b"', 1))
    manifest = parse_manifest((copy / "manifest.json").read_bytes(), "manifest.json")
    path = "data/train-00000-of-00001.jsonl"
    changed = FileNote(digest=digest_of_file(rows), bytes=rows.stat().st_size)
    forged = manifest.model_copy(update={"files": {**manifest.files, path: changed}})
    (copy / "manifest.json").write_bytes(forged.to_bytes())
    subjects = {name: note.digest for name, note in forged.files.items()}
    subjects["manifest.json"] = digest_of(forged.to_bytes())
    with EventLog.open(scene / "log.db", keys=scene / "keys.db") as log:

        def sign(data: bytes) -> Signing:
            signed = log.sign(data)
            return Signing(bytes.fromhex(signed.signature), bytes.fromhex(signed.public_key))

        envelope = signed_statement(subjects, PREDICATE, {}, sign)
    (copy / "signature.json").write_bytes(envelope)
    assert run(scene, "verify", str(copy), "--files-only").exit_code == 0
    done = run(scene, "verify", str(copy))
    assert (done.exit_code, "this log never released it" in done.output) == (1, True)

    whole = json.loads(envelope)
    sig = whole["signatures"][0]["sig"]
    whole["signatures"][0]["sig"] = ("B" if sig[0] == "A" else "A") + sig[1:]  # one that it surely was not
    with pytest.raises(BadSignature, match="not of these bytes"):
        verify_statement(canonical_json(whole))


def preference_model(log: EventLog) -> PreferenceModelTrained:
    """A model that was fitted to every vote so far."""
    return PreferenceModelTrained(
        model="sha256:" + "c" * 64,
        method="preference-features/1",
        features=("log_words",),
        weights=(1.0,),
        scales=(1.0,),
        temperature=1.0,
        ridge=1.0,
        votes=4,
        battles=digest_of_json([]),
        first_sequence=1,
        last_sequence=log.last_sequence(),
        accuracy=0.5,
        brier=0.2,
        brier_of_ignorance=0.25,
        gap=0.0,
    )


def test_lineage_answers_its_three_questions(scene: Path) -> None:
    """Who used this release; which releases hold this conversation; what must be made again after this erasure."""
    with EventLog.open(scene / "log.db", keys=scene / "keys.db") as log:
        trained = preference_model(log)
        log.append_blocking(trained, subject=trained.model, source="tests")
    assert "votes-1.0.0  10 rows" in run(scene, "lineage").output
    used = run(scene, "use", "votes-1.0.0", "plum-reward", "--as", "scorer", "--why", "its first training")
    assert "plum-reward uses dat_" in used.output
    assert "was known to use" in run(scene, "use", "votes-1.0.0", "plum-reward", "--as", "scorer").output

    release = run(scene, "lineage", "votes-1.0.0").output
    assert "from arena: 4 rows" in release
    assert "used by scorer plum-reward: its first training" in release
    assert "used by preference model preference-features/1@cccccccccccc: 4 of these votes" in release

    for name in (f"bat_{2:032x}", f"gen_{2:020x}a{0:011x}"):
        conversation = run(scene, "lineage", name).output
        assert "is in 1 releases" in conversation
        assert "votes-1.0.0: 1 rows" in conversation
    assert "is in 0 releases" in run(scene, "lineage", "bat_nobody").output

    rebuild = run(scene, "lineage", "--erased", voter(3)).output
    assert "not erased; if it were:" in rebuild
    assert "votes-1.0.0: 1 rows" in rebuild
    assert "make again: scorer plum-reward" in rebuild
    assert "make again: preference model preference-features/1@cccccccccccc (1 of these votes" in rebuild
    with EventLog.open(scene / "log.db", keys=scene / "keys.db") as log:
        item = log.content(f"arena:{voter(3)}", b"{}")
        reviewed = FeedbackReviewed(
            feedback="fb_1", kind="both_bad", origin="1", decision="accept", set_name="regressions", item=item.ref,
            item_digest="sha256:" + "d" * 64, by="ann", why="worth keeping",
        )  # fmt: skip
        log.append_blocking(reviewed, subject="fb_1", source="tests", contents=[item])
    assert (
        "make again: set regressions (1 items are of this person)"
        in run(scene, "lineage", "--erased", voter(3)).output
    )
    assert "nothing has to be made again" in run(scene, "lineage", "--erased", voter(99)).output

    events = [
        json.loads(line) for line in run(scene, "lineage", "votes-1.0.0", "--openlineage").output.splitlines()
    ]
    rows = events[-1]["outputs"][0]["facets"]["tiltyard_rows"]["rows"]
    assert len(rows) == 10
    assert sum(len(one["generations"]) for one in rows) == 8


def test_after_an_erasure_the_rows_are_revoked_and_the_next_release_lacks_them(scene: Path) -> None:
    with EventLog.open(scene / "log.db", keys=scene / "keys.db") as log:
        erase(log, voter(0), reason="asked", by="ann", server_runs=False, revocations=scene / "revocations")
        erase(
            log, "others/p1", reason="asked", by="ann", server_runs=False, revocations=scene / "revocations"
        )

    listed = run(scene, "revoked", str(scene / "out")).output.splitlines()
    assert "3 of 10 rows are revoked" in listed[0]
    ids = {line.split()[0] for line in listed[1:]}
    published = {str(one["question_id"]): one for one in rows_in(scene / "out")}
    assert ids <= set(published)
    digests = {digest_of_json(published[one]) for one in ids}  # type: ignore[arg-type]
    (file,) = (scene / "revocations").iterdir()
    assert {one["row"] for one in json.loads(file.read_bytes())["rows"]} == digests

    verified = run(scene, "verify", str(scene / "out"))
    assert verified.exit_code == 0, verified.output
    assert "7 of 10 rows are the same, 3 were revoked since" in verified.output

    (scene / "next.yaml").write_text(PLAN.replace("1.0.0", "1.0.1"), encoding="utf-8")
    done = run(scene, "release", str(scene / "next.yaml"), "--output", str(scene / "next"))
    assert done.exit_code == 0, done.output
    assert "votes-1.0.1: 7 rows of 10 records" in done.output
    assert "3 rows are revoked: a new version is due" in run(scene, "lineage", "votes-1.0.0").output
    assert "0 of 7 rows are revoked" in run(scene, "revoked", "votes-1.0.1").output
    assert f"{voter(0)}: erased" in run(scene, "lineage", "--erased", voter(0)).output


def test_parquet_without_pyarrow_says_what_to_install(scene: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        PLAN.replace("files: [jsonl]", "files: [parquet]").replace("1.0.0", "1.1.0"), encoding="utf-8"
    )
    done = run(scene, "release", str(plan), "--output", str(tmp_path / "out"))
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        assert done.exit_code == 1
        assert "pip install 'tiltyard[parquet]'" in done.output
        assert not (tmp_path / "out").exists()
    else:
        assert done.exit_code == 0, done.output
        assert (tmp_path / "out" / "data" / "train-00000-of-00001.parquet").stat().st_size > 0
        assert run(scene, "verify", str(tmp_path / "out")).exit_code == 0


def test_a_release_can_be_read_by_others_and_its_parts_are_whole(scene: Path) -> None:
    assert {path.name for path in (scene / "out").iterdir()} == {
        "README.md", "data", "lineage.jsonl", "manifest.json", "plan.yaml", "signature.json",
    }  # fmt: skip
    assert not (scene / "out.part").exists()
