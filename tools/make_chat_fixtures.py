#!/usr/bin/env python3
"""Published chat templates and random ones, with what transformers makes of them:
tests/data/formats/template_chats.json.gz and template_random.json.gz.

    pip install jinja2==3.1.6 numpy==2.4.6 transformers==5.24.0
    pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36    # models/templates of llama.cpp (MIT)
    git clone https://github.com/chujiezheng/chat_templates              # (MIT)
    tools/make_chat_fixtures.py --templates FOLDER... --out tests/data/formats
    tools/make_chat_fixtures.py --templates FOLDER... --sweep build/cpu/render_templates [--random COUNT] [--seed N]

--sweep compares all templates found in the folders, and that many random ones, and prints what differs.
A case has "output" or "error": the exception's name, with "message" if the template raised it.
"""

import argparse
import collections
import collections.abc
import datetime
import gzip
import importlib.metadata
import json
import pathlib
import random
import re
import subprocess

import transformers.utils.chat_template_utils as chat_template_utils

NOW_US = 1796043909000123  # 2026-11-30 13:05:09.000123 UTC
ORIGINS = {"models/templates": "https://github.com/ggml-org/llama.cpp (MIT)", "chat_templates": "https://github.com/chujiezheng/chat_templates (MIT)"}
# Those that are committed: one of each family.
COMMITTED = """
Apertus-8B-Instruct ByteDance-Seed-OSS GLM-4.6 HuggingFaceTB-SmolLM3-3B Kimi-K2-Instruct LFM2-8B-A1B MiniMax-M2
Mistral-Small-3.2-24B-Instruct-2506 NVIDIA-Nemotron-Nano-v2 NousResearch-Hermes-3-Llama-3.1-8B-tool_use Qwen-QwQ-32B
Qwen-Qwen2.5-7B-Instruct Qwen-Qwen3-0.6B Qwen3-Coder deepseek-ai-DeepSeek-R1-Distill-Qwen-32B deepseek-ai-DeepSeek-V3.1
fireworks-ai-llama-3-firefunction-v2 google-gemma-2-2b-it ibm-granite-granite-3.3-2B-Instruct meetkai-functionary-medium-v3.1
meetkai-functionary-medium-v3.2 meta-llama-Llama-3.1-8B-Instruct meta-llama-Llama-3.2-3B-Instruct microsoft-Phi-3.5-mini-instruct
mistralai-Mistral-Nemo-Instruct-2407 openai-gpt-oss-120b CohereForAI-c4ai-command-r7b-12-2024-tool_use
chatml falcon-instruct llama-2-chat mistral-instruct openchat-3.5 phi-3-small vicuna zephyr
""".split()


class Frozen(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(1970, 1, 1) + datetime.timedelta(microseconds=NOW_US)


chat_template_utils.datetime = Frozen


def rendered(source, variables):
    """The case of a template: what it gives, or how it fails."""
    try:
        return {"output": chat_template_utils._compile_jinja_template(source).render(**variables)}
    except Exception as error:
        case = {"error": type(error).__name__}
        return case | ({"message": str(error)} if type(error).__name__ == "TemplateError" else {})


# --- conversations --------------------------------------------------------------------------------

def user(content):
    return {"role": "user", "content": content}


def assistant(content, **fields):
    return {"role": "assistant", "content": content, **fields}


SYSTEM = {"role": "system", "content": "Be brief.\nUse \"metric\" units <always> & often."}
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Today's <weather> & \"sky\" – né", "parameters": {
        "type": "object", "properties": {
            "city": {"type": "string", "description": "The city, e.g. Łódź"},
            "days": {"type": "integer", "minimum": 1, "default": 2},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "place": {"type": "object", "properties": {"lat": {"type": "number"}, "name": {"type": ["string", "null"]}}, "required": ["lat"]}},
        "required": ["city", "days"]}, "return": {"type": "string", "description": "The sky."}}}
PLAIN = {"type": "function", "function": {"name": "time", "description": "The time.", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "call12345", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Łódź", "days": 1, "deep": {"a": [1.5, None, True]}}}}
SECOND = {"id": "abcde6789", "type": "function", "function": {"name": "time", "arguments": {}}}
RESULT = {"role": "tool", "tool_call_id": "call12345", "name": "get_weather", "content": "{\"sky\": \"grey\", \"t\": -3.5}"}
DOCUMENTS = [{"title": "Trees", "text": "Trees are tall.", "doc_id": 1}, {"title": "Ünï", "text": "漢字 😀", "doc_id": 2}]


def conversations():
    """(name, variables)"""
    def chat(*messages, prompt=True, tools=None, documents=None, **more):
        messages = chat_template_utils._alias_reasoning_fields(list(messages))
        return {"messages": messages, "tools": tools, "documents": documents, "add_generation_prompt": prompt,
                "bos_token": "<s>", "eos_token": "</s>", **more}

    yield "single turn", chat(user("What is 2 + 2?"))
    yield "no prompt", chat(user("What is 2 + 2?"), prompt=False)
    yield "system", chat(SYSTEM, user("Hello"))
    yield "multi-turn", chat(SYSTEM, user(" a \n"), assistant("  b\n\n"), user("c"), assistant("d"), user("e"))
    yield "ends with the assistant", chat(user("a"), assistant("b"), prompt=False)
    yield "tools", chat(SYSTEM, user("The weather?"), tools=[WEATHER, PLAIN])
    yield "tools without a system turn", chat(user("The weather?"), tools=[WEATHER])
    yield "tool call", chat(user("The weather?"), assistant("", tool_calls=[CALL]), RESULT, tools=[WEATHER, PLAIN])
    yield "tool call and answer", chat(SYSTEM, user("The weather?"), assistant("Let me see.", tool_calls=[CALL]), RESULT,
                                       assistant("Grey."), user("Thanks"), tools=[WEATHER])
    yield "two tool calls", chat(user("Now?"), assistant("", tool_calls=[CALL, SECOND]), RESULT,
                                 {"role": "tool", "tool_call_id": "abcde6789", "name": "time", "content": "12:00"}, tools=[WEATHER, PLAIN])
    yield "tool call without content", chat(user("Now?"), {"role": "assistant", "tool_calls": [SECOND]}, RESULT, tools=[PLAIN])
    yield "null content", chat(user("Now?"), assistant(None, tool_calls=[SECOND]), RESULT, tools=[PLAIN], prompt=False)
    yield "arguments as text", chat(user("Now?"), assistant("", tool_calls=[{"type": "function", "id": "x1y2z3a4b", "function": {
        "name": "get_weather", "arguments": "{\"city\": \"Paris\"}"}}]), RESULT, tools=[WEATHER])
    yield "reasoning", chat(user("a"), assistant("b", reasoning_content="So\n  many"), user("c"), assistant("d", reasoning_content="thoughts"), prompt=False)
    yield "thinking in the content", chat(user("a"), assistant("<think>\nhm\n</think>\n\nb"), user("c"))
    yield "thinking off", chat(user("a"), enable_thinking=False, thinking=False, reasoning_effort="low")
    yield "thinking on", chat(SYSTEM, user("a"), enable_thinking=True, thinking=True, reasoning_effort="high")
    yield "documents", chat(user("Trees?"), documents=DOCUMENTS)
    yield "list content", chat(user([{"type": "text", "text": "What "}, {"type": "text", "text": "is it?"}]))
    yield "image", chat(user([{"type": "image", "image": "x.png"}, {"type": "text", "text": "What is it?"}]))
    yield "unicode and specials", chat(user("naïve 漢字 😀👩‍👩‍👧 e\u0301 \u2028 שלום \u0000 {{ x }} <|im_end|> 'q' \"d\" \\n \\"), assistant("ok"), user("ß"))
    yield "empty content", chat(user(""), assistant(""), user(" "))
    yield "roles do not alternate", chat(user("a"), user("b"))
    yield "starts with the assistant", chat(assistant("a"), user("b"))
    yield "late system", chat(user("a"), SYSTEM, user("b"))
    yield "unknown role", chat(user("a"), {"role": "narrator", "content": "b"})
    yield "developer", chat({"role": "developer", "content": "Be kind."}, user("a"), tools=[PLAIN], builtin_tools=["browser", "python"],
                            date_string="1 Jan 2025", custom_tools=None, tools_in_user_message=False)
    yield "no messages", chat()


# --- random templates -----------------------------------------------------------------------------

VARIABLES = {
    "s": "  Hello, World \n", "w": "aBc dEf-ghi", "n": 7, "m": -3, "f": 2.5, "t": True, "z": None, "e": "", "l": [3, 1, 2], "empty": [],
    "words": ["pear", "Apple", "fig", "apple"], "d": {"b": 1, "a": [1, {"c": None}], "key": "v", "items_": 2}, "u": "naïve ΑΣ 漢😀",
    "people": [{"name": "Ann", "age": 30, "tags": ["x"]}, {"name": "bob", "age": 5, "tags": []}, {"name": "Cy", "age": 30}],
    "nested": [[1, 2], [3], []], "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "tool_calls": [{"id": 1}]}],
}


class Generator:
    """Small templates over VARIABLES; most of them mean something."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.names = list(VARIABLES) + ["missing"]

    def pick(self, *options):
        choice = self.random.choice(options)
        return choice() if callable(choice) else choice

    def text(self, depth):
        if depth <= 0:
            return self.pick("s", "w", "e", "u", "'a b c'", "'x-y'", "\"it's\"", "'é\\n'", "d.key", "words[0]", "'%'", "'12'", "'<a>&'")
        return self.pick(
            lambda: f"({self.text(depth - 1)} + {self.text(depth - 1)})", lambda: f"({self.any(depth - 1)} ~ {self.any(depth - 1)})",
            lambda: f"{self.text(depth - 1)}|{self.text_filter(depth - 1)}", lambda: f"({self.text(depth - 1)}).{self.text_method(depth - 1)}",
            lambda: f"{self.list(depth - 1)}|join({self.text(0)})", lambda: f"{self.any(depth - 1)}|string",
            lambda: f"{self.any(depth - 1)}|tojson{self.pick('', '(indent=2)', '(sort_keys=true)', '(ensure_ascii=true)')}",
            lambda: f"({self.text(depth - 1)})[{self.slice()}]", lambda: f"({self.text(depth - 1)} * {self.pick('2', '0', 'm', 't')})",
            lambda: f"({self.text(depth - 1)} if {self.test(depth - 1)} else {self.text(depth - 1)})",
            lambda: f"{self.any(depth - 1)}|default({self.text(0)}{self.pick('', ', true')})", lambda: f"({self.any(depth - 1)})|trim",
            lambda: f"{self.pick(repr('%s/%5s|%-4s'), repr('%r %s %d'), repr('%05.1f%% %s %s'))} % ({self.any(0)}, {self.any(0)}, {self.number(0)})",
            lambda: f"'{self.pick('{} {} {}', '{0}{1!r}{0}', '{:>6} {:^8}|{}', '{2:05d}{0}', '{a}{{}}{0:<4}')}'.format({self.text(0)}, {self.text(0)}, {self.number(0)}, a={self.any(0)})",
            self.name)

    def text_filter(self, depth):
        return self.pick("trim", "upper", "lower", "title", "capitalize", "length", "first", "last", "list", "reverse", "string", "safe", "escape",
                         "replace('l', 'L')", "replace('', '.')", "replace('o', '', 1)", "indent", "indent(2, true)", "indent(width='> ', blank=true)",
                         "int", "float", "int(-1)", "join('-')", "sort|join", "unique|join", "trim(' a')", "e ~ '<'", "safe + '<&>'", "items",
                         "abs", "max", "min", "d('x')", "map('upper')|join", "select|list|length")

    def text_method(self, depth):
        arg = self.pick("'a'", "' '", "'l'", "'-'", "'xyz'", "''", "'b c'")
        return self.pick("strip()", "lstrip()", "rstrip()", f"strip({arg})", f"lstrip({arg})", f"rstrip({arg})", "upper()", "lower()", "title()", "capitalize()",
                         "split()", f"split({arg})", f"split({arg}, 1)", f"rsplit({arg}, 1)", "rsplit(none, 1)", "split(none, 1)", "split(maxsplit=1)", f"startswith({arg})", f"endswith({arg})",
                         "endswith(('n ', ' '))", f"find({arg})", f"rfind({arg})", f"index({arg})", f"count({arg})", f"replace({arg}, 'Q')",
                         f"replace({arg}, 'Q', 1)", "splitlines()", "splitlines(true)", "isdigit()", "isalpha()", "isspace()", "isupper()", "islower()", "isalnum()",
                         f"partition({arg})", f"rpartition({arg})", "join(words)", "join(l)", "join(empty)", "zfill(6)", "ljust(9, '.')", "rjust(20)", "center(9, '*')",
                         f"removeprefix({arg})", f"removesuffix({arg})", "strip", "nothing", "nothing()", f"find({arg}, 2)", f"startswith({arg}, 1, 4)")

    def number(self, depth):
        if depth <= 0:
            return self.pick("n", "m", "f", "t", "0", "1", "2", "10", "-4", "1.5", "1e3", "d.b", "l[1]", "0x1F", "1_0", "people[1].age")
        op = self.pick("+", "-", "*", "/", "//", "%", "**")
        return self.pick(lambda: f"({self.number(depth - 1)} {op} {self.number(0)})", lambda: f"-{self.number(0)}", lambda: f"({self.any(depth - 1)})|length",
                         lambda: f"{self.list(depth - 1)}|{self.pick('sum', 'max', 'min', 'length', 'count', 'first', 'last')}", lambda: f"({self.number(depth - 1)})|abs",
                         lambda: f"({self.number(depth - 1)})|round{self.pick('', '(1)', '(2)', '(1, ' + repr('floor') + ')', '(0, ' + repr('ceil') + ')')}",
                         lambda: f"{self.any(depth - 1)}|{self.pick('int', 'float', 'int(5)', 'float(1.5)')}", lambda: f"people|sum(attribute='age')",
                         lambda: f"people|map(attribute='age')|{self.pick('sum', 'max', 'min', 'list', 'first')}", lambda: f"l.{self.pick('index', 'count')}({self.number(0)})")

    def list(self, depth):
        if depth <= 0:
            return self.pick("l", "empty", "words", "people", "nested", "[1, 'a', none]", "(1, 2)", "range(4)", "d", "d.items()", "d.keys()", "d.values()", "d|items", "messages", "w")
        inner = lambda: self.list(depth - 1)  # noqa: E731
        return self.pick(
            lambda: f"{inner()}|list", lambda: f"{inner()}|reverse|list", lambda: f"{inner()}|sort{self.pick('', '(reverse=true)', '(case_sensitive=true)')}",
            lambda: f"{inner()}|unique|list", lambda: f"({inner()} + {inner()})", lambda: f"({inner()})[{self.slice()}]", lambda: f"[{self.any(depth - 1)}, {self.any(0)}]",
            lambda: f"({self.any(depth - 1)}, {self.any(0)})", lambda: f"{inner()}|map('{self.pick('string', 'upper', 'length', 'int', 'tojson', 'first', 'default', 'trim')}')|list",
            lambda: f"people|map(attribute='{self.pick('name', 'age', 'tags', 'tags.0', 'nope')}'{self.pick('', ', default=0', ', default=' + repr('q'))})|list",
            lambda: f"people|{self.pick('selectattr', 'rejectattr')}('{self.pick('name', 'age', 'tags')}'{self.test_arguments()})|list",
            lambda: f"{inner()}|{self.pick('select', 'reject')}({self.test_arguments()[2:]})|list", lambda: f"{inner()}|{self.pick('select', 'reverse')}",
            lambda: f"d|dictsort{self.pick('', '(true)', '(reverse=true)', '(by=' + repr('value') + ')')}", lambda: f"people|sort(attribute='{self.pick('name', 'age', 'tags')}')|map(attribute='name')|list",
            lambda: f"({self.text(depth - 1)}).split({self.pick('', repr(' '), repr('-'))})", lambda: f"words|unique|list", lambda: f"words|sort", lambda: f"words|{self.pick('min', 'max')}",
            lambda: f"{self.mapping(depth - 1)}", lambda: f"({inner()} * {self.pick('2', '0', 'm')})", lambda: f"range({self.pick('0', '3', '1, 4', '5, 0, -2', 'n', 'f')})|list",
            lambda: f"dict({self.pick('a=1, b=s', 'd', 'd, b=9', 'l')})")

    def mapping(self, depth):
        return self.pick("d", "{}", "{'a': 1}", lambda: "{'k': " + self.any(depth - 1) + ", 'j': " + self.any(0) + "}", "people[0]", "messages[1]", "dict(x=l)")

    def test_arguments(self):
        return self.pick("", ", 'string'", ", 'equalto', 30", ", '==', 'Ann'", ", 'in', [5, 'bob', 1]", ", 'defined'", ", 'none'", ", 'gt', 5", ", 'ne', 2", ", 'lt', 3",
                         ", 'odd'", ", 'number'", ", 'mapping'", ", 'sequence'", ", 'iterable'", ", 'undefined'", ", 'le', 2", ", 'boolean'")

    def test(self, depth):
        if depth <= 0:
            return self.pick("t", "z", "missing", "l", "empty", "n > 3", "'a' in w", "s is string", "missing is defined", "d.nope is none", "loop is defined")
        return self.pick(
            lambda: f"{self.any(depth - 1)} {self.pick('==', '!=', '<', '>=', '<=', '>', 'in', 'not in')} {self.any(depth - 1)}",
            lambda: f"{self.number(0)} {self.pick('<', '<=')} {self.number(0)} {self.pick('<', '==', '!=')} {self.number(0)}",
            lambda: f"not {self.test(depth - 1)}", lambda: f"({self.test(depth - 1)} {self.pick('and', 'or')} {self.test(depth - 1)})",
            lambda: f"{self.any(depth - 1)} is {self.pick('', 'not ')}{self.pick('defined', 'undefined', 'none', 'string', 'number', 'integer', 'float', 'boolean', 'true', 'false', 'mapping', 'sequence', 'iterable', 'callable', 'odd', 'even', 'divisibleby 3', 'equalto 7', 'eq(1)', 'in [1, 2]', 'upper', 'lower', 'sameas none', 'sameas(true)', 'ge 2', 'escaped')}")

    def slice(self):
        part = lambda: self.pick("", "0", "1", "-1", "2", "-9", "99", "m", "none", "-2")  # noqa: E731
        return self.pick(f"{part()}:{part()}", f"{part()}:{part()}:{self.pick('', '1', '2', '-1', '-2', '0' if self.random.random() < 0.1 else '3')}", f"::{self.pick('-1', '2')}")

    def name(self):
        return self.pick(*self.names)

    def any(self, depth):
        if depth <= 0:
            return self.pick(self.name, lambda: self.text(0), lambda: self.number(0), lambda: self.list(0), "none", "true", "d.a", "people[0].name", "l[-1]", "d['a'][1]", "d.nope",
                             "people.0", "l[5]", "u[2]", "messages[1].content", "missing.x" if self.random.random() < 0.1 else "z")
        return self.pick(lambda: self.text(depth), lambda: self.number(depth), lambda: self.list(depth), lambda: self.mapping(depth), lambda: self.test(depth), lambda: self.any(0),
                         lambda: f"({self.any(depth - 1)}).{self.pick('name', 'age', 'b', '0', 'x', 'role', 'items', 'keys', 'get(' + repr('a') + ')', 'get(' + repr('b') + ', 2)', 'copy()', 'count(1)', 'append(1)')}",
                         lambda: f"({self.any(depth - 1)})[{self.pick('0', '-1', '1', repr('name'), repr('a'), 'n', 'z', '1.0')}]")

    def tag(self, body):
        return "{%" + self.pick("", "", "-", "+") + " " + body + " " + self.pick("", "", "-", "+") + "%}"

    def block(self, depth):
        return "".join(self.statement(depth) for _ in range(self.random.randint(1, 3)))

    def printed(self, depth):
        return "{{" + self.pick("", "", "-", "+") + " " + self.any(depth) + " " + self.pick("", "", "-") + "}}"

    def statement(self, depth):
        if depth <= 0:
            return self.pick(lambda: self.printed(1), lambda: self.printed(2), "text", " \n", "\n  ", "a {# c #} b", "\n{#- c -#}\n", "{{ v }}", "{{ ns.x }}", "{{ loop.index }}")
        body = lambda: self.block(depth - 1)  # noqa: E731
        filters = lambda: self.pick("upper", "trim", "indent(2)", "replace('a', 'A')|title", "length")  # noqa: E731
        return self.pick(
            lambda: self.printed(3), lambda: self.statement(0), lambda: self.tag(f"set v = {self.any(2)}"), lambda: self.tag("set v") + body() + self.tag("endset"),
            lambda: self.tag(f"if {self.test(2)}") + body() + self.pick("", self.tag(f"elif {self.test(1)}") + body()) + self.pick("", self.tag("else") + body()) + self.tag("endif"),
            lambda: self.tag(f"for v in {self.list(2)}{self.pick('', ' if v', ' if ' + self.test(1))}") + body() + self.pick("", "{{ loop.index }}/{{ loop.length }}{{ loop.last }},", "{{ loop.changed(v) }}", "{{ loop.previtem }}{{ loop.nextitem is defined }}", "{{ loop.cycle('x', 'y') }}")
            + self.pick("", self.tag(f"if {self.test(1)}") + self.tag(self.pick("break", "continue")) + self.tag("endif") + "t") + self.pick("", self.tag("else") + body()) + self.tag("endfor"),
            lambda: self.tag(f"for k, v in {self.pick('d.items()', 'd|items', 'nested', 'd|dictsort', self.list(1))}") + "{{ k }}" + body() + self.tag("endfor"),
            lambda: self.tag(f"set ns = namespace(x={self.any(1)})") + self.tag("for v in l") + self.tag(f"set ns.x = {self.pick('v', 'ns.x ~ v', self.any(1))}") + body() + self.tag("endfor") + "{{ ns.x }}",
            lambda: self.tag(f"macro f(a, b={self.any(1)})") + self.pick("{{ a }}|{{ b }}", "{{ caller() }}{{ a }}", "{{ varargs }}{{ kwargs }}") + body() + self.tag("endmacro")
            + self.pick("{{ f(1) }}", "{{ f(s, b=2)|upper }}", "{{ f() }}", "{{ f(1, 2, 3) }}", "{{ f(1, c=2) }}", "{% call f(2) %}{{ v }}c{% endcall %}", "{{ f }}", "{{ f(b=1, a=l) }}"),
            lambda: self.tag(f"set v | {filters()}") + body() + self.tag("endset") + "{{ v }}", lambda: self.tag(f"filter {filters().replace('length', 'lower')}") + body() + self.tag("endfilter"),
            lambda: self.tag(f"with v = {self.any(1)}, q = v") + "{{ v }}{{ q }}" + body() + self.tag("endwith"), lambda: self.tag("raw") + " {{ x }} {% y \n" + self.tag("endraw") + "\n z",
            lambda: self.tag(f"set v, q = {self.pick('1, 2', 'l', self.list(1))}") + "{{ q }}", lambda: self.tag("generation") + body() + self.tag("endgeneration"),
            lambda: "{{ strftime_now('%d %b %Y %H:%M:%S.%f %A %j %-d%%') }}", lambda: "{{ raise_exception(" + self.text(1) + ") }}" if self.random.random() < 0.2 else "x")

    def template(self):
        return self.block(self.random.randint(0, 2))


def printable_case(case):
    """Whether the text is the same every time: no addresses, and nothing that we are known not to print."""
    printed = []
    environment = chat_template_utils._compile_jinja_template("").environment.overlay(finalize=lambda value: printed.append(value) or value)
    try:
        environment.from_string(case["template"]).render(**VARIABLES)
    except Exception:
        pass
    if any(isinstance(value, (collections.abc.Iterator, range)) for value in printed):
        return False
    text = case.get("output", "") + case.get("message", "")
    return not re.search(r" at 0x|<built-in|range\(|<Namespace|<class|<function", text, re.IGNORECASE)


def random_cases(count, seed):
    generator = Generator(seed)
    cases = []
    while len(cases) < count:
        source = generator.template()
        case = {"template": source} | rendered(source, VARIABLES)
        if len(case.get("output", "")) < 2000 and printable_case(case):
            cases.append(case)
    return cases


# --- files ----------------------------------------------------------------------------------------

def find_templates(folders):
    """{name: (origin, source)}"""
    found = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.jinja")):
            origin = next((url for part, url in ORIGINS.items() if part in str(path)), "unknown")
            found[path.stem] = (origin, path.read_text(encoding="utf-8"))
    return found


def write(path, document):
    versions = {name: importlib.metadata.version(name) for name in ("jinja2", "transformers")}
    document = versions | {"maker": "tools/make_chat_fixtures.py", "now_us": NOW_US} | document
    data = json.dumps(document, ensure_ascii=True, separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(data, 9, mtime=0))
    print(path, path.stat().st_size, "bytes of", len(data))


def chat_document(templates):
    chats = dict(conversations())
    cases = [{"template": name, "chat": chat} | rendered(templates[name][1], variables)
             for name in COMMITTED for chat, variables in chats.items()]
    print(len(COMMITTED), "templates,", len(cases), "renderings,", sum("error" in case for case in cases), "of them errors")
    return {"templates": {name: {"origin": templates[name][0], "source": templates[name][1]} for name in COMMITTED},
            "chats": chats, "cases": cases}


def differs(case, answer):
    """What is wrong with an answer, or None."""
    if "error" in case:
        if "error" not in answer:
            return f"{case['error']} expected, got {answer['output']!r}"
        expected = case.get("message", answer["error"]).replace("\n", "\\n")  # thrown as one line
        return f"message {answer['error']!r}" if answer["error"] != expected else None
    if "error" in answer:
        return answer["error"]
    return f"got\n{answer['output']!r}, not\n{case['output']!r}" if answer["output"] != case["output"] else None


def sweep(program, templates, count, seed):
    cases = [(f"{name}: {chat}", source, variables, rendered(source, variables))
             for name, (_, source) in templates.items() for chat, variables in conversations()]
    cases += [(case["template"], case["template"], VARIABLES, case) for case in random_cases(count, seed)]
    lines = [json.dumps({"template": source, "variables": variables, "now": NOW_US}) for _, source, variables, _ in cases]
    run = subprocess.run([program], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True, env={"TZ": "UTC"})
    results = collections.Counter()
    for (name, _, _, case), line in zip(cases, run.stdout.split("\n")):
        answer = json.loads(line)
        wrong = differs(case, answer)
        results["unsupported" if wrong and answer.get("unsupported") else "wrong" if wrong else "error" if "error" in case else "same text"] += 1
        if wrong:
            print(f"{name}\n  {case.get('error', '')} {wrong}")
    print(len(templates), "templates,", len(cases), "renderings:", dict(results))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--templates", type=pathlib.Path, nargs="*", default=[])
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--sweep", type=pathlib.Path, help="the program render_templates")
    parser.add_argument("--random", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    templates = find_templates(arguments.templates)
    if arguments.sweep:
        sweep(arguments.sweep, templates, arguments.random, arguments.seed)
    if arguments.out:
        write(arguments.out / "template_chats.json.gz", chat_document(templates))
        write(arguments.out / "template_random.json.gz", {"variables": VARIABLES, "cases": random_cases(arguments.random, arguments.seed)})


if __name__ == "__main__":
    main()
