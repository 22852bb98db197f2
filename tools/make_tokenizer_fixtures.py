#!/usr/bin/env python3
"""Writes texts and the ids that Hugging Face `tokenizers` gives them, with the vocabulary and merges
of a SmolLM2 GGUF and the pipeline SmolLM2 publishes: formats/tokenizer_smollm.jsonl for the tokenizer
itself, cli/tokenize_smollm.jsonl.gz (4,000 texts that JSON can hold) for the command.

    pip install tokenizers==0.23.2 gguf==0.19.0
    tools/make_tokenizer_fixtures.py SmolLM2-135M-Instruct.Q4_1.gguf tests/data

First line: versions. Then one case a line: "t" the text or "x" ill-formed bytes in hex; "s": 1 if
special tokens are parsed; "i" the ids; "d" the decoded text where it is not the text itself (bytes
that have no token are gone, ill-formed units are U+FFFD).
"""

import argparse
import gzip
import importlib.metadata
import json
import pathlib
import random
import re
import unicodedata

import gguf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SEED = 20240917

PROSE = """The old lighthouse keeper counted 1,024 steps every evening, didn't he? She'd said they'll
come at 7:30pm; we've heard it's only 12.5 km away. "I'm sure," he replied, 'you're RIGHT.' Don't
panic -- it can't be worse than 1999's storm! E-mail: keeper@example.org, see https://example.org/a?b=c&d=1#e
Isn't naïveté a café's best façade? Ångström, Dvořák and Łódź walked into the Straße. I'LL, I'Ve, 'S 'd'd
"""

CODE = '''def fib(n: int) -> int:
    """Return the n-th number."""
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a
int main(void) {\n\tfor (size_t i = 0; i < 0x1F; ++i)\n\t\tprintf("%08x\\n", table[i]);\n\n\n\treturn 0;  // done\n}
SELECT id, COUNT(*) FROM t WHERE name LIKE '%x_%' GROUP BY 1 HAVING COUNT(*) >= 10;
<html><body class="a b">&amp;nbsp;</body></html>
{"key": [1, 2.5e-10, true, null], "nested": {"a": "b\\u00e9"}}
#!/bin/sh\nset -eu; for f in *.txt; do echo "${f%.txt}" >> out 2>&1; done
template <class T> auto f(T&& x) -> decltype(auto) { return std::forward<T>(x) <=> 0; }
'''

SCRIPTS = [
    "漢字とひらがなとカタカナ、半角ｶﾅ。", "中文分词测试：你好，世界！", "한국어 텍스트 처리는 재미있다.",
    "السلام عليكم ورحمة الله ١٢٣٤٥", "שלום עולם, מה שלומך?", "สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง ๑๒๓",
    "हिन्दी में लिखना १२३ क्षत्रिय", "বাংলা ভাষা ৪৫৬", "தமிழ் மொழி", "Привет, мир! Ёжик №5", "Γειά σου Κόσμε ά",
    "ქართული ენა", "አማርኛ ፩፪፫", "ខ្មែរ ១២៣", "မြန်မာ ၁၂၃", "ᠮᠣᠩᠭᠣᠯ ᠪᠢᠴᠢᠭ", "Tiếng Việt có dấu",
    "İstanbul ılık ŞĞ", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟘𝟙𝟚 𝐀𝐁", "𐍈𐌰𐌽 𒀀𒁀 𓀀𓁀", "⠓⠑⠇⠇⠕ ♠♣♥♦ ♔♕",
]

EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇯🇵", "❤️", "1️⃣", "☃", "🧑🏿‍🚀", "🫠", "©®™"]
COMBINING = ["e\u0301", "a\u0308\u0304", "Z\u0351\u0343\u0352", "n\u0303o", "\u0301", "\u0e33", "ก\u0e4d\u0e32",
             "क\u094d\u0937", "\u1100\u1161\u11a8", "o\u0338\u20d7"]
NUMBERS = ["½", "²³", "Ⅷ", "一二三", "①②", "٣٤", "१२", "๑", "１２３", "㊿", "፳", "〇", "𝟗", "⅒", "𒐀", "〹", "௰"]
SPACES = [" ", "  ", "    ", "\t", "\n", "\r\n", "\r", "\n\n", " \n", "\n ", "\t\t", "\u00a0", "\u2003", "\u3000",
          "\u2028", "\u2029", "\u0085", "\u180e", "\u200b", "\ufeff", "\v", "\f", "\u1680", "\u202f", "\u205f"]
CONTROLS = [chr(c) for c in (*range(0x20), 0x7F, *range(0x80, 0xA0), 0xAD, 0x200E, 0x2060, 0xFFFE, 0xFFFF)]
WORDS = re.findall(r"\S+", PROSE) + ["don't", "we'LL", "x's", "''s", "'ve", "'re", "'m", "'D", "’s", "-", "...", "!!!", "a.b"]

# Numbers newer than Unicode 14, one of each block, with U+16FF5 between two of them.
NEWER_NUMBERS = [0x10D40, 0x10D49, 0x116D0, 0x116E3, 0x11BF0, 0x11DE9, 0x11F50, 0x16130, 0x16D79, 0x16FF4, 0x16FF5,
                 0x16FF6, 0x1CCF0, 0x1CCF9, 0x1D2C0, 0x1D2D3, 0x1E4F0, 0x1E5FA]
NEWER_LETTERS = [0x1C89, 0xA7CB, 0x105C0, 0x10D4A, 0x11F12, 0x13460, 0x1E030, 0x1E4EB, 0x2EBF0, 0x31350, 0x323AF]


def build(fields, with_special):
    tokens = fields["tokenizer.ggml.tokens"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, types) if kind == 3]
    if with_special:
        tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    return tokenizer, control


def byte_alphabet():
    keep = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = iter(range(0x100, 0x200))
    return [chr(b) if b in keep else chr(next(rest)) for b in range(256)]


def texts(rng, control):
    yield from ["", " ", "a", PROSE, CODE, CODE.replace("    ", "\t"), CODE.replace("\n", "\r\n")]
    yield from PROSE.splitlines()
    yield from CODE.splitlines()
    yield from SCRIPTS
    for atoms in (EMOJI, COMBINING, NUMBERS, SPACES, CONTROLS):
        for atom in atoms:
            yield f"a{atom}b {atom}{atom} .{atom}"
    for code_point in NEWER_NUMBERS:
        yield f"x{chr(code_point)} y {chr(code_point) * 2}!"
    for code_point in NEWER_LETTERS:
        yield f"a{chr(code_point)}'d b {chr(code_point)}'s !{chr(code_point)}.'re"
    for code_point in (0x31350, 0x2EBF0, 0x10D50, 0x1E030, 0x1FAE8, 0x40000, 0xBFFFF, 0xE0001, 0xF0000, 0x10FFFF):
        yield f"a{chr(code_point)}b {chr(code_point)} !{chr(code_point)}"
    for run in ("a", " ", "\n", "\t", "!", "=", "0", "é", "漢", "😀", "\u00a0", "ab", " a", "\n ", "\u0301", "--", "haha"):
        for count in (2, 3, 7, 16, 33, 100):
            yield run * count
        yield run * 40 + "x" + run * 41
        yield "x " + run * 9 + " 1" + run * 9 + " "
    pool = WORDS + EMOJI + COMBINING + NUMBERS + SCRIPTS + re.findall(r"\S+", CODE)
    for _ in range(260):
        parts = []
        for _ in range(rng.randint(2, 9)):
            parts.append(rng.choice(pool) if rng.random() < 0.8 else str(rng.randint(0, 10 ** rng.randint(1, 9))))
            parts.append(rng.choice(SPACES) * rng.choice((0, 1, 1, 1, 2, 5)) if rng.random() < 0.6 else " ")
        yield "".join(parts)
    for _ in range(120):  # any assigned or unassigned code points
        yield "".join(chr(scalar(rng)) for _ in range(rng.randint(1, 10)))
    for _ in range(60):  # dense mixtures of the pattern's classes
        yield "".join(rng.choice("a1 \n'sté漢.\u00a0-\t²\u0301") for _ in range(rng.randint(3, 30)))


def scalar(rng):
    top = rng.choice((0x80, 0x800, 0x3000, 0x10000, 0x20000, 0x110000))
    while True:
        code_point = rng.randrange(top)
        if not 0xD800 <= code_point < 0xE000:
            return code_point


def special_texts(rng, control):
    yield "<|im_start|>system\nYou are a helpful AI assistant named SmolLM<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n"
    yield from control
    yield from (f"a {t} b{t}{t}" for t in control)
    yield from ["<|im_end|", "<<|im_end|>>", "<|im_<|im_end|>end|>", "< |im_end|>", "<|IM_END|>", "<|im_end|>  ",
                "  <|im_end|>", "1<|im_end|>2", "<|im_start|>\u0301", "<file<filename>", "<reponame<repo_name>>",
                "<issue_start><issue_comment><issue_closed>", "'<|im_end|>s", "<empty_output", "<|endoftext|>\n\n"]
    for _ in range(40):
        yield "".join(rng.choice(control + WORDS + SPACES + ["<", "|", ">", "<|", "im_end"]) for _ in range(rng.randint(2, 8)))


def ill_formed(rng):
    bad = [b"\x80", b"\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xc3", b"\xe2\x82", b"\xe0\x80\x80", b"\xe0\x9f\xbf",
           b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf0\x80\x80\x80", b"\xf0\x9f\x98", b"\xf0\x9f", b"\xf0\x8f\xbf\xbf",
           b"\xf4\x90\x80\x80", b"\xf4\x8f\xbf", b"\xf5\x80\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xfe", b"\xff",
           b"\xff\xfe\x00", b"\xe2\x28\xa1", b"\xf0\x28\x8c\xbc", b"\xc3\xc3\xa9", b"\xe4\xb8\xe4\xb8\xad"]
    yield from bad
    yield from (b"ab " + b + b" 1\n" for b in bad)
    good = [w.encode() for w in WORDS + EMOJI + SCRIPTS]
    for _ in range(40):
        yield b"".join(rng.choice(bad if rng.random() < 0.4 else good) for _ in range(rng.randint(2, 6)))
    for _ in range(20):
        yield bytes(rng.randrange(256) for _ in range(rng.randint(1, 24)))


# Joined by U+200D, with skin tones and variation selectors; flags; tag sequences; keycaps.
EMOJI_PARTS = ["👩", "👨", "🧑", "👧", "❤", "💻", "🚀", "🌾", "🏳", "🏴", "⚧", "🐻", "❄", "👁", "🗨", "🔥", "⛓", "💥", "🫱", "🫲"]
TONES = ["", "", "\U0001F3FB", "\U0001F3FD", "\U0001F3FF", "\ufe0f", "\ufe0e"]
ENGLAND = "🏴" + "".join(chr(0xE0000 + ord(c)) for c in "gbeng") + "\U000E007F"
MARKS = [*range(0x300, 0x370), *range(0x483, 0x488), *range(0x591, 0x5BE), *range(0x64B, 0x660), *range(0x93C, 0x94E),
         *range(0xE47, 0xE4F), *range(0x1AB0, 0x1ABF), *range(0x1DC0, 0x1E00), *range(0x20D0, 0x20F1), *range(0xFE20, 0xFE30)]
CODE_ATOMS = re.findall(r"\S+|[ \t]+", CODE) + ["->", "::", "//", "/*", "*/", "===", "!=", "&&", "||", "<<=", "#include", "\n    ",
              "\n\t\t", "\n", "{}", "[]", "();", "0x", "1e-9", "camelCase", "snake_case", "SCREAMING_CASE", "\\n", '"""', "`", "$@"]
LINES = 4000


def emoji_sequence(rng):
    kind = rng.random()
    if kind < 0.5:
        return "\u200d".join(rng.choice(EMOJI_PARTS) + rng.choice(TONES) for _ in range(rng.randint(1, 4)))
    if kind < 0.7:
        return "".join(chr(0x1F1E6 + rng.randrange(26)) for _ in range(rng.randint(1, 4)))
    if kind < 0.8:
        return rng.choice("0123456789#*") + rng.choice(["\ufe0f\u20e3", "\u20e3"])
    return rng.choice([ENGLAND, *EMOJI])


def number(rng):
    digits = "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 30)))
    return rng.choice([digits, f"-{digits}", f"{int(digits):,}", f"{digits[:3]}.{digits[3:]}", f"0x{int(digits):x}", f"{digits}e{len(digits)}",
                       f"{digits}%", f"${digits}", rng.choice(NUMBERS) * rng.randint(1, 4), f"{digits[:2]}:{digits[2:4]}"])


def block_text(rng, first):
    """Words of the 128 code points from `first` on, assigned or not."""
    words = ["".join(chr(first + rng.randrange(128)) for _ in range(rng.randint(1, 6))) for _ in range(rng.randint(2, 5))]
    return rng.choice([" ", "  ", "\n", "-", "1", "'s "]).join(words)


def many(count, make):
    return (make() for _ in range(count))


def wide_texts(rng, control):
    """(text, whether special tokens are parsed), LINES of them, all different."""
    blocks = [first for first in range(0, 0x20000, 0x80) if not 0xD800 <= first < 0xE000]
    rare = [*range(0x20000, 0x32400, 0x1280), 0xE0000, 0xE0080, 0xF0000, 0xFFF80, 0x100000, 0x10FF80]
    pieces = WORDS + SCRIPTS + EMOJI + NUMBERS + COMBINING
    kinds = [
        (block_text(rng, first) for first in blocks + rare),
        many(700, lambda: " ".join(rng.choice(WORDS) for _ in range(rng.randint(3, 14))) + rng.choice(["", ".", "\n", " "])),
        many(400, lambda: "".join(rng.choice(CODE_ATOMS) + rng.choice(["", "", " "]) for _ in range(rng.randint(4, 20)))),
        many(250, lambda: rng.choice([" ", "", "+"]).join(number(rng) for _ in range(rng.randint(1, 5)))),
        many(250, lambda: "".join(rng.choice(SPACES) * rng.randint(1, 12) + rng.choice(["", "a", "1", "é", "!", "漢"]) for _ in range(rng.randint(1, 6)))),
        many(250, lambda: rng.choice(["", " ", "ok "]).join(emoji_sequence(rng) for _ in range(rng.randint(1, 5)))),
        many(200, lambda: "".join(rng.choice(["a", "Z", "é", "क", "ก", "ש", "ل", "\u1112\u1161", " "]) + "".join(chr(rng.choice(MARKS)) for _ in range(rng.randint(0, 5)))
                                  for _ in range(rng.randint(2, 8)))),
        many(300, lambda: "".join(chr(scalar(rng)) for _ in range(rng.randint(1, 24)))),
        many(200, lambda: "".join(rng.choice("a1 \n'sté漢.\u00a0-\t²\u0301") for _ in range(rng.randint(3, 40)))),
        many(60, lambda: rng.choice(["a", " ", "\n", "=", "ab", "é", "漢", "😀", "0", "haha", "\u00a0", "-=", "\u0301", ". "]) * rng.randint(100, 1500)),
    ]
    texts = [text for kind in kinds for text in kind]
    mixed = [*control, *control, "<|im_end|", "|>", "<", "<|", "<file", "im_start", *WORDS[:40], *SPACES, *EMOJI, *NUMBERS]
    lines = {(text, rng.random() < 0.2): None for text in texts}
    while len(lines) < LINES - 400:
        lines["".join(rng.choice(pieces) + rng.choice(["", " ", " "]) for _ in range(rng.randint(2, 8))), False] = None
    while len(lines) < LINES:
        lines["".join(rng.choice(mixed) for _ in range(rng.randint(1, 9))), rng.random() < 0.6] = None
    return list(lines)[:LINES]


def encode_ill_formed(tokenizer, alphabet, data):
    """Well-formed stretches as usual; each maximal ill-formed subpart through the merges by itself."""
    ids = []
    while data:
        try:
            data.decode("utf-8")
            begin, end = len(data), len(data)
        except UnicodeDecodeError as error:
            begin, end = error.start, error.end
        ids += tokenizer.encode(data[:begin].decode("utf-8")).ids
        ids += [t.id for t in tokenizer.model.tokenize("".join(alphabet[b] for b in data[begin:end]))]
        data = data[end:]
    return ids


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("gguf", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    arguments = parser.parse_args()
    fields = gguf.GGUFReader(arguments.gguf).fields
    plain, control = build(fields, with_special=False)
    special, _ = build(fields, with_special=True)
    alphabet = byte_alphabet()
    rng = random.Random(SEED)

    header = {name: importlib.metadata.version(name) for name in ("tokenizers", "gguf")}
    header |= {"model": arguments.gguf.name, "seed": SEED, "unicode": unicodedata.unidata_version,
               "maker": "tools/make_tokenizer_fixtures.py"}

    def case(tokenizer, text, flag):
        line = {"t": text}
        if flag:
            line["s"] = 1
        line["i"] = tokenizer.encode(text).ids
        decoded = tokenizer.decode(line["i"], skip_special_tokens=False)
        if decoded != text:
            line["d"] = decoded
        return line

    lines = [case(plain, text, False) for text in texts(rng, control)]
    specials = list(special_texts(rng, control))
    lines += [case(special, text, True) for text in specials]
    lines += [case(plain, text, False) for text in specials]
    for data in ill_formed(rng):
        ids = encode_ill_formed(plain, alphabet, data)
        lines.append({"x": data.hex(), "i": ids, "d": plain.decode(ids, skip_special_tokens=False)})
    (arguments.out / "formats/tokenizer_smollm.jsonl").write_bytes(jsonl([header, *lines]))
    wide = [case(special if flag else plain, text, flag) for text, flag in wide_texts(random.Random(SEED), control)]
    (arguments.out / "cli/tokenize_smollm.jsonl.gz").write_bytes(gzip.compress(jsonl([header, *wide]), 9, mtime=0))
    print(len(lines), "and", len(wide), "cases")


def jsonl(lines):
    return "".join(json.dumps(line, separators=(",", ":"), ensure_ascii=True) + "\n" for line in lines).encode()


if __name__ == "__main__":
    main()
