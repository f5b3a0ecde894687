# SPDX-License-Identifier: Apache-2.0
"""Texts to tokenize, the same each time: many scripts, code, emoji, marks, runs of blanks, invalid UTF-8,
special tokens in between."""
import random

SCRIPTS = [(0x20, 0x7e), (0xa0, 0x24f), (0x250, 0x2ff), (0x300, 0x36f), (0x370, 0x3ff), (0x400, 0x52f), (0x530, 0x58f), (0x590, 0x5ff), (0x600, 0x6ff), (0x700, 0x7ff),
           (0x800, 0x8ff), (0x900, 0x97f), (0x980, 0x9ff), (0xa00, 0xaff), (0xb00, 0xbff), (0xc00, 0xcff), (0xd00, 0xdff), (0xe00, 0xeff), (0xf00, 0xfff), (0x1000, 0x109f),
           (0x10a0, 0x10ff), (0x1100, 0x11ff), (0x1200, 0x139f), (0x13a0, 0x13ff), (0x1400, 0x167f), (0x1680, 0x16ff), (0x1780, 0x17ff), (0x1800, 0x18af),
           (0x1ab0, 0x1aff), (0x1c80, 0x1cff), (0x1d00, 0x1dff), (0x1e00, 0x1fff), (0x2000, 0x206f), (0x2070, 0x218f), (0x2190, 0x23ff), (0x2460, 0x27bf), (0x2c00, 0x2dff),
           (0x2e80, 0x2fdf), (0x3000, 0x303f), (0x3040, 0x30ff), (0x3130, 0x318f), (0x3200, 0x33ff), (0x3400, 0x4dbf), (0x4e00, 0x9fff), (0xa000, 0xa4cf), (0xa640, 0xa7ff),
           (0xac00, 0xd7ff), (0xe000, 0xe0ff), (0xf900, 0xfaff), (0xfb00, 0xfdff), (0xfe00, 0xfeff), (0xff00, 0xffef), (0x10000, 0x103ff), (0x10400, 0x104af),
           (0x10780, 0x107bf), (0x10d00, 0x10eff), (0x11000, 0x113ff), (0x11900, 0x11fff), (0x12000, 0x123ff), (0x13430, 0x143ff), (0x16100, 0x16ebf), (0x1b100, 0x1b17f),
           (0x1cc00, 0x1d24f), (0x1d400, 0x1d7ff), (0x1e000, 0x1e5ff), (0x1ee00, 0x1eeff), (0x1f000, 0x1faff), (0x1fb00, 0x1fbff), (0x20000, 0x200ff), (0x2ebf0, 0x2ee5f),
           (0x2f800, 0x2fa1f), (0x31340, 0x323bf), (0xe0000, 0xe01ef), (0x10ff00, 0x10ffff)]
WORDS = """The quick brown fox jumps over lazy dogs because I've they'll we're YOU'D it's IT'S don'T can't Can'T 'tis o'clock rock'n'roll 'S 'ſ 'Ll ’s won’t
naïve façade Ünïcödé über Straße ΑΒΓ αβγ Ελληνικά Привет мир ёлка Ἀρχιμήδης שלום עולם مرحبا بالعالم हिन्दी भाषा বাংলা தமிழ் తెలుగు ಕನ್ನಡ മലയാളം ไทย ภาษา ລາວ ខ្មែរ
မြန်မာ አማርኛ ქართული հայերեն 日本語 カタカナ ひらがな が ガ 漢字 中文字符 繁體字 한국어 한국어 tiếng Việt Việt e\u0301 a\u0308\u0323 q\u0323\u0307 ﬁ ﬀ ① Ⅳ ½ ² ｆｕｌｌ Å Ω ㎏
𠮷野家 𝕳𝖊𝖑𝖑𝖔 𐍈 👍 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 1️⃣ ☺️ ❤ ✨ €100 £5.99 $3,000.50 3.14159 1e-10 0xdeadBEEF 2026-11-21T19:30:00Z 192.168.0.1 007 1234567890123 ١٢٣ १२३ 三百
https://example.org/a/b?c=d&e=f#g user@example.org C:\\Windows\\system32 /usr/local/bin HelloWorld camelCaseWords snake_case_words SCREAMING_SNAKE kebab-case iPhone15Pro XMLHttpRequest
<html> </div> <|im_start|> <s> </s> [INST] [/INST] {{ }} {% %} ``` -- --- ==> != === && || :: ;; /* */ // # ## ... … — – “quoted” «guillemets» ¿qué? ¡hola!""".split()
CODE = ["def f(x: int) -> str:\n    return f\"{x!r}\"\n\n", "for (size_t i = 0; i < n; i++) {\n\t\tsum += a[i];\n\t}\n", "SELECT * FROM t WHERE a='b' AND c>=10;\r\n",
        "const x = async () => await fetch(`/api/${id}`);\n", "#include <stdio.h>\r\n\r\nint main(void) { return 0; }\r\n", "fn main() { println!(\"{:?}\", v.iter().map(|x| x*2)); }\n",
        "{\"a\": [1, 2.5, null, true], \"b\": {\"c\": \"d\\n\"}}", "<p class=\"x\">text &amp; more</p>\n", "\\begin{equation} \\frac{a}{b} \\end{equation}\n", "if [ -z \"$X\" ]; then echo 'no'; fi\n",
        "    def __init__(self):\n        self._x = None\n\n\n", "int\tmain()\t{\n\n\n\treturn\t0;\n}", "| a | b |\n|---|---|\n| 1 | 2 |\n"]
BLANKS = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "\u00a0", "\u3000", "\u2003", "\u200b", "\u2028", "\u0085", "\x0b", "\x0c", "\ufeff", "\u180e", "\u00ad", "\u202f", "\u1680"]


def char(r):
    low, high = r.choice(SCRIPTS)
    return chr(r.randint(low, high))


def word(r):
    return r.choice(WORDS)


def one_script(r):
    low, high = r.choice(SCRIPTS)
    return "".join(chr(r.randint(low, high)) for _ in range(r.randint(1, 30)))


def any_chars(r):
    points = (r.randint(1, 0x10ffff) if r.random() < 0.2 else ord(char(r)) for _ in range(r.randint(1, 25)))
    return "".join(chr(c) for c in points if not 0xd800 <= c < 0xe000)


def prose(r):
    return "".join(word(r) + r.choice([" ", " ", " ", " ", ", ", ". ", "\n", "", "  ", "'s ", "\u2019s "]) for _ in range(r.randint(1, 30)))


def odd_case(r):
    s = r.choice(["I'm", "you're", "he'd", "we'll", "they've", "it's", "can't", "'s't're've'm'll'd", "o'er", "'til"]) + r.choice(["", " ", "x", "S", "1"])
    return "".join(c.upper() if r.random() < 0.4 else c for c in s * r.randint(1, 3))


def blanks(r):
    return "".join(r.choice(BLANKS) * r.choice([1, 1, 1, 2, 3, 8, 40]) + r.choice(["", "", "a", "1", "!", "é", "中", "/", "▁"]) for _ in range(r.randint(1, 8)))


def digits(r):
    return "".join(str(r.randint(0, 10 ** r.randint(1, 20))) + r.choice(["", ".", ",", " ", "-", "x", "٣", "½", "Ⅷ", "²"]) for _ in range(r.randint(1, 6)))


def marks(r):
    return "".join(r.choice("aeiouAEIOUnçsqяकよハ가ᄀ") + "".join(chr(r.choice([r.randint(0x300, 0x36f), r.randint(0x3099, 0x309a), 0x93c, 0x94d, 0x11a8, 0x1161, 0x5b0, 0x64e,
                   r.randint(0x1ab0, 0x1ace), 0x1dc0, 0x200d, 0xfe0f])) for _ in range(r.choice([0, 1, 1, 2, 3, 40]))) for _ in range(r.randint(1, 8)))


def emoji(r):
    parts = ["😀", "👩", "👨", "👧", "🏽", "🏿", "\u200d", "\ufe0f", "\u20e3", "🇩", "🇪", "❤", "🏳", "🌈", "1", "#", "\U000e0067", "\U000e007f", "🏴", " "]
    return "".join(r.choice(parts) for _ in range(r.randint(1, 20)))


def runs(r):
    return r.choice(["a", "A", "ab", " ", "\n", "-", "=", "0", "é", "中", "ا", "😀", "!", "_", "▁", "\t", "aB", "'", ".", "\r\n", " \n"]) * r.choice([2, 3, 5, 17, 41, 100, 300])


def code(r):
    return "".join(r.choice(CODE) for _ in range(r.randint(1, 4)))


TEXTS = [one_script, any_chars, prose, odd_case, blanks, digits, marks, emoji, runs, code]


def mixed(r, specials):
    parts = []
    for _ in range(r.randint(1, 8)):
        parts.append(r.choice(specials) if specials and r.random() < 0.4 else r.choice(TEXTS)(r) if r.random() < 0.5 else r.choice(BLANKS) + word(r))
        if specials and r.random() < 0.1:  # not quite a special token
            parts.append(r.choice(specials)[r.randint(0, 3):-1])
    return "".join(parts)


def raw(r):
    """Make bytes that may be invalid UTF-8."""
    kind = r.randint(0, 3)
    if kind == 0:
        return r.randbytes(r.randint(1, 40))
    text = bytearray(r.choice(TEXTS)(r).encode())
    if kind == 1:
        return bytes(text[r.randint(0, 3):len(text) - r.randint(0, 3)])
    for _ in range(r.randint(1, 4)):
        text[r.randrange(len(text)) if text else 0:0] = r.choice([b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xf0\x9f", b"\x80", b"\xe0\x9f\xbf", b"\0"])
    return bytes(text)


def texts(seed, n, specials=()):
    """Return |n| byte strings."""
    r = random.Random(seed)
    out = [b""]
    while len(out) < n:
        pick = r.random()
        if pick < 0.15:
            out.append(raw(r))
        elif pick < 0.40:
            out.append(mixed(r, list(specials)).encode())
        else:
            out.append(r.choice(TEXTS)(r).encode())
    return out
