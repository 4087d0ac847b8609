"""What a voter agrees to before the first battle, and who has agreed: versioned words, and an event for each voter.

The words are kept here in every language, each under its digest, so that the event says exactly what was shown. Who
changes a word changes the version; then everybody is asked again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from typing import Final

from tiltyard.arena.voter import Voter
from tiltyard.errors import Conflict, InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.events.schema import ConsentGiven
from tiltyard.identity.canonical import Digest, digest_of

SOURCE: Final = "tiltyard/arena"
CONSENT_VERSION: Final = "1"
CONSENT_WORDS: Final = {
    "en": (
        "Your questions, the answers to them and your votes are stored on this server: the words encrypted under a key "
        "of your own, the votes under a pseudonym. They are used to rank models, to study their answers and to make "
        "answers again. Without the words, votes may be published. If your key is destroyed at your request, nobody can "
        "read your words again; votes stay. Do not write what identifies you or anybody else. Answers are made by "
        "machines and can be wrong or offensive."
    ),
    "zh-Hant": (
        "您的提問、模型的回答與您的投票會儲存在這台伺服器上：文字以您專屬的金鑰加密，投票則以化名記錄。它們用於為模型排名、研究回答，"
        "以及重現回答。不含文字的投票可能會公開。若應您的要求銷毀金鑰，任何人都無法再讀取您的文字；投票則會保留。"
        "請勿輸入可辨識您或他人身分的內容。回答由機器產生，可能有誤或令人不快。"
    ),
    "zh-Hans": (
        "您的提问、模型的回答与您的投票会保存在这台服务器上：文字以您专属的密钥加密，投票则以化名记录。它们用于为模型排名、研究回答，"
        "以及重现回答。不含文字的投票可能会公开。若应您的要求销毁密钥，任何人都无法再读取您的文字；投票则会保留。"
        "请勿输入可识别您或他人身份的内容。回答由机器生成，可能有误或令人不快。"
    ),
}
"""By language tag."""
_KEPT: Final = 100_000
"""Voters whose consent is remembered; of others the log is asked."""


def consent_digest(language: str) -> Digest:
    """Digest of the words in that language."""
    return digest_of(CONSENT_WORDS[language].encode())


class Consents:
    """Who has agreed to the present version, over one log."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._given: OrderedDict[str, None] = OrderedDict()

    async def given(self, voter: Voter | None) -> bool:
        """Whether this voter has agreed."""
        if voter is None:
            return False
        if voter.id not in self._given and await asyncio.to_thread(self._in_log, voter.id):
            self._remember(voter.id)
        return voter.id in self._given

    async def ask(self, voter: Voter, answer: str | None, language: str) -> None:
        """Make sure that the voter has agreed, now by `answer` (the version) or earlier.

        Appends `ConsentGiven` the first time. Raises `InvalidRequest` when there is no consent, or one to another
        version; `StorageFailed` when the log refuses.
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
        event = ConsentGiven(
            voter=voter.id, version=CONSENT_VERSION, language=language, wording=consent_digest(language)
        )
        with suppress(Conflict):  # two first questions at once: the other one carried the consent
            await self._log.append(event, subject=voter.id, source=SOURCE)
        self._remember(voter.id)

    def _in_log(self, voter: str) -> bool:
        return any(
            isinstance(event.data, ConsentGiven) and event.data.version == CONSENT_VERSION
            for event in self._log.read(types=[ConsentGiven], subject=voter)
        )

    def _remember(self, voter: str) -> None:
        self._given[voter] = None
        while len(self._given) > _KEPT:
            self._given.popitem(last=False)
