"""Which language a text is written in, told from its letters and its commonest words; no model, no data files.

Traditional and Simplified Chinese are told apart by characters that only one of them writes. Languages in Latin
letters are told by function words, so a few words may be too few: then the answer is `und` (ISO 639: undetermined).
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

_TRADITIONAL: Final = frozenset(
    "們個來這說時會對過還後麼為國學開關發問題點長門車馬魚鳥龍語話請謝讓認識讀書寫電腦網頁應該實現體無從東風飛機場動"
    "與處歡樂變將業經濟數據類選擇項寶貝買賣錢銀鐵軟裝備壓縮檔案環境護產單價標準確認證據層級區塊鏈結構樹葉藥醫療癒聽覺視頻"
    "華蘭臺灣廣島嶼邊緣線條紅綠藍黃顏麗雲霧煙燈熱愛親戚媽爺奶孫兒歲歷史記錄舊約藝術畫圖館園頭腳腦臉齒顧慮導師範圍繞"
    "總統領袖黨團員選舉權當務農民質輕鬆緊張難簡單複雜運輸進遠近達連載週遊戲獎賽贏輸筆紙張報紙聞間閱覽簽約條件償債務營養"
)
_SIMPLIFIED: Final = frozenset(
    "们个来这说时会对过还后么为国学开关发问题点长门车马鱼鸟龙语话请谢让认识读书写电脑网页应该实现体无从东风飞机场动"
    "与处欢乐变将业经济数据类选择项宝贝买卖钱银铁软装备压缩档环境护产单价标准确证层级区块链结构树叶药医疗愈听觉视频"
    "华兰台湾广岛屿边缘线条红绿蓝黄颜丽云雾烟灯热爱亲妈爷孙儿岁历史记录旧约艺术画图馆园头脚脸齿顾虑导师范围绕"
    "总统领袖党团员选举权当务农民质轻松紧张难简复杂运输进远近达连载周游戏奖赛赢输笔纸报闻间阅览签债营养"
)
_ONLY_TRADITIONAL: Final = _TRADITIONAL - _SIMPLIFIED
_ONLY_SIMPLIFIED: Final = _SIMPLIFIED - _TRADITIONAL

_SCRIPTS: Final[tuple[tuple[int, int, str], ...]] = (
    (0x0041, 0x024F, "latin"), (0x1E00, 0x1EFF, "latin"), (0x0370, 0x03FF, "el"), (0x0400, 0x052F, "cyrillic"),
    (0x0590, 0x05FF, "he"), (0x0600, 0x06FF, "arabic"), (0x0900, 0x097F, "devanagari"), (0x0980, 0x09FF, "bn"),
    (0x0A00, 0x0A7F, "pa"), (0x0A80, 0x0AFF, "gu"), (0x0B80, 0x0BFF, "ta"), (0x0C00, 0x0C7F, "te"), (0x0C80, 0x0CFF, "kn"),
    (0x0E00, 0x0E7F, "th"), (0x1100, 0x11FF, "ko"), (0x3040, 0x30FF, "ja"), (0x3400, 0x9FFF, "han"),
    (0xAC00, 0xD7AF, "ko"), (0x20000, 0x323AF, "han"),
)  # fmt: skip
_WORDS: Final[dict[str, frozenset[str]]] = {
    "en": frozenset(["the", "of", "and", "to", "in", "is", "that", "it", "for", "was", "on", "are", "with", "as", "be", "this", "have", "from", "at", "or", "not", "you", "what", "how", "why", "which", "can", "a", "i", "we", "they", "would", "there", "his", "her"]),
    "de": frozenset(["der", "die", "das", "und", "ist", "nicht", "ein", "eine", "einen", "mit", "auf", "für", "von", "zu", "den", "dem", "des", "sich", "auch", "ich", "sie", "wir", "es", "wie", "was", "warum", "oder", "aber", "wird", "sind", "im"]),
    "fr": frozenset(["le", "la", "les", "des", "une", "et", "est", "que", "qui", "dans", "pour", "pas", "sur", "avec", "ne", "ce", "il", "elle", "nous", "vous", "je", "du", "au", "aux", "plus", "comment", "pourquoi", "ou", "mais", "sont", "cette"]),
    "es": frozenset(["el", "la", "los", "las", "de", "que", "y", "en", "un", "una", "es", "por", "con", "para", "no", "se", "del", "al", "lo", "su", "como", "más", "pero", "qué", "cómo", "está", "son", "muy", "este", "yo"]),
    "it": frozenset(["il", "lo", "la", "gli", "le", "di", "che", "e", "un", "una", "è", "per", "con", "non", "si", "del", "della", "sono", "come", "più", "ma", "nel", "alla", "questo", "anche", "perché", "io"]),
    "pt": frozenset(["o", "a", "os", "as", "de", "que", "e", "um", "uma", "é", "por", "com", "para", "não", "se", "do", "da", "em", "no", "na", "como", "mais", "mas", "são", "você", "muito", "este", "eu"]),
    "nl": frozenset(["de", "het", "een", "en", "van", "is", "niet", "dat", "op", "te", "met", "voor", "zijn", "er", "aan", "ook", "als", "bij", "maar", "hoe", "wat", "wij", "ik", "je", "naar"]),
    "vi": frozenset(["là", "và", "của", "có", "không", "một", "những", "được", "cho", "trong", "với", "này", "các", "người", "tôi", "bạn", "như", "thế", "nào", "gì"]),
    "sw": frozenset(["ya", "na", "wa", "kwa", "ni", "katika", "za", "la", "cha", "kuwa", "hii", "huo", "kama", "yake", "lakini"]),
}  # fmt: skip
_LETTERS: Final[dict[str, str]] = {
    "de": "äöüß",
    "fr": "éèêàçœ",
    "es": "ñáíóú¿¡",
    "pt": "ãõç",
    "vi": "ăđơưạảấầẩẫậ",
}
_CYRILLIC: Final[dict[str, str]] = {"uk": "іїєґ", "bg": "ъ", "ru": "ыэё"}
_DEVANAGARI: Final[dict[str, str]] = {"mr": "ळ", "hi": ""}
UNDETERMINED: Final = "und"


def language_of(text: str) -> str:
    """The language that most of a text is written in, as a code of BCP 47.

    >>> language_of("為什麼天空是藍色的？"), language_of("为什么天空是蓝色的？"), language_of("Why is the sky blue?")
    ('zh-Hant', 'zh-Hans', 'en')
    """
    letters = Counter(script for letter in text if letter.isalpha() and (script := _script(letter)))
    if not letters:
        return UNDETERMINED
    if letters["ja"] and letters["ja"] * 10 >= letters["han"]:
        return "ja"
    # A Han letter is a word, or half of one; a Latin word has about five.
    weighed = {
        script: count * (4 if script in ("han", "ko", "ja") else 1) for script, count in letters.items()
    }
    script = max(weighed, key=lambda name: (weighed[name], name))
    match script:
        case "han":
            traditional = sum(letter in _ONLY_TRADITIONAL for letter in text)
            simplified = sum(letter in _ONLY_SIMPLIFIED for letter in text)
            if traditional == simplified:
                return "zh"
            return "zh-Hant" if traditional > simplified else "zh-Hans"
        case "latin":
            return _by_words(text)
        case "cyrillic":
            return _by_letters(text, _CYRILLIC, "ru")
        case "arabic":
            return _by_letters(text, {"ur": "ٹڈڑےں", "fa": "پچژگ"}, "ar")
        case "devanagari":
            return _by_letters(text, {"mr": "ळ", "ne": "छैँ"}, "hi")
        case _:
            return script


def is_written_in(text: str, wanted: str) -> bool:
    """Whether a text is in a language; `zh` takes both ways to write it, and a text without telling characters is either.

    >>> is_written_in("天空", "zh-Hant"), is_written_in("天空很蓝", "zh-Hant")
    (True, False)
    """
    found = language_of(text)
    if wanted == "zh":
        return found.startswith("zh")
    return found == wanted or (found == "zh" and wanted in ("zh-Hant", "zh-Hans"))


def _script(letter: str) -> str | None:
    code = ord(letter)
    return next((name for low, high, name in _SCRIPTS if low <= code <= high), None)


def _by_words(text: str) -> str:
    lowered = text.lower()
    words = Counter(re.findall(r"[^\W\d_]+", lowered))
    scores = {
        language: sum(words[word] for word in known)
        + sum(0.5 for word in words if any(letter in word for letter in _LETTERS.get(language, "")))
        for language, known in _WORDS.items()
    }
    best = max(scores, key=lambda name: (scores[name], name == "en"))
    return best if scores[best] > 0 else UNDETERMINED


def _by_letters(text: str, marks: dict[str, str], rest: str) -> str:
    counts = {language: sum(letter in own for letter in text.lower()) for language, own in marks.items()}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] else rest
