"""`tiltyard arena` as a user types it, over a real log."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from tiltyard.cli.main import main
from tiltyard.events.log import EventLog
from tiltyard.events.schema import BattleOpened, Contestant

PLUM, QUINCE = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def test_health_exits_with_3_on_an_alarm_and_0_before(tmp_path: Path) -> None:
    """plum stands on the left in every one of 40 battles, each recorded with 1/2."""

    def health(*more: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["arena", "health", "--data", str(tmp_path), *more])
        return result.exit_code, result.output

    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        status, said = health()
        assert status == 0, said
        assert "ok     pair_assignment" in said
        for number in range(40):
            opened = BattleOpened(
                battle=f"bat_{number}",
                voter="v",
                contestants=(
                    Contestant(side="a", identity="plum", behaviour=PLUM),
                    Contestant(side="b", identity="quince", behaviour=QUINCE),
                ),
                pair_probability=1.0,
                side_probability=0.5,
                policy="uniform/1",
                vote_token_digest=PLUM,
            )
            log.append_blocking(opened, subject=opened.battle, source="tests")
    status, said = health()
    assert status == 3
    assert "alarm  side_assignment" in said
    assert "what to do: do not weight by inverse probability" in said
    status, said = health("--json")
    assert status == 3
    found = json.loads(said)
    assert found["state"] == "alarm"
    assert found["models"][0]["first_slot"]["count"] == 40
