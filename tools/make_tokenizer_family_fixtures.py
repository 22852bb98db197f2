#!/usr/bin/env python3
"""Writes formats/tokenizer_families.json.gz: small tokenizers trained under the published pipeline of
each model family, and what Hugging Face `tokenizers` (for Kimi: `tiktoken`) makes of 5,000 texts; and
formats/tokenizer_unicode.json.gz: the code points in each class that the pipelines look at, and the
normal forms, as those libraries have them.

    pip install tokenizers==0.23.2 tiktoken==0.14.0 gguf==0.19.0
    tools/make_tokenizer_family_fixtures.py tests/data
    tools/make_tokenizer_family_fixtures.py tests/data --sweep KDTREE GGUF...

families: "texts" [[text, whether special tokens are parsed]]; "families": {name: {"pre" the name in
GGUF files, "files" {name: content}, "hashes", "gguf_hashes"}}. Hashes: 8 hex digits a text, FNV-1a over
the ids (little-endian, 32 bits each); gguf_hashes: without the flags of added tokens, which GGUF files
do not have. unicode: "sets" {name: [first, last, ...]}, "nfc" {code point: its NFC}, "nfc_of_nfd",
"orders" {mark: code points that come to stand before it if they follow it}.

--sweep compares the ids of `KDTREE tokenize` for vocabularies of real models (GGUF files such as
llama.cpp's models/ggml-vocab-*.gguf) on the texts of the fixture, and writes nothing.
"""

import argparse
import base64
import copy
import gzip
import importlib.metadata
import json
import pathlib
import random
import subprocess

import gguf
import make_tokenizer_fixtures as common
import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SEED = 20261130
LINES = 5000
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?%s| ?[^\s\p{L}%s\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = (r"[" + "".join(rf"\p{{{c}}}" for c in group.split()) + r"&&[^\p{Han}]]" for group in ("Lu Lt Lm Lo M", "Ll Lm Lo M"))
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI = "|".join([r"[\p{Han}]+", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTION}", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTION}",
                 r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
DEEPSEEK_V3 = [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
               r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
               r"|\s*[\r\n]+|\s+(?!\S)|\s+"]
DEEPSEEK_LLM = ["[\r\n]",
                r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄ"
                r"ῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
                r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", "[一-龥ࠀ-一가-퟿]+"]


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def byte_level(use_regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


# name -> (name in GGUF files, pre-tokenizers, NFC, ignore_merges)
DIGITS = pre_tokenizers.Digits(individual_digits=True)
FAMILIES = {
    "gpt2": ("gpt-2", [byte_level(True)], False, False),
    "smollm": ("smollm", [DIGITS, byte_level(True)], False, False),
    "llama3": ("llama-bpe", [split(WORDS % (r"\p{L}+|\p{N}{1,3}", "")), byte_level()], False, True),
    "qwen2": ("qwen2", [split(WORDS % (r"\p{L}+|\p{N}", "")), byte_level()], True, False),
    "qwen35": ("qwen35", [split(WORDS % (r"[\p{L}\p{M}]+|\p{N}", r"\p{M}")), byte_level()], True, False),
    "deepseek-llm": ("deepseek-llm", [*map(split, DEEPSEEK_LLM), DIGITS, byte_level()], False, False),
    "deepseek-v3": ("deepseek-v3", [*map(split, DEEPSEEK_V3), byte_level()], False, False),
    "kimi": ("kimi-k2", [split(KIMI), byte_level()], False, True),
}

ADDED = [AddedToken("<|endoftext|>", special=True, normalized=False), AddedToken("<|im_start|>", special=True, normalized=False),
         AddedToken("<|im_end|>", special=True, normalized=False), AddedToken("<left>", special=True, lstrip=True, normalized=False),
         AddedToken("<right>", special=True, rstrip=True, normalized=False),
         AddedToken("<both>", special=False, lstrip=True, rstrip=True, normalized=False), AddedToken("<tool", special=False, normalized=False),
         AddedToken("<tool_call>", special=False, normalized=False), AddedToken("word", special=False, single_word=True, normalized=False),
         AddedToken("Wort", special=True, single_word=True, lstrip=True, normalized=False), AddedToken("\t\t", special=False, normalized=False),
         AddedToken("<im", special=True, normalized=False), AddedToken("m_>", special=False, normalized=False),
         AddedToken("caf\u00e9", special=False, normalized=True), AddedToken("A\u030a_", special=False, normalized=True),
         AddedToken("<norm>", special=False, normalized=True, rstrip=True)]
# tiktoken and GGUF files have no flags, and tiktoken wants to be given all special tokens.
ATOMS = [token.content for token in ADDED] + ["swordfish", "words", "Worts", "a_", "Å_", "cafe\u0301", "<im_>", "<tool_", " ", "  ", "\n", "\t", "\t\t\t",
         "x", "1", ".", "\u00e9", "\u0301", "\u200d", "Ⓐ", "_", "漢"]


def property_sets():
    """name -> the code points that match."""
    sets = {}
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    chunks = [points[i:i + 4096] for i in range(0, len(points), 4096)]
    names = "L M N P S Z Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn Han".split()
    patterns = {rf"\p{{{name}}}": name for name in names} | {r"\s": "s", r"\d": "d"} | {f"(?i:{c})": f"fold {c}" for c in "abcdefghijklmnopqrstuvwxyz'"}
    for pattern, name in patterns.items():
        keep = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
        ranks = tiktoken.Encoding("set", pat_str=pattern, mergeable_ranks={bytes([b]): b for b in range(256)}, special_tokens={})
        found = [ord(c) for chunk in chunks for piece, _ in keep.pre_tokenize_str("".join(map(chr, chunk))) for c in piece]
        again = [ord(c) for chunk in chunks for c in bytes(ranks.encode_ordinary("".join(map(chr, chunk)))).decode()]
        assert found == again, f"tokenizers and tiktoken differ in {pattern}"
        sets[name] = found
    sets["digits"] = [c for c in points if c != 0x61 and len(DIGITS.pre_tokenize_str("a" + chr(c))) == 2]
    for name, flags in (("word", {"single_word": True}), ("strip", {"lstrip": True})):
        probe = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
        probe.add_tokens([AddedToken("zq", normalized=False, **flags)])
        starts = [{offset[0] for offset, token in zip(e.offsets, e.ids) if token == 1}
                  for e in (probe.encode("".join(f"  {chr(c)}zq" if name == "word" else f"aa{chr(c)}zq" for c in chunk)) for chunk in chunks)]
        sets[name] = [c for start, chunk in zip(starts, chunks) for i, c in enumerate(chunk)
                      if (5 * i + 3 not in start if name == "word" else 5 * i + 2 in start)]
    return sets


def ranges(points):
    flat = []
    for c in points:
        if flat and flat[-1] == c - 1:
            flat[-1] = c
        else:
            flat += [c, c]
    return flat


def normal_forms():
    nfc, nfd = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    marks = [0x334, 0x3099, 0x5B0, 0x64B, 0x327, 0x323, 0x301, 0x345]
    return {
        "nfc": {c: form for c in points if (form := nfc(chr(c))) != chr(c) and not 0xAC00 <= c < 0xD7A4},
        "nfc_of_nfd": {c: form for c in points if (form := nfc(nfd(chr(c)))) != chr(c)},
        "orders": {mark: ranges([c for c in points if nfc(f"q{chr(mark)}{chr(c)}") == f"q{nfc(chr(c))}{chr(mark)}" and c != mark]) for mark in marks},
    }


def texts(sets):
    """(text, whether special tokens are parsed), LINES of them, all different."""
    rng = random.Random(SEED)
    borders = sorted({c + d for name in ("L", "M", "N", "P", "S", "Z", "Lu", "Ll", "Lt", "Lm", "Han", "s", "word", "digits", "Cn")
                      for end in ranges(sets[name]) for c in (end,) for d in (-1, 0, 1) if 0 <= c + d < 0x110000 and not 0xD800 <= c + d < 0xE000})
    folds = ["'s", "'S", "'\u017f", "'ll", "'Ll", "'RE", "'rE", "'VE", "'m", "'D", "'t", "'T", "K's", "\u212a's", "’s", "''s"]
    def border_text():
        parts = [chr(rng.choice(borders)) for _ in range(rng.randint(2, 12))]
        return "".join(c + rng.choice(["", "", "", " ", "a", "1", "!", "\n", "'s", "漢", "  ", "A"]) for c in parts)
    def cases_text():
        return "".join(rng.choice(["Ab", "aB", "ABC", "camelCase", "Zeug", "ǅ", "ʰ", "漢字", "ひら", "한", "é", "e\u0301", "123", "４５", "¹", *folds, " ", "\u3000", "。", "/", "_"])
                       for _ in range(rng.randint(2, 12)))
    def added_text():
        return "".join(rng.choice(ATOMS) for _ in range(rng.randint(2, 9)))
    def space_text():
        return "".join(rng.choice(common.SPACES) * rng.choice((1, 1, 2, 4)) + rng.choice(["", "", "a", "1", ".", "é", "漢", "'s", "😀"]) for _ in range(rng.randint(2, 8)))
    def mark_text():
        return "".join(rng.choice(["a", "q", "é", "Å", "ç", "한", "\u1100", "\u1161", "\u11a8", "क", "漢", " ", "1", "ǖ", "ệ"]) +
                       "".join(chr(rng.choice([*common.MARKS, 0x334, 0x3099, 0x327, 0x345])) for _ in range(rng.choice((0, 1, 1, 2, 3, 5)))) for _ in range(rng.randint(2, 7)))
    lines = {("", False): None, (common.PROSE, False): None, (common.CODE, False): None, (common.CODE.replace("\n", "\r\n"), False): None}
    for make, share in ((border_text, 0.24), (cases_text, 0.12), (added_text, 0.2), (space_text, 0.1), (mark_text, 0.1)):
        goal = len(lines) + int(share * LINES)
        while len(lines) < goal:
            lines[make(), rng.random() < 0.5] = None
    wide = [text for text, _ in common.wide_texts(random.Random(SEED), ATOMS[:3])]
    rng.shuffle(wide)
    for text in wide:
        if len(lines) < LINES:
            lines[text[:300], rng.random() < 0.5] = None
    assert len(lines) == LINES
    return list(lines)


def fnv(ids):
    value = 0x811C9DC5
    for byte in b"".join(int(i).to_bytes(4, "little") for i in ids):
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"{value:08x}"


def hashes(tokenizer, lines):
    found = []
    for text, special in lines:
        tokenizer.encode_special_tokens = not special
        found.append(fnv(tokenizer.encode(text, add_special_tokens=False).ids))
    return "".join(found)


def train(name):
    _, steps, nfc, ignore_merges = FAMILIES[name]
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.normalizer = normalizers.NFC() if nfc else None
    corpus = [common.PROSE, common.CODE, *common.SCRIPTS, *common.EMOJI] * 4 + [text for text, _ in common.wide_texts(random.Random(SEED + 1), [])]
    trainer = trainers.BpeTrainer(vocab_size=1400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=[], show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def with_flags_cleared(tokenizer):
    data = json.loads(tokenizer.to_str())
    for token in data["added_tokens"]:
        token |= {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    return Tokenizer.from_str(json.dumps(data))


def hugging_face(name, lines):
    tokenizer = train(name)
    if name == "llama3":  # some tokens that no merge makes
        data = json.loads(tokenizer.to_str())
        data["model"]["merges"] = [merge for i, merge in enumerate(data["model"]["merges"]) if i % 9 != 5]
        tokenizer = Tokenizer.from_str(json.dumps(data))
    for token in ADDED:
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([copy.copy(token)])
    if name == "llama3":
        first = tokenizer.token_to_id("<|im_start|>")
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
            single="<|im_start|> $A", pair="<|im_start|> $A <|im_start|> $B", special_tokens=[("<|im_start|>", first)])])
    config = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>", "__type": "AddedToken"}}
    return {"pre": FAMILIES[name][0], "files": {"tokenizer.json": tokenizer.to_str(), "tokenizer_config.json": json.dumps(config)},
            "hashes": hashes(tokenizer, lines), "gguf_hashes": hashes(with_flags_cleared(tokenizer), lines)}


def kimi(lines):
    letters = {c: b for b, c in enumerate(common.byte_alphabet())}
    vocabulary = sorted(train("kimi").get_vocab().items(), key=lambda item: item[1])
    ranks = {bytes(letters[c] for c in token): i for i, (token, _) in enumerate(vocabulary)}
    count = len(ranks)
    named = {count: "<|endoftext|>", count + 1: "<|im_start|>", count + 2: "<|im_end|>", count + 7: "<tool", count + 9: "<tool_call>", count + 200: "word"}
    special = {named.get(i, f"<|reserved_token_{i}|>"): i for i in range(count, count + 256)}
    encoding = tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens=special)
    found = [fnv(encoding.encode(text, allowed_special="all" if parsed else set(), disallowed_special=())) for text, parsed in lines]
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    config = {"tokenizer_class": "TikTokenTokenizer", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>",
              "added_tokens_decoder": {str(i): {"content": text} | flags for i, text in named.items()}}
    model = "".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items())
    return {"pre": "kimi-k2", "files": {"tiktoken.model": model, "tokenizer_config.json": json.dumps(config)}, "hashes": "".join(found), "gguf_hashes": "".join(found)}


def sweep(program, path, lines):
    """Compares a real vocabulary; returns the texts whose ids differ."""
    fields = gguf.GGUFReader(path).fields
    tokens, types = fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.token_type"].contents()
    pre = fields["tokenizer.ggml.pre"].contents()
    name = {"starcoder": "smollm", "refact": "smollm"}.get(pre) or next(n for n, family in FAMILIES.items() if family[0] == pre)
    _, steps, nfc, ignore_merges = FAMILIES[name]
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges, ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.normalizer = normalizers.NFC() if nfc else None
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t, kind in zip(tokens, types) if kind == 3])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t, kind in zip(tokens, types) if kind == 4])
    inputs = "".join(json.dumps({"text": text, "special": special}) + "\n" for text, special in lines)
    output = subprocess.run([program, "tokenize", "--model", path], input=inputs, capture_output=True, text=True, check=True).stdout
    wrong = []
    for (text, special), line in zip(lines, output.splitlines(), strict=True):
        tokenizer.encode_special_tokens = not special
        if json.loads(line)["ids"] != tokenizer.encode(text, add_special_tokens=False).ids:
            wrong.append(text)
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--sweep", nargs="+")
    arguments = parser.parse_args()
    fixture = arguments.out / "formats/tokenizer_families.json.gz"
    if arguments.sweep:
        program, *paths = arguments.sweep
        lines = json.loads(gzip.decompress(fixture.read_bytes()))["texts"]
        for path in paths:
            wrong = sweep(program, path, lines)
            print(f"{pathlib.Path(path).name}: {len(wrong)} of {len(lines)} texts differ {wrong[:3]}")
        return
    sets = property_sets()
    lines = texts(sets)
    made_by = {"maker": "tools/make_tokenizer_family_fixtures.py", "seed": SEED} | {n: importlib.metadata.version(n) for n in ("tokenizers", "tiktoken")}
    families = {name: kimi(lines) if name == "kimi" else hugging_face(name, lines) for name in FAMILIES}
    write(fixture, {"made_by": made_by, "texts": lines, "families": families})
    write(arguments.out / "formats/tokenizer_unicode.json.gz", {"made_by": made_by, "sets": {n: ranges(s) for n, s in sets.items()}} | normal_forms())


def write(path, data):
    path.write_bytes(gzip.compress(json.dumps(data, separators=(",", ":")).encode(), 9, mtime=0))
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
