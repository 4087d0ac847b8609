"""The language of a message, guessed from its letters and its commonest words; `und` where that decides nothing.

The writing decides first (kana is Japanese, hangul Korean), then letters that only one language has, then function
words. Two thousand lines of a real detector would know more languages; this one needs no model, takes
microseconds, and prefers to say nothing: a slice of votes must not be filled with guesses.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

UNDECIDED: Final = "und"
"""ISO 639-2 for a language that nobody can tell."""

_SIGN: Final = (1.0, 0.5, 0.25)
"""What a word or letter says, by how many of the languages have it."""
_SHORT_MARGIN, _MARGIN = 1.0, 1.5
"""By how much a language must be ahead of the next one, in a short message and in a longer one."""
_SHORT: Final = 8  # words

# Characters that only one form writes; what both write (游, 周, 台) decides nothing.
_TRADITIONAL: Final = frozenset(
    "們這來說時國會對學經過還點開關東車馬長門問間見現視觀覺話語請誰讓認識讀寫書畫買賣錢電腦網業務產發動機飛魚鳥龍風愛歡樂氣漢萬專嚴"
    "麼為無後從當樣實裡幾題應該給變讚嗎裏體總結頭單號條種類別義議計試驗張紅綠藍顏歲歷極構標權殺氣準滿濟燈爾狀獨環異療盡監確禮積穩"
    "個謝頁場與處將數據選擇項寶貝銀鐵軟裝備壓縮檔案護價證層級區塊鏈樹葉藥醫癒聽頻華蘭臺灣廣島嶼邊緣線黃麗雲霧煙熱親戚媽爺奶孫兒記錄舊約藝術圖館園"
    "腳臉齒顧慮導師範圍繞統領黨團員舉農質輕鬆緊難簡複雜運輸進遠達連載週遊戲獎賽贏筆紙報聞閱覽簽件償債營養"
)
_SIMPLIFIED: Final = frozenset(
    "们这来说时国会对学经过还点开关东车马长门问间见现视观觉话语请谁让认识读写书画买卖钱电脑网业务产发动机飞鱼鸟龙风爱欢乐气汉万专严"
    "么为无后从当样实几题应该给变赞吗体总结头单号条种类别义议计试验张红绿蓝颜岁历极构标权杀准满济灯尔状独环异疗尽监确礼积稳"
    "个谢页场与处将数据选择项宝贝银铁软装备压缩档护价证层级区块链树叶药医听频华兰湾广岛屿边缘线黄丽雾烟热亲妈爷孙儿记录旧约艺术图馆园脚脸齿顾虑导"
    "师围绕统领党团员举农质轻紧难简复杂运输进远达连载戏奖赛赢笔纸报闻阅览签债营养"
)
_BOTH: Final = _TRADITIONAL & _SIMPLIFIED

_SCRIPTS: Final[tuple[tuple[int, int, str], ...]] = (
    (0x0041, 0x024F, "latin"),
    (0x0370, 0x03FF, "el"),
    (0x0400, 0x052F, "cyrillic"),
    (0x0590, 0x05FF, "he"),
    (0x0600, 0x06FF, "arabic"),
    (0x0900, 0x097F, "devanagari"),
    (0x0980, 0x09FF, "bn"),
    (0x0A00, 0x0A7F, "pa"),
    (0x0A80, 0x0AFF, "gu"),
    (0x0B80, 0x0BFF, "ta"),
    (0x0C00, 0x0C7F, "te"),
    (0x0C80, 0x0CFF, "kn"),
    (0x0D00, 0x0D7F, "ml"),
    (0x0E00, 0x0E7F, "th"),
    (0x1100, 0x11FF, "ko"),
    (0x1E00, 0x1EFF, "latin"),
    (0x3040, 0x30FF, "ja"),
    (0x3400, 0x9FFF, "han"),
    (0xAC00, 0xD7AF, "ko"),
    (0x20000, 0x323AF, "han"),
)

# Letters beyond a to z; one that several of these languages have says less.
_LETTERS: Final[Mapping[str, str]] = {
    "de": "ßäöü",
    "es": "ñ¿¡áíóé",
    "fr": "êçœùîèàâôé",
    "it": "èàùòì",
    "pt": "ãõçáíâêóé",
    "pl": "łąęśżźćńó",
    "tr": "ğışöüç",
    "vi": "đơưạảấầẩẫậắằẳẵặẹẻẽếềểễệỉịọỏốồổỗộớờởỡợụủứừửữựỳỵỷỹâôêã",
    "sv": "åäö",
    "cs": "řůěčšžáíé",
}

# Words that carry grammar: common in one of these languages, and no word of the others (or of several, counted for each).
_WORDS: Final[Mapping[str, str]] = {
    "en": "the is are was of and to in a an on by at as if that what how why with for you your it this can do does please write explain "
    "give me my i have not be from when which who tell make about should would between could any one two three some there they he she we his her their its or but into than "
    "has had were been will describe list find all hello hi thanks",
    "de": "der die das und ist nicht ein eine ich du sie wir mit für auf den dem von zu im wie was warum kannst bitte "
    "schreibe erkläre auch sind wird einen hat des im sich oder aber wenn wurde haben nach bei viel viele hallo",
    "fr": "le la ou ne se plus son entre sur par aux cette a été les des est et un une je vous nous pour dans que qui avec sur pas du au ce cette comment pourquoi "
    "écris explique sont quelle quel bonjour moi",
    "es": "el la los las es y un una que entre fue sus este esta pero ha había de en por para con no cómo qué cuál del al se lo su escribe explica son como "
    "más hola está",
    "pt": "o a os as é e um uma que de em por para com não como qual do da no na se seu escreva explique são mais "
    "você olá isso",
    "it": "il lo la gli le è tra anche della dei delle nella sono stato ha al e un una che di in per con non come perché del della nel si scrivi spiega sono più ciao "
    "cosa qual",
    "nl": "de het heeft aan bij naar deze maar over worden tussen een en is niet ik je wij met voor op van te hoe wat waarom kun schrijf leg uit zijn wordt ook hallo",
    "pl": "jest nie się na do jak co dlaczego czy napisz wyjaśnij są dla to cześć",
    "sv": "det de är den av har om var vid från och en ett jag du inte som på för med hur vad varför kan skriv förklara till hej",
    "tr": "bir ve da olarak daha kadar sonra gibi bu nasıl neden ne için ile değil mi yaz açıkla olan çok merhaba",
    "vi": "là và của không có một cho tôi bạn như thế nào tại sao hãy viết giải thích xin chào",
    "id": "yang pada akan oleh telah juga ada kami bisa tersebut dan di ke dari ini itu apa bagaimana mengapa tidak adalah untuk dengan saya tolong jelaskan tulis halo",
    "cs": "je se na co jak proč není napiš vysvětli pro ahoj",
    "sw": "ya na wa kwa ni katika za cha kuwa hii huo kama yake lakini nini habari tafadhali andika",
    "fi": "ja on ei se että oli mitä kuin ovat hän minä miksi miten mikä kirjoita kerro hei",
}
_DEVANAGARI: Final[Mapping[str, frozenset[str]]] = {
    "hi": frozenset(["है", "हैं", "का", "के", "की", "में", "से", "को", "नहीं", "पर", "क्या", "और"]),
    "mr": frozenset(["आहे", "आहेत", "आणि", "नाही", "होते", "होता", "मी", "काय", "मला", "हे"]),
    "ne": frozenset(["छ", "छन्", "छैन", "हो", "थियो", "पनि", "हुन्छ", "भएको", "गरेको", "मेरो", "तपाईं", "किन"]),
}
"""Their words carry signs that are no letters to `re`, so they are split at spaces."""


def _turned(signs: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for language, those in signs.items():
        for sign in those:
            found[sign] = (*found.get(sign, ()), language)
    return found


_BY_WORD: Final = _turned({language: words.split() for language, words in _WORDS.items()})
_BY_LETTER: Final = _turned(_LETTERS)
_LETTERS_OF_A_WORD: Final = {"han": 4, "ja": 4, "ko": 4}
"""A Han letter is a word, or half of one; a Latin word has about five."""
_CODE: Final = re.compile(r"```.*?(?:```|$)", re.DOTALL)
_WORD: Final = re.compile(r"[^\W\d_]+")


LANGUAGES: Final = frozenset(
    {
        *_WORDS,
        *_DEVANAGARI,
        *(script for _, _, script in _SCRIPTS if len(script) == 2),
        *("ru", "uk", "bg", "ar", "fa", "ur", "zh", "zh-Hant", "zh-Hans", UNDECIDED),
    }
)
"""All that `language_of` can say."""


def is_told(found: str, wanted: str) -> bool:
    """Whether what `language_of` said is what is asked for; `zh` is all Chinese, however it is written.

    >>> is_told("zh-Hant", "zh"), is_told("zh", "zh-Hant"), is_told("de", "de")
    (True, False, True)
    """
    return found == wanted or (wanted == "zh" and found.startswith("zh-"))


def language_of(message: str) -> str:
    """Return a BCP 47 tag (`en`, `de`, `zh-Hant`, `zh-Hans`, `ja`, `ko`, …), or `und`.

    `zh` is Chinese whose words are written alike in both forms. Fenced code is left out.

    >>> language_of("Why is the sky blue?"), language_of("為什麼天空是藍色的?"), language_of("为什么天空是蓝色的?")
    ('en', 'zh-Hant', 'zh-Hans')
    >>> language_of("空はなぜ青い?"), language_of("asdf qwerty"), language_of("42")
    ('ja', 'und', 'und')
    """
    text = _CODE.sub(" ", message)
    scripts = Counter(script for letter in text if (script := _script(letter)))
    if not scripts:
        return UNDECIDED
    if scripts["ja"] * 5 >= scripts["han"] and scripts["ja"]:  # kana between Han letters
        scripts["ja"] += scripts.pop("han", 0)
    script = max(scripts, key=lambda name: (scripts[name] * _LETTERS_OF_A_WORD.get(name, 1), name))
    match script:
        case "han":
            return _chinese(text)
        case "cyrillic":
            return _cyrillic(text.lower())
        case "arabic":
            return _arabic(text)
        case "devanagari":
            return _devanagari(text)
        case "latin":
            return _by_words(text.lower())
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


def _chinese(text: str) -> str:
    traditional = sum(letter in _TRADITIONAL and letter not in _BOTH for letter in text)
    simplified = sum(letter in _SIMPLIFIED and letter not in _BOTH for letter in text)
    if traditional == simplified:
        return "zh"
    return "zh-Hant" if traditional > simplified else "zh-Hans"


def _cyrillic(text: str) -> str:
    if set("іїєґ") & set(text):
        return "uk"
    return "bg" if text.count("ъ") > sum(text.count(letter) for letter in "ыэё") else "ru"


def _arabic(text: str) -> str:
    letters = set(text)
    return "ur" if set("ٹڈڑےں") & letters else "fa" if set("پچژگیک") & letters else "ar"


def _devanagari(text: str) -> str:
    if "ळ" in text:
        return "mr"
    words = Counter(word.strip("।,.?!;:\"'()") for word in text.split())
    said = {language: sum(words[word] for word in own) for language, own in _DEVANAGARI.items()}
    return max(said, key=lambda language: said[language])  # Hindi is first, and so where none is said


def _by_words(text: str) -> str:
    words = _WORD.findall(text)
    signs: defaultdict[str, float] = defaultdict(float)
    found = [_BY_WORD.get(word, ()) for word in words] + [_BY_LETTER.get(letter, ()) for letter in text]
    for languages in found:
        for language in languages:
            signs[language] += _SIGN[min(len(languages), len(_SIGN)) - 1]
    most, second, *_ = (*sorted(signs.values(), reverse=True), 0.0, 0.0)
    if most - second < (_SHORT_MARGIN if len(words) <= _SHORT else _MARGIN):
        return UNDECIDED
    return max(signs, key=lambda language: signs[language])


def _script(letter: str) -> str | None:
    if not letter.isalpha():
        return None
    code = ord(letter)
    return next((name for low, high, name in _SCRIPTS if low <= code <= high), None)
