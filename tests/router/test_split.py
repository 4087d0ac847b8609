"""Which arm a request meets: by rule, by weight, the same on every gateway."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiltyard.events.schema import ShadowCopies, TrafficArm, TrafficRule, TrafficSplit
from tiltyard.router.split import Asker, Splits, uniform

OLD = "sha256:" + "a" * 64
NEW = "sha256:" + "b" * 64


def split(candidate: float, baseline: float = 0.0, *rules: TrafficRule, shadow: float = 0.0) -> TrafficSplit:
    arms = (
        TrafficArm(arm="candidate", identity="new", behaviour=NEW, weight=candidate),
        TrafficArm(arm="production", identity="old", behaviour=OLD, weight=1 - candidate - baseline),
        TrafficArm(arm="baseline", identity="old", behaviour=OLD, weight=baseline),
    )
    return TrafficSplit(
        alias="chat",
        arms=tuple(arm for arm in arms if arm.weight or arm.arm != "baseline"),
        rules=rules,
        shadow=ShadowCopies(identity="new", behaviour=NEW, share=shadow) if shadow else None,
        release="rel_1",
        step=1,
        by="tests",
        why="",
    )


def obeying(one: TrafficSplit) -> Splits:
    splits = Splits()
    splits.take(one)
    return splits


def arm_of(splits: Splits, asker: Asker) -> str | None:
    drawn = splits.draw("chat", asker)
    assert drawn is not None
    return drawn.arm


def test_twenty_thousand_requests_fall_as_the_weights_say() -> None:
    splits = obeying(split(0.05, 0.05))
    arms = [arm_of(splits, Asker("t", f"gen_{i}")) for i in range(20_000)]
    # Binomial(20 000, 0.05): mean 1 000, standard deviation 30.8; five of them are 154. The draw has no randomness.
    assert abs(arms.count("candidate") - 1_000) < 154
    assert abs(arms.count("baseline") - 1_000) < 154


@given(st.text(max_size=20), st.floats(0, 1), st.floats(0, 1))
def test_a_session_keeps_its_arm_and_a_growing_candidate_keeps_its_sessions(
    session: str, first: float, second: float
) -> None:
    small, large = sorted((first, second))
    asker = Asker("t", "gen_1", session=session or "s")
    again = Asker("t", "gen_2", session=session or "s", user="who")
    before = arm_of(obeying(split(small)), asker)
    assert before == arm_of(obeying(split(small)), again)
    if before == "candidate":
        assert arm_of(obeying(split(large)), asker) == "candidate"


def test_users_of_one_name_in_two_tenants_are_drawn_apart() -> None:
    splits = obeying(split(0.5))
    pairs = {
        (arm_of(splits, Asker("a", "", user=str(i))), arm_of(splits, Asker("b", "", user=str(i))))
        for i in range(50)
    }
    assert len(pairs) == 4


def test_rules_go_before_weights() -> None:
    rules = (
        TrafficRule(arm="production", tenant="bank"),
        TrafficRule(arm="candidate", channel="beta"),
    )
    splits = obeying(split(0.0, 0.0, *rules))
    assert arm_of(splits, Asker("bank", "gen_1", channel="beta")) == "production"
    assert arm_of(splits, Asker("shop", "gen_1", channel="beta")) == "candidate"
    assert arm_of(splits, Asker("shop", "gen_1")) == "production"


def test_a_split_without_arms_leaves_the_alias_to_the_file() -> None:
    splits = obeying(split(0.5))
    assert splits.main("chat") in {"new", "old"}
    splits.take(TrafficSplit(alias="chat", arms=(), by="tests", why=""))
    assert splits.draw("chat", Asker("t", "gen_1")) is None
    assert splits.main("chat") is None


def test_copies_fall_as_their_share_says() -> None:
    splits = obeying(split(0.0, shadow=0.2))
    copied = sum(splits.shadow("chat", f"gen_{i}") is not None for i in range(10_000))
    assert abs(copied - 2_000) < 200  # five standard deviations of Binomial(10 000, 0.2)
    assert splits.shadow("other", "gen_1") is None


@given(st.text(), st.text())
def test_a_draw_lies_in_the_unit_interval(salt: str, key: str) -> None:
    assert 0 <= uniform(salt.encode("utf-8", "replace").decode(), key.encode("utf-8", "replace").decode()) < 1
