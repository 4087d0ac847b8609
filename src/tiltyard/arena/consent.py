"""What a voter agrees to before the first battle, and who has agreed: versioned words, and an event for each voter.

The words are kept here in every language, each under its digest, so that the event says exactly what was shown. Who
changes a word changes the version; then everybody is asked again. What was agreed to is enforced by the vault
(`events/permissions.py`), not here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import Final

from tiltyard.arena.voter import Voter
from tiltyard.errors import Conflict, InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.events.schema import PURPOSES, ConsentGiven, ConsentWithdrawn, Purpose
from tiltyard.identity.canonical import Digest, digest_of_json

SOURCE: Final = "tiltyard/arena"
CONSENT_VERSION: Final = "2"
NEEDED: Final[tuple[Purpose, ...]] = ("serve", "evaluate")
"""Without these there is no arena."""
OFFERED: Final[tuple[Purpose, ...]] = ("train", "publish")
"""Each is asked for by itself; none is ticked beforehand."""
CONSENT_WORDS: Final = {
    "en": (
        "Your questions, the answers to them and your votes are stored on this server: the words encrypted under a key "
        "of your own, the votes under a pseudonym. They are used to answer you, to rank models, to study their answers and "
        "to make answers again. Without the words, votes may be published. You can withdraw this or delete your words at any "
        "time under “My data”: your key is destroyed, and nobody can read them again; votes stay. Do not write what "
        "identifies you or anybody else. Answers are made by machines and can be wrong or offensive."
    ),
    "zh-Hant": (
        "您的提問、模型的回答與您的投票會儲存在這台伺服器上：文字以您專屬的金鑰加密，投票則以化名記錄。它們用於回答您、為模型排名、研究回答，"
        "以及重現回答。不含文字的投票可能會公開。您可隨時在「我的資料」撤回同意或刪除您的文字：金鑰將被銷毀，任何人都無法再讀取；投票則會保留。"
        "請勿輸入可辨識您或他人身分的內容。回答由機器產生，可能有誤或令人不快。"
    ),
    "zh-Hans": (
        "您的提问、模型的回答与您的投票会保存在这台服务器上：文字以您专属的密钥加密，投票则以化名记录。它们用于回答您、为模型排名、研究回答，"
        "以及重现回答。不含文字的投票可能会公开。您可随时在“我的数据”撤回同意或删除您的文字：密钥将被销毁，任何人都无法再读取；投票则会保留。"
        "请勿输入可识别您或他人身份的内容。回答由机器生成，可能有误或令人不快。"
    ),
}
"""By language tag."""
OFFERED_WORDS: Final[dict[str, dict[Purpose, str]]] = {
    "en": {
        "train": "My words may also be used to train models.",
        "publish": "My words may also be published in data sets, after what looks like personal data was replaced.",
    },
    "zh-Hant": {
        "train": "我的文字也可用於訓練模型。",
        "publish": "我的文字在替換疑似個人資料後，也可收錄於公開的資料集。",
    },
    "zh-Hans": {
        "train": "我的文字也可用于训练模型。",
        "publish": "我的文字在替换疑似个人信息后，也可收录于公开的数据集。",
    },
}
"""By language tag and purpose."""


def consent_digest(language: str) -> Digest:
    """Digest of all words in that language, in canonical JSON: `{"text": …, "offered": {…}}`."""
    return digest_of_json(
        {
            "text": CONSENT_WORDS[language],
            "offered": {name: OFFERED_WORDS[language][name] for name in OFFERED},
        }
    )


class Consents:
    """Who has agreed to the present version, and to what, over one log."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    async def given(self, voter: Voter | None) -> bool:
        """Whether this voter has agreed to what the arena needs."""
        if voter is None:
            return False
        return await asyncio.to_thread(self._has_agreed, voter.id)

    async def purposes(self, voter: Voter) -> frozenset[Purpose]:
        """What may be done with this voter's words now."""
        return (await asyncio.to_thread(self._log.permission, voter.id)).purposes

    async def ask(
        self, voter: Voter, answer: str | None, language: str, purposes: Collection[str] = ()
    ) -> None:
        """Make sure that the voter has agreed, now by `answer` (the version) or earlier.

        `purposes` are those of `OFFERED` that are allowed beside what is needed. Raises `InvalidRequest` when there is no
        consent, or one to another version, or an unknown purpose; `StorageFailed` when the log refuses.
        """
        if await self.given(voter):
            return
        if answer != CONSENT_VERSION:
            raise InvalidRequest(
                "before the first question the arena needs your consent to what it stores. Read the text and agree to "
                f'it; a program reads GET /api/arena/consent and sends "consent": "{CONSENT_VERSION}".',
                param="consent",
                code="consent_needed",
            )
        await self.give(voter, language, purposes)

    async def give(self, voter: Voter, language: str, purposes: Collection[str]) -> None:
        """Record a consent to what is needed and to `purposes`, in place of an earlier one."""
        for name in purposes:
            if name not in PURPOSES:
                raise InvalidRequest(
                    f"purposes has {name[:40]!r}; it may have {', '.join(OFFERED)}", param="purposes"
                )
        event = ConsentGiven(
            voter=voter.id,
            version=CONSENT_VERSION,
            language=language,
            wording=consent_digest(language),
            purposes=tuple(one for one in PURPOSES if one in NEEDED or one in purposes),
            changes=await asyncio.to_thread(self._changes, voter.id),
        )
        with suppress(Conflict):  # two first questions at once: the other one carried the consent
            await self._log.append(event, subject=voter.id, source=SOURCE)

    async def withdraw(self, voter: Voter, purposes: Collection[str]) -> frozenset[Purpose]:
        """Take back what was allowed; returns what is left. Without `serve` or `evaluate` the arena asks again.

        Raises `InvalidRequest` for an unknown purpose, or none.
        """
        unknown = [name for name in purposes if name not in PURPOSES]
        if unknown or not purposes:
            raise InvalidRequest(
                f"purposes is {sorted(purposes)!r:.80}; name one or more of {', '.join(PURPOSES)}",
                param="purposes",
            )
        return await asyncio.to_thread(withdraw_consent, self._log, voter.id, purposes, by="the person")

    def _has_agreed(self, voter: str) -> bool:
        found = self._log.consent(voter)
        return found is not None and found.version == CONSENT_VERSION and found.purposes >= frozenset(NEEDED)

    def _changes(self, voter: str) -> int:
        return sum(1 for _ in self._log.read(types=(ConsentGiven, ConsentWithdrawn), subject=voter))


def withdraw_consent(
    log: EventLog, subject: str, purposes: Collection[str], *, by: str
) -> frozenset[Purpose]:
    """Append that a data subject takes back `purposes`; returns what is left. Blocks."""
    before = log.permission(subject).purposes
    given = log.consent(subject)
    left = tuple(one for one in PURPOSES if one in before and one not in purposes)
    event = ConsentWithdrawn(
        voter=subject,
        purposes=tuple(one for one in PURPOSES if one in purposes),
        left=left,
        version="" if given is None else given.version,
        by=by,
    )
    log.append_blocking(event, subject=subject, source=SOURCE)
    return frozenset(left)
