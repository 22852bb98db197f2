#!/usr/bin/env python3
"""Writes chat templates, variables and what jinja2 makes of them, configured as transformers
configures it: formats/template_cases.json for the interpreter, cli/conversations.json for the
command, there with the variables that transformers adds and the ids that `tokenizers` gives.

    pip install jinja2==3.1.6 gguf==0.19.0 tokenizers==0.23.2
    tools/make_template_fixtures.py SmolLM2-135M-Instruct.Q4_1.gguf tests/data

A case has "output" (a conversation "text" and "ids"), or "error" (the exception's name) and "names":
what our message must mention.
"""

import argparse
import importlib.metadata
import json
import pathlib

import gguf
import jinja2.ext
import make_tokenizer_fixtures
from jinja2.sandbox import ImmutableSandboxedEnvironment

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "What is 2 + 2?"}
ASSISTANT = {"role": "assistant", "content": "4"}


def chats():
    def chat(*messages, prompt=True):
        return {"messages": list(messages), "add_generation_prompt": prompt}

    yield "default system turn", chat(USER)
    yield "given system", chat(SYSTEM, USER)
    yield "late system", chat(USER, SYSTEM, USER)
    yield "multi-turn", chat(SYSTEM, USER, ASSISTANT, {"role": "user", "content": "And 3 + 3?"})
    yield "multi-turn default", chat(USER, ASSISTANT, USER, prompt=False)
    yield "no generation prompt", chat(SYSTEM, USER, prompt=False)
    yield "empty content", chat({"role": "user", "content": ""})
    yield "unusual roles", chat({"role": "tool", "content": "ok"}, {"role": "Ünï ☃", "content": "x"}, {"role": "", "content": ""})
    yield "special characters", chat({"role": "user", "content": "<b>&\"'</b> {{ x }} {% y %} \\n \t\n\n <|im_end|> 漢😀\u0000\u200b"})
    yield "white space kept", chat({"role": "user", "content": "  \n a  \n"}, {"role": "assistant", "content": "\n"})
    yield "no messages", {"messages": [], "add_generation_prompt": True}
    yield "prompt flag missing", {"messages": [USER]}
    yield "messages missing", {"add_generation_prompt": True}
    yield "tools ignored", chat(USER) | {"tools": [{"type": "function", "function": {"name": "f"}}]}


CHAT_ERRORS = [
    ("null content", {"messages": [SYSTEM, {"role": "user", "content": None}]}, "message['content']"),
    ("list content", {"messages": [SYSTEM, {"role": "user", "content": [{"type": "text", "text": "a"}]}]}, "message['content']"),
    ("missing content", {"messages": [SYSTEM, {"role": "user"}]}, "message['content']"),
    ("number role", {"messages": [SYSTEM, {"role": 5, "content": "a"}]}, "message['role']"),
    ("messages of strings", {"messages": ["a"]}, "message['role']"),
    ("messages is a number", {"messages": 5}, "cannot be iterated"),
]

V = {"s": "  Hello, World \n", "n": 7, "f": 2.5, "t": True, "z": None, "e": "", "l": [3, 1, 2], "empty": [],
     "m": {"b": 1, "a": [1, {"c": None}], "key": "v"}, "u": "naïve 漢字😀", "people": [{"name": "Ann", "age": 30}, {"name": "Bob", "age": 5}]}

SNIPPETS = {
    "loop variables": "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ x }}{{ loop.cycle('a', 'b') }}{{ loop.depth }}{{ loop.previtem }}{{ loop.nextitem is defined }};{% endfor %}",
    "loop else": "{% for x in empty %}a{% else %}none{% endfor %}{% for x in missing %}a{% else %}none{% endfor %}{% for x in l %}{{ x }}{% else %}none{% endfor %}",
    "loop filter": "{% for p in people if p.age > 10 %}{{ p.name }} {{ loop.length }} {{ loop.last }}{% else %}no{% endfor %}{% for x in l if x > 9 %}a{% else %}none{% endfor %}",
    "loop over mapping": "{% for k in m %}{{ k }},{% endfor %}{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}{% for k, v in m|items %}{{ k }}{% endfor %}",
    "loop over string": "{% for c in u %}[{{ c }}]{% endfor %}",
    "nested loops": "{% for p in people %}{% for x in l %}{{ loop.index }}/{{ loop.depth }} {% endfor %}{{ loop.index }}|{% endfor %}",
    "loop controls": "{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "loop unpack": "{% for a, b in [(1, 2), [3, 4]] %}{{ a }}-{{ b }} {% endfor %}{% for (a, b) in m.items() %}{{ a }}{% endfor %}",
    "if elif else": "{% if n < 5 %}a{% elif n < 8 %}b{% else %}c{% endif %}{% if e %}x{% elif z %}y{% else %}w{% endif %}{% if not missing %}u{% endif %}",
    "set scopes": "{% set a = 1 %}{% for x in l %}{{ a }}{% set a = x %}{{ a }}{% endfor %}{{ a }}{% if t %}{% set a = 9 %}{% endif %}{{ a }}",
    "set in else": "{% set a = 1 %}{% for x in [] %}{% else %}{% set a = 2 %}{{ a }}{% endfor %}{{ a }}",
    "set unpack": "{% set a, b = 1, 'x' %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}{% set (d, e) = [5, 6] %}{{ d + e }}",
    "set block": "{% set a %}x{{ n }}\n y{% endset %}[{{ a }}]{{ a|length }}",
    "namespace": "{% set ns = namespace(found=false, n=0) %}{% for x in l %}{% set ns.n = ns.n + x %}{% if x == 1 %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }} {{ ns.n }} {{ ns.other is defined }}",
    "namespace from mapping": "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{% set ns.a = [ns.b] %}{{ ns.a }}",
    "logic": "{{ t and n }} {{ e or 'd' }} {{ not e }} {{ z and 1 }} {{ 0 or e or z }} {{ not not l }} {{ 1 if missing else 2 }} {{ 'x' if t }}{{ 'y' if e }}|",
    "comparisons": "{{ 1 < 2 }} {{ 2 <= 2 < 3 }} {{ 1 == 1.0 }} {{ 'a' < 'b' }} {{ 'é' > 'z' }} {{ true == 1 }} {{ l == [3, 1, 2] }} {{ m == {'key': 'v', 'b': 1, 'a': [1, {'c': none}]} }} {{ (1, 2) == [1, 2] }} {{ z == missing }} {{ 1 != '1' }} {{ n >= 7 > f }}",
    "membership": "{{ 1 in l }} {{ 9 not in l }} {{ 'b' in m }} {{ 'World' in s }} {{ '' in e }} {{ 'x' in missing }} {{ none in [none] }} {{ not 1 in l }} {{ 'ï' in u }}",
    "arithmetic": "{{ 1 + 2 * 3 - 4 }} {{ 7 / 2 }} {{ 8 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 2.0 * 3 }} {{ -n }} {{ +n }} {{ true + 1 }} {{ 1 - -1 }} {{ 'ab' * 3 }} {{ [1] + [2] }} {{ -(2 + 3)|string }} {{ 1_000 }}",
    "floats": "{{ 0.1 + 0.2 }} {{ 1e16 }} {{ 1e15 }} {{ 1.5e-5 }} {{ 0.0001 }} {{ 100.0 }} {{ 1e22 }} {{ 123456789.125 }} {{ 5e-324 }} {{ 1.7976931348623157e308 }} {{ -0.0 }} {{ 2.5e3 }}",
    "concatenation": "{{ 1 ~ 'a' ~ none ~ missing ~ true ~ [1, 'b'] }} {{ 1 * 2 ~ 3 * 4 }} {{ 'x' + 2 ~ 3 }} {{ 'a' 'b' \"c\" }}",
    "printing": "{{ true }} {{ False }} {{ none }} {{ None }} {{ missing }}|{{ l }} {{ m }} {{ (1,) }} {{ () }} {{ (1, 'a') }} {{ {} }} {{ [] }} {{ [1.0, none, true] }} {{ 1, 2 }}",
    "repr": "{{ [s, u, \"it's\", 'say \"x\"', 'both \\' \"', 'tab\\t nl\\n cr\\r bs\\\\ nul\\x00 del\\x7f', '\\u00a0 \\u200b \\ue000 \\U000e0001 \\u00ad \\x85 \\u0378'] }}",
    "escapes": r"""{{ 'a\nb\tc\\d\'e\"f\x41\u00e9\U0001F600\q\/' }}""",
    "indexing": "{{ l[0] }} {{ l[-1] }} {{ l[9] }}| {{ m['b'] }} {{ m.key }} {{ m['a'][1]['c'] }} {{ m.none }}| {{ u[6] }} {{ u[-1] }} {{ u[99] }}| {{ people[0].name }} {{ l.0 }} {{ people.1.name }} {{ m['a'].1.c }} {{ (l)[1] }} {{ 'abc'[1] }} {{ z.x }}|",
    "slicing": "{{ l[1:] }} {{ l[:-1] }} {{ l[::2] }} {{ l[::-1] }} {{ u[1:4] }} {{ u[-2:] }} {{ u[::-1] }} {{ l[5:] }} {{ l[-9:2] }} {{ l[:-1:-1] }} {{ l[2:0:-1] }} {{ l[none:2] }} {{ (1, 2, 3)[1:] }} {{ s[:0] }}| {{ l[-1::-2] }} {{ l[9::-1] }}",
    "string methods": "{{ s.strip() }}|{{ s.lstrip() }}|{{ s.rstrip() }}|{{ 'xxaxx'.strip('x') }}{{ 'abcba'.lstrip('ab') }}{{ 'ab'.rstrip('ba') }}|{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'c')) }} {{ u.startswith('na') }} {{ 'Ab'.upper() }}{{ 'Ab'.lower() }} {{ 'a-b-c'.replace('-', '+') }} {{ 'a-b-c'.replace('-', '', 1) }} {{ u.find('漢') }} {{ 'a'.find('x') }} {{ '-'.join(['a', 'b']) }} {{ '\u00a0\u2003x\u3000'.strip() }}|{{ '\x1cx\x1f'.strip() }}|",
    "split": "{{ 'a b  c'.split() }} {{ 'a b  c'.split(' ') }} {{ 'a,b,c'.split(',', 1) }} {{ ' a b c '.split(none, 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'x</think>y'.split('</think>')[-1] }} {{ 'a,b'.split(sep=',') }} {{ 'a\u2003b\tc'.split() }} {{ 'a b'.rsplit() }}",
    "mapping methods": "{{ m.get('b') }} {{ m.get('x') }} {{ m.get('x', 'd') }} {{ m.keys()|list }} {{ m.values()|list }} {{ m.items()|list }}",
    "filters": "{{ s|trim }}|{{ 'xax'|trim('x') }} {{ l|length }} {{ u|length }} {{ m|count }} {{ missing|length }} {{ missing|default('d') }} {{ e|default('d') }} {{ e|default('d', true) }} {{ z|d('x') }} {{ l|join(', ') }} {{ l|join }} {{ 'aB'|upper }}{{ 'aB'|lower }} {{ l|first }}{{ l|last }}{{ 'xyz'|first }}{{ 'xyz'|last }} {{ empty|first is defined }} {{ 'abc'|list }} {{ 5|string + '!' }} {{ 'a.b.c'|replace('.', '-') }} {{ 'aaa'|replace('a', 'b', 2) }} {{ m|items|list }} {{ m|list }} {{ 5|upper }} {{ z|trim }} {{ -5|string }} {{ 'x'|safe }} {{ (l|join('-')).split('-') }}",
    "tojson": "{{ m|tojson }} {{ u|tojson }} {{ [1.0, 1e16, none, true, '\\u0001\\x7f\"\\\\/<>&\\'\\n\\u2028'] | tojson }} {{ {}|tojson }} {{ []|tojson }} {{ (1, 2)|tojson }} {{ s|tojson }}",
    "tojson indent": "{{ m|tojson(indent=2) }}\n{{ [[], {}, [1]]|tojson(indent=4) }}\n{{ l|tojson(indent=0) }}",
    "tojson options": "{{ u|tojson(ensure_ascii=true) }} {{ m|tojson(sort_keys=true) }} {{ m|tojson(separators=(',', ':')) }} {{ u|tojson(true) }}",
    "tests": "{{ s is defined }} {{ missing is defined }} {{ missing is undefined }} {{ z is none }} {{ s is string }} {{ n is number }} {{ t is number }} {{ f is float }} {{ n is integer }} {{ t is integer }} {{ m is mapping }} {{ l is mapping }} {{ l is sequence }} {{ s is sequence }} {{ m is sequence }} {{ n is sequence }} {{ l is iterable }} {{ n is iterable }} {{ t is boolean }} {{ n is boolean }} {{ t is true }} {{ t is false }} {{ 1 is true }} {{ m.x is not defined }} {{ n is not none }} {{ 1 is in [1] }} {{ n is odd }} {{ n is divisibleby 7 }} {{ n is even }} {{ n is eq 7 }} {{ n is equalto(8) }} {{ n is ne 8 }} {{ raise_exception is defined }} {{ range is callable }} {{ missing is sequence }} {{ z is defined and z is not none }} {{ not s is string }}",
    "range": "{{ range(4)|list }} {{ range(1, 4)|list }} {{ range(5, 0, -2)|list }} {{ range(0)|list }}{% for i in range(3) %}{{ i }}{% endfor %}",
    "inline if": "{{ ('a' if n > 5 else 'b') + 'c' }}{{ 'a' if e else 'b' if z else 'c' }}{{ [1 if t else 2, 3] }}",
    "trim blocks": "a\n{% if t %}\nb\n{% endif %}\n  {% if t %}  \n  c\n  {% endif %}  \nd {% if t %} e{% endif %}\n{{ n }}\n\n{# c #}\n  {# c #}  x\n  {{ n }}\nend\n",
    "dashes": "a  \n {%- if t -%}  \n b {{- n -}} \n\n c {%- endif %}\nd {#- c -#} e\n\u00a0{{- n }} f{{ n -}}\n  {% if t %}g{% endif %}\n",
    "plus signs": "a\n  {%+ if t %}b\n  {%+ endif +%}\nc\n  {%+ if t +%}\nd{% endif %}\n{{ n }}\n",
    "line ends": "a\r\nb\rc\n{% if t %}\r\nd\r\n{% endif %}\r\n{{ 'x\ry' }}\r\n",
    "braces in data": "{ } {a} {{ '{{' }} {{ '}}' }} {{ {'a': {'b': 1}} }} {{ {'a': {'b': 2}}['a']['b'] }} }} %} #} { {% if '%}' == '%}' %}x{% endif %}",
    "comments": "a{# {{ x }} {% if %} #}b{##}c{#- x -#} d",
    "mapping literals": "{{ {'a': 1, 'b': [2], 'a': 3} }} {{ {'x': n,} }} {{ [1, 2,] }}",
    "loop else after continue": "{% for x in l %}{% continue %}{% else %}a{% endfor %}{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{% else %}b{% endfor %}{% for x in l %}{% break %}{% else %}c{% endfor %}",
    "macros": "{% macro f(a, b='x', c=a) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ f(1) }}{{ f(1, c=2) }}{{ f(b=3, a=4) }}{{ f() }}{% set g = f %}{{ g(5)|length }}{{ f }}{% macro v(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ v(1, 2, 3, x=4) }}",
    "macro names": "{% macro f() %}{{ y }}{% endmacro %}{% set y = 1 %}{{ f() }}{% for y in l %}{{ f() }}{% endfor %}{% set y = 2 %}{{ f() }}{% for y in l %}{% macro g() %}{{ y }}{% endmacro %}{{ g() }}{% endfor %}",
    "call blocks": "{% macro f(a) %}<{{ caller(a, 2) }}|{{ caller(a) }}>{% endmacro %}{% set q = 'q' %}{% call(x, y='d') f(n) %}{{ x }}{{ y }}{{ q }}{% endcall %}{% macro g(caller=none) %}{{ caller is none }}{% endmacro %}{{ g() }}{% macro h() %}{{ caller is defined }}{% endmacro %}{{ h() }}",
    "recursive macro": "{% macro f(x) %}{% if x is mapping %}{% for k, v in x|dictsort %}{{ k }}({{ f(v) }}){% endfor %}{% elif x is string %}{{ x }}{% elif x is iterable %}{% for v in x %}{{ f(v) }},{% endfor %}{% else %}{{ x }}{% endif %}{% endmacro %}{{ f(m) }}",
    "generators": "{% set g = l|map('string') %}{{ g is sequence }}{{ g is iterable }}{{ g|first }}{{ g|join(',') }}|{{ g|join }}|{{ 'y' if l|select('gt', 9) else 'n' }}{% set h = l|select %}{{ 1 in h }}{{ h|list }}{{ g[0] }}",
    "views": "{{ m.keys() }} {{ m.values() }} {{ m.items() }} {{ m.keys()|length }} {{ m.items() is sequence }} {{ m.items()|list is sequence }} {{ m.keys()[0] }} {{ 'b' in m.keys() }} {{ m.keys() == m.keys() }} {{ {}.items() == [] }} {{ 'y' if {}.items() else 'n' }}",
    "methods as values": "{{ s.strip is defined }} {{ s.frob is defined }} {{ s.strip is callable }} {{ m.items is defined }} {{ m['items'] is callable }} {{ l.append is defined }} {% set f = s.strip %}{{ f() }} {{ {'items': 5}.items is callable }} {{ {'items': 5}['items'] }}",
    "keys that are no strings": "{{ {1: 'a', 2.5: 'b', true: 'c', none: 'd', (1, 2): 'e'} }} {{ {1: 'a'}[1] }} {{ {1: 'a'}[true] }} {{ {0: 'a', 512: 'b'}|dictsort }} {{ {2: 1, 1: 2, none: 3, 1.5: 4}|tojson }} {{ {2: 1, 1: 2}|tojson(sort_keys=true) }} {{ 1 in {1: 2} }} {{ {1: 2}.get(1) }} {{ {(1,): 2}[(1,)] }}",
    "safe strings": "{{ '<a>'|safe + '<b>' }} {{ '<b>' + '<a>'|safe }} {{ ('<a>'|safe) ~ '<b>' }} {{ ('<a>'|safe)|upper + '&' }} {{ ['<a>'|safe] }} {{ '<'|e|e }} {{ ('a'|safe)[0] + '<' }} {{ ('a'|safe).strip() + '<' }} {{ ('a'|safe) is escaped }}",
    "case": "{{ 'straße ﬁ ŉ ǆ İ'|upper }} {{ 'ÀÉ ΑΣ ΣΑΣ. Σ İ ǅ'|lower }} {{ \"ǆabc o'neill x-ray 1st ΑΣ\".title() }} {{ \"ǆabc o'neill x-ray (foo) 1st\"|title }} {{ 'ǆABC'|capitalize }} {{ 'ΑΣ'.capitalize() }} {{ 'ß'.isupper() }}{{ 'Ⅷ'.isupper() }}{{ 'aª'.islower() }}{{ 'é漢'.isalpha() }}{{ '٣'.isdigit() }}{{ ''.isalpha() }}",
    "sorting": "{{ ['b', 'A', 'a', 'B']|sort }} {{ ['b', 'A', 'a']|sort(case_sensitive=true) }} {{ ['b', 'A', 'a', 'B']|sort(reverse=true) }} {{ ['b', 'A', 'a', 'B']|unique|list }} {{ people|sort(attribute='age')|map(attribute='name')|join }} {{ {'b': 1, 'A': 2, 'a': 0}|dictsort }} {{ {'b': 1, 'A': 2, 'a': 0}|dictsort(by='value', reverse=true) }} {{ [[2, 1], [1, 3], [1]]|sort }} {{ ['b', 'A']|min }}{{ ['b', 'A']|max }}{{ []|max }}{{ people|min(attribute='age') }}",
    "numbers": "{{ '42'|int }} {{ ' -4_2 '|int }} {{ '4.9'|int }} {{ '1e3'|int }} {{ 'x'|int(7) }} {{ '0x1f'|int(0, 16) }} {{ 4.9|int }} {{ none|int }} {{ '4.5'|float }} {{ 'inf'|float }} {{ 'x'|float }} {{ true|int }} {{ 2.675|round(2) }} {{ 2.5|round }} {{ 3.5|round }} {{ 7|round }} {{ 2.1|round(0, 'ceil') }} {{ 2.19|round(1, 'floor') }} {{ -3|abs }} {{ [1, 2.5]|sum }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 2 ** -1 }} {{ 2 ** 0.5 }} {{ 0x1F }}{{ 0o17 }}{{ 0b11 }}{{ 00 }}",
    "percent": "{{ '%s|%5s|%-5s|%.2s|%r' % (1, 'a', 'b', '漢字x', 'c') }} {{ '%d %05d %+d %x %X' % (1, -2, 3, 255, 255) }} {{ '%.2f %8.3f %f' % (1.005, 2.5, 1) }} {{ '%(a)s %(b)d%%' % {'a': 1, 'b': 2} }} {{ '%s' % l }} {{ '%s %s'|format(1, l) }} {{ '%(a)s'|format(a=1) }} {{ '%d' % 2.9 }}",
    "format": "{{ '{} {}'.format(1, 'a') }} {{ '{1}{0}{1!r}'.format(1, 'a') }} {{ '{a} {{}}'.format(a=l) }} {{ '{:>5}|{:<5}|{:^5}|{:*^5}|'.format('a', 'b', 'c', 'd') }} {{ '{:5}|{:05d}|{:+}|{:,}|{:x}|{:.2f}|{:08.3f}|{:,.1f}'.format(1, -2, 3, 1234567, 255, 1.005, -2.5, 12345.67) }} {{ '{:.2}'.format('漢字x') }}",
    "more string methods": "{{ 'a\\nb\\r\\nc\\u2028d'.splitlines() }} {{ 'a\\n'.splitlines(true) }} {{ 'a-b-c'.partition('-') }} {{ 'a-b-c'.rpartition('-') }} {{ 'ab'.partition('-') }} {{ 'ab'.rpartition('-') }} {{ ' a  b '.rsplit(none, 1) }} {{ 'aXbX'.rfind('X') }} {{ 'banana'.count('an') }} {{ 'abc'.count('') }} {{ '7'.zfill(3) }} {{ '-7'.zfill(4) }} {{ 'ab'.center(5, '*') }} {{ 'abc'.center(6, '*') }} {{ 'abc'.removeprefix('ab') }} {{ 'abc'.removesuffix('bc') }} {{ 'héllo'.find('l', 3) }} {{ 'abc'.startswith('b', 1) }} {{ 'abc'.replace('', '-') }}{{ 'abc'.replace('', '-', 2) }} {{ 'a'.startswith('', 5) }}",
    "indent": "{{ 'a\\nb\\n\\nc'|indent }}|{{ 'a\\nb'|indent(2, true) }}|{{ 'a\\n\\nb'|indent(width='> ', blank=true) }}|{{ ''|indent }}|{{ 'a\\n'|indent(1) }}|",
    "filter blocks": "{% filter upper|trim %} a{{ n }} {% endfilter %}|{% set x | replace('a', 'b')|upper %}aa{% endset %}{{ x }}",
    "with": "{% with %}{% set x = 1 %}{{ x }}{% endwith %}{{ x }}{% with x = 2, y = x %}{{ x }}{{ y }}{% endwith %}{% with a, b = (1, 2) %}{{ a }}{{ b }}{% endwith %}",
    "raw": "a{% raw %}{{ x }}{% if %}{# c #}{% endraw %}b\n  {%- raw -%}  x  {%- endraw -%}  y\n  {% raw %}\n z\n  {% endraw %}\nw{% raw %}{% endraw +%}\n",
    "nested targets": "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for i, (k, v) in [[0, ['x', 'y']]] %}{{ i }}{{ k }}{{ v }}{% endfor %}{% set a, (b, c) = 1, [2, 3] %}{{ c }}{% set ns = namespace() %}{% set ns.a, ns.b = 1, 2 %}{{ ns.a }}{{ ns.b }}",
    "loop changed": "{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{{ loop }}{{ loop['index'] }}{% endfor %}",
    "select and map": "{{ people|selectattr('age', 'gt', 10)|map(attribute='name')|list }} {{ people|rejectattr('age', '<', 10)|list|length }} {{ people|selectattr('nope')|list }} {{ people|map(attribute='nope', default='-')|join }} {{ [0, 1, '', 'a']|select|list }} {{ [1, 2, 3]|reject('odd')|list }} {{ ['a b', 'c']|map('replace', 'a', 'z')|list }} {{ [[1, 2], [3]]|map('last')|list }} {{ [[1], [2]]|map(attribute=0)|list }} {{ [{'a': {'b': 1}}]|map(attribute='a.b')|list }} {{ people|map(attribute='name')|map('upper')|join('+') }} {{ people|join('/', attribute='name') }} {{ people|sum(attribute='age') }}",
    "more escapes": r"""{{ '\101\x41\u0041\60' }}""",
    "callable and order": "{{ missing is callable }} {{ m.nope is callable }} {% for x in [1] %}{{ loop is callable }}{% endfor %} {{ [none, none]|sort }} {{ [m, m]|sort == [m, m] }}",
    "dict and range": "{{ dict(a=1, b=l) }} {{ dict({'a': 1}, a=2) }} {{ range(3)[1] }} {{ range(9)[2:5]|list }} {{ 3 in range(4) }} {{ range(3)|length }} {{ l.index(2) }}{{ l.count(1) }} {{ [1] * 2 }} {{ 2 * (1,) }}",
    "shadowing": "{% set range = 5 %}{{ range }}{% for n in l %}{{ n }}{% endfor %}{{ n }}",
    "numbers as digits": "{{ 1.5 }} {{ 1e3 }} {{ 10|string|length }}",
    "system then turns": "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}{% if system is defined %}<<{{ system }}>>{% endif %}\n{%- for message in rest %}\n    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}\n        {{- raise_exception('Roles must alternate') }}\n    {%- endif %}\n    {{- '[' + message.role ~ ']: ' + message.content | trim + '\\n' }}\n{%- endfor %}\n",
}
EXTRA = {"messages": [SYSTEM, USER, ASSISTANT]}

SNIPPET_ERRORS = {
    "string plus null": ("\n{{ 'a' + z }}", "line 2: '+' cannot join a string (string) and z (none)"),
    "string plus undefined": ("{{ 'a' + m.x }}", "m.x (undefined)"),
    "string plus number": ("{{ s + n }}", "n (integer)"),
    "attribute of undefined": ("{{ missing.x }}", "'missing' is undefined"),
    "attribute of missing attribute": ("{{ m.x.y }}", "'m.x' is undefined"),
    "call of undefined": ("{{ nothing(1) }}", "'nothing' is undefined"),
    "call of a string": ("{{ s() }}", "s (string) cannot be called"),
    "raise": ("{% if t %}{{ raise_exception('No ' ~ n ~ ' here') }}{% endif %}", "No 7 here"),
    "null loop": ("{% for x in z %}{% endfor %}", "none cannot be iterated"),
    "unpack count": ("{% for a, b in [[1]] %}{% endfor %}", "1 values for 2 names"),
    "order of kinds": ("{{ 1 < 'a' }}", "integer and string have no order"),
    "division by zero": ("{{ 1 // 0 }}", "division by zero"),
    "float division by zero": ("{{ 1.0 % 0 }}", "division by zero"),
    "in number": ("{{ 1 in 5 }}", "integer cannot be iterated"),
    "number in string": ("{{ 1 in s }}", "needs a string"),
    "unknown filter": ("\n\n{{ n|frobnicate }}", "line 3: the filter 'frobnicate'"),
    "unknown test": ("{{ n is frobnicated }}", "the test 'frobnicated'"),
    "unknown statement": ("x\n{% frob %}", "line 2: the statement 'frob'"),
    "unknown method": ("{{ s.frob() }}", "'s.frob' is undefined"),
    "list append": ("{{ l.append(1) }}", "'l.append' is undefined"),
    "missing endif": ("{% if t %}\n\n", "'endif' is missing"),
    "missing endfor": ("{% for x in l %}{% if x %}{% endif %}", "'endfor' is missing"),
    "stray endfor": ("a\n{% endfor %}", "line 2: unexpected 'endfor'"),
    "stray else": ("{% else %}", "unexpected 'else'"),
    "break outside": ("{% break %}", "'break' outside a loop"),
    "open tag": ("{{ n", "print tag is not closed"),
    "open block": ("{% if t", "block tag is not closed"),
    "open comment": ("{# x", "comment is not closed"),
    "open string": ("{{ 'abc }}", "string is not closed"),
    "bad bracket": ("{{ (n] }}", "unexpected ']'"),
    "empty print": ("{{ }}", "unexpected end of the tag"),
    "two values": ("{{ n n }}", "unexpected 'n'"),
    "bad character": ("{{ n ? 1 }}", "unexpected character '?'"),
    "assignment to a constant": ("{% set true = 1 %}", "'true' cannot be assigned"),
    "attribute assignment": ("{% set m.x = 1 %}", "'m' is no namespace"),
    "range too long": ("{{ range(1000000)|list }}", "more than 100000"),
    "range step": ("{{ range(1, 2, 0) }}", "a step of 0"),
    "slice step": ("{{ l[::0] }}", "step 0"),
    "json of undefined": ("{{ missing|tojson }}", "undefined cannot be written as JSON"),
    "argument count": ("{{ s.strip(1, 2, 3) }}", "at most 1 arguments"),
    "argument kind": ("{{ s.strip(1) }}", "must be a string"),
    "argument name": ("{{ m|tojson(frob=1) }}", "unexpected argument 'frob'"),
    "join of numbers": ("{{ ','.join(l) }}", "join needs strings"),
    "negative string": ("{{ -s }}", "a sign before a string"),
    "filter block of a number": ("{% filter length %}ab{% endfilter %}", "a filter block cannot print a integer"),
    "chained tests": ("{{ 1 is defined is true }}", "unexpected 'is'"),
    "macro with too many arguments": ("{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "'f' has no parameter for an argument"),
    "macro with an unknown argument": ("{% macro f(a) %}{% endmacro %}{{ f(b=2) }}", "'f' has no parameter for an argument"),
    "macro with one argument twice": ("{% macro f(a) %}{% endmacro %}{{ f(1, a=2) }}", "'f' has no parameter for an argument"),
    "caller that the macro does not take": ("{% macro f() %}{% endmacro %}{% call f() %}{% endcall %}", "'f' has no parameter for an argument"),
    "call of no call": ("{% call s %}{% endcall %}", "'call' needs a call"),
    "parameter without a default": ("{% macro f(a=1, b) %}{% endmacro %}", "the parameter 'b' without a default"),
    "length of a generator": ("{{ l|map('string')|length }}", "a generator has no length"),
    "last of a generator": ("{{ l|map('string')|last }}", "last of a generator"),
    "views have no sum": ("{{ m.keys() + m.keys() }}", "m.keys() (view)"),
    "json of a view": ("{{ m.keys()|tojson }}", "view cannot be written as JSON"),
    "json of a generator": ("{{ (l|select)|tojson }}", "generator cannot be written as JSON"),
    "list as a key": ("{{ {[1]: 2} }}", "a list is no key"),
    "list in a mapping": ("{{ [1] in m }}", "a list is no key"),
    "list in the keys of a mapping": ("{{ [1] in m.keys() }}", "a list is no key"),
    "none has no order": ("{{ {'a': none, 'b': none}|dictsort(by='value') }}", "none and none have no order"),
    "int of undefined": ("{{ missing|int }}", "int of an undefined value"),
    "format without a value": ("{{ '{} {}'.format(1) }}", "more fields than values"),
    "percent without a value": ("{{ '%s %s' % 1 }}", "more fields than values"),
    "percent with a value too many": ("{{ '%s' % (1, 2) }}", "more values than fields"),
    "percent of text as a number": ("{{ '%d' % 'a' }}", "'%d' needs a number"),
    "slice of none": ("{{ z[1:] }}", "a none cannot be sliced"),
    "index that is not there": ("{{ s.index('q') }}", "the substring is not there"),
    "zero to a negative power": ("{{ 0 ** -1 }}", "zero to a negative power"),
    "sort of kinds": ("{{ [1, 'a']|sort }}", "have no order"),
    "open raw": ("{% raw %}x", "'endraw' is missing"),
    "open macro": ("{% macro f() %}", "'endmacro' is missing"),
}

# Templates in the manner of other model families, each with what SmolLM2's has not.
TEMPLATES = {
    "tools": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- 'Functions:\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson }}{{ '\\n' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'system' and loop.first %}
    {%- elif message.tool_calls is defined and message.tool_calls %}
        {{- '<|im_start|>assistant' }}
        {%- for call in message.tool_calls %}
            {%- set call = call.function if call.function is defined else call %}
            {{- '\\n<call>' + ({'name': call.name, 'arguments': call.arguments} | tojson) + '</call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<result>' ~ message.content ~ '</result><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
""",
    "alternate": """{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] | trim + ' [/INST]' }}{% else %}{{ ' ' + message['content'].strip() + eos_token }}{% endif %}{% endfor %}""",
    "headers": """{%- set ns = namespace(seen=0) %}
{%- for message in messages %}
    {%- set content = '<|header|>' + message['role'] + '<|/header|>\\n\\n' + message['content'] | trim + eos_token %}
    {%- if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}
    {%- set ns.seen = ns.seen + 1 %}
    {{- content }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|header|>assistant<|/header|>\\n\\n' }}{% endif %}
{{- ns.seen }} {{ pad_token }} {{ unk_token }} {{ sep_token is defined }} {{ tools is none }} {{ documents is none }} {{ date | default('no date') }}
""",
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Today's <weather> & \"sky\" – né", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "default": 2.5}}, "required": ["city"]}}}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Łódź", "days": 1}}}]}
RESULT = {"role": "tool", "name": "weather", "content": "{\"sky\": \"grey\", \"t\": -3.5}"}


def conversations():
    """(template, line)"""
    def line(*messages, **variables):
        return {"messages": list(messages), **variables}

    def user(text):
        return {"role": "user", "content": text}

    for prompt in ({}, {"add_generation_prompt": False}, {"add_generation_prompt": True}):
        yield "SmolLM2", line(USER, **prompt)
        yield "SmolLM2", line(SYSTEM, USER, ASSISTANT, user("And 3 + 3?"), **prompt)
        yield "tools", line(SYSTEM, USER, **prompt)
    yield "SmolLM2", line(user(""), add_generation_prompt=True)
    yield "SmolLM2", line(SYSTEM, user("naïve 漢字 😀👩‍👩‍👧 e\u0301 \u2028 שלום \u0000 \U0010FFFF"), add_generation_prompt=True)
    yield "SmolLM2", line(user("<|im_end|>\n<|im_start|>system\nNo."), user("  \n\t x"), tools=[WEATHER])
    yield "SmolLM2", line(*([USER, ASSISTANT] * 12), add_generation_prompt=True)
    yield "SmolLM2", line()
    yield "tools", line(SYSTEM, USER, tools=[WEATHER], add_generation_prompt=True)
    yield "tools", line(USER, CALL, RESULT, tools=[WEATHER, {"name": "f"}], add_generation_prompt=True)
    yield "tools", line(USER, add_generation_prompt=True, enable_thinking=False, tools=None)
    yield "tools", line(USER, add_generation_prompt=True, enable_thinking=True, tools=[])
    yield "alternate", line(USER, ASSISTANT, user("  more  "))
    yield "alternate", line(USER, ASSISTANT, USER, bos_token="<s>", eos_token="")
    yield "headers", line(SYSTEM, USER, add_generation_prompt=True)
    yield "headers", line(USER, date="30 Nov 2026", documents=[{"title": "a"}], tools=[WEATHER])
    yield "headers", line(USER, pad_token=None, sep_token="|", date=["a", 1, 2.0, None, True, {"b": -0.0}])


CONVERSATION_ERRORS = [
    ("alternate", {"messages": [USER, USER]}, "Conversation roles must alternate"),
    ("SmolLM2", {"messages": [SYSTEM, {"role": "user", "content": None}]}, "message['content']"),
    ("tools", {"messages": []}, "undefined"),
]


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("gguf", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    arguments = parser.parse_args()
    smollm = gguf.GGUFReader(arguments.gguf).fields["tokenizer.chat_template"].contents()
    env = environment()
    cases = []

    def render(name, source, variables):
        case = {"name": name}
        case |= {"template": source} if source is not smollm else {}
        case |= {"variables": variables} if variables is not V else {}
        case["output"] = env.from_string(source).render(variables)
        cases.append(case)

    def refuse(name, source, variables, names):
        case = {"name": name}
        case |= {"template": source} if source is not smollm else {}
        case |= {"variables": variables} if variables is not V else {}
        try:
            output = env.from_string(source).render(variables)
            raise SystemExit(f"{name}: no error but {output!r}")
        except Exception as error:
            case |= {"error": type(error).__name__, "names": names}
        cases.append(case)

    for name, variables in chats():
        render("SmolLM2: " + name, smollm, variables)
    for name, variables, names in CHAT_ERRORS:
        refuse("SmolLM2: " + name, smollm, variables, names)
    for name, source in SNIPPETS.items():
        render(name, source, EXTRA if "messages" in source else V)
    for name, (source, names) in SNIPPET_ERRORS.items():
        refuse(name, source, V, names)
    document = {"jinja2": importlib.metadata.version("jinja2"), "maker": "tools/make_template_fixtures.py",
                "model": arguments.gguf.name, "smollm_template": smollm, "default_variables": V, "cases": cases}
    write(arguments.out / "formats/template_cases.json", document)
    document = {name: importlib.metadata.version(name) for name in ("jinja2", "tokenizers")}
    document |= {"maker": "tools/make_template_fixtures.py", "model": arguments.gguf.name, "templates": TEMPLATES}
    document["cases"] = list(conversation_cases(env, gguf.GGUFReader(arguments.gguf).fields))
    write(arguments.out / "cli/conversations.json", document)
    print(len(cases), "and", len(document["cases"]), "cases")


def conversation_cases(env, fields):
    tokenizer, _ = make_tokenizer_fixtures.build(fields, with_special=True)
    tokens = fields["tokenizer.ggml.tokens"].contents()
    # What transformers' apply_chat_template passes: its special_tokens_map, and three that are always there.
    passed = {"tools": None, "documents": None, "add_generation_prompt": False}
    for key, name in (("bos", "bos_token"), ("eos", "eos_token"), ("unknown", "unk_token"), ("padding", "pad_token")):
        passed[name] = tokens[fields[f"tokenizer.ggml.{key}_token_id"].contents()]
    sources = {"SmolLM2": fields["tokenizer.chat_template"].contents(), **TEMPLATES}
    for template, line in conversations():
        text = env.from_string(sources[template]).render(passed | line)
        yield {"template": template, "line": line, "text": text, "ids": tokenizer.encode(text).ids}
    for template, line, names in CONVERSATION_ERRORS:
        try:
            text = env.from_string(sources[template]).render(passed | line)
        except Exception as error:
            yield {"template": template, "line": line, "error": type(error).__name__, "names": names}
        else:
            raise SystemExit(f"{template}: no error but {text!r}")


def write(path, document):
    path.write_text(json.dumps(document, indent=1, ensure_ascii=True) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
