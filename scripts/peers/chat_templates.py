#!/usr/bin/env python3
"""Renders chats by Hugging Face transformers: the golden files of tests/fixtures/chat_templates.

    python3 scripts/peers/chat_templates.py DIRECTORY

For the templates DIRECTORY/*.jinja it writes there
    cases.json      the chats: name, messages, tools, variables, and whether the answer is asked for
    rendered.jsonl  a line for each template and case: the text, or why it is refused; and the spans, in characters, that
                    {% generation %} made
    language.jsonl  small templates, which try one thing each, with their text
Needs `pip install transformers jinja2`, and no PyTorch.
"""
import datetime
import json
import pathlib
import re
import sys

import jinja2
from transformers.utils import chat_template_utils


class FixedTime(datetime.datetime):
    """strftime_now gives one day, so that the file does not change from day to day."""

    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26, 12, 0, 0)


chat_template_utils.datetime = FixedTime

SYSTEM = {"role": "system", "content": "You cut stones."}
USER = {"role": "user", "content": "What is ashlar?"}
ANSWER = {"role": "assistant", "content": "Stones that are cut square."}
AGAIN = {"role": "user", "content": "Who lays them?"}
LAST = {"role": "assistant", "content": "A mason."}
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a \"place\" <now>.",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "A town, as 'Bern'"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": "integer", "description": "How many"},
        "tags": {"type": "array", "items": {"type": "string"}}},
        "required": ["place"]},
    "return": {"type": "string", "description": "Degrees"}}}
CLOCK = {"type": "function", "function": {"name": "now", "description": "The time.",
                                          "parameters": {"type": "object", "properties": {}}}}


def call(arguments):
    return {"role": "assistant", "content": "", "tool_calls": [
        {"id": "call12345", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}]}


RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "call12345", "content": "{\"degrees\": 21.5}"}
PLAN = {"place": "Zürich", "days": 2, "tags": ["a", "b"], "exact": True, "more": None}
CASES = [
    ("user", [USER], {}),
    ("prompt", [SYSTEM, USER, ANSWER, AGAIN], {"prompt": True}),
    ("turns", [SYSTEM, USER, ANSWER, AGAIN, LAST], {}),
    ("no_system", [USER, ANSWER, AGAIN, LAST], {}),
    ("odd_text", [{"role": "user", "content": "  <b>\"Grüße\"</b> & 'mehr'\n\n\u4f60\u597d \U0001f642 {{ x }} \n"},
                  {"role": "assistant", "content": "\n Ja.\u00a0\n"}], {"prompt": True}),
    ("tools", [SYSTEM, USER], {"tools": [WEATHER, CLOCK], "prompt": True}),
    ("tool_calls", [USER, call(PLAN), RESULT, ANSWER, AGAIN], {"tools": [WEATHER, CLOCK], "prompt": True}),
    ("calls_as_text", [USER, call(json.dumps(PLAN)), RESULT, ANSWER], {"tools": [WEATHER]}),
    ("two_calls", [USER, {"role": "assistant", "content": "I look.", "tool_calls":
                          call({"place": "Bern"})["tool_calls"] + [{"id": "call67890", "type": "function",
                                                                    "function": {"name": "now", "arguments": {}}}]},
                   RESULT, {**RESULT, "name": "now", "tool_call_id": "call67890", "content": "noon"}, LAST],
     {"tools": [WEATHER, CLOCK]}),
    ("reasoning", [USER, {**ANSWER, "reasoning_content": "Think.\nMore."}, AGAIN,
                   {**LAST, "content": "A mason.", "reasoning": "Short."}], {}),
    ("thought_in_text", [USER, {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nStones."}, AGAIN,
                         {"role": "assistant", "content": "<think>So.</think>Masons."}], {}),
    ("no_thinking", [SYSTEM, USER], {"prompt": True, "variables": {"enable_thinking": False}}),
    ("parts", [{"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "ashlar?"}]},
               ANSWER], {"prompt": True}),
    ("null_content", [USER, {"role": "assistant", "content": None, "tool_calls": call(PLAN)["tool_calls"]}, RESULT], {}),
    ("assistant_first", [ANSWER, USER], {}),
    ("two_users", [USER, AGAIN], {}),
    ("unknown_role", [USER, {"role": "mason", "content": "Hm."}], {}),
    ("empty", [], {"prompt": True}),
]
SPECIAL = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}


def render(source, messages, tools=None, prompt=False, variables=None):
    normal = chat_template_utils._normalize_chat_messages(messages)
    has_blocks = re.search(r"\{\%-?\s*generation\s*-?\%\}", source) is not None
    return chat_template_utils.render_jinja_template(
        [normal], tools=tools, chat_template=source, add_generation_prompt=prompt,
        return_assistant_tokens_mask=has_blocks, **SPECIAL, **(variables or {}))


VALUES = {"text": "  Hé <b> 'x'\n", "word": "stone", "n": 7, "f": 2.5, "yes": True, "nothing": None,
          "list": [3, 1, 2], "words": ["b", "A", "c"], "table": {"b": 1, "a": [True, None, "\u00e9\u2028"], "c": {}},
          "rows": [{"k": "x", "v": 1}, {"k": "y", "v": 2}, {"k": "x"}], "empty": "", "zh": "\u4f60\u597d\U0001f642!"}
OUTPUTS = r"""
1 + 2 * 3 ** 2 | 7 // 2 | -7 // 2 | -7 % 3 | 7 % -3 | 7 / 2 | 1e3 | 1.5e-7 | 1e16 | 0.1 + 0.2 | 2 - -3 | 10 - 2 - 3 | not 1 == 2
1 < 2 < 3 | 1 < 3 < 2 | 'a' < 'b' | [1, 2] < [1, 3] | 1 == 1.0 | true == 1 | 'a' in 'cat' | 2 in list | 'b' in table | 5 not in list
n if yes else 0 | n if nothing | 'a' ~ 1 ~ none ~ true ~ 1.0 | 'a' 'b' | word * 2 | [1] * 2 + [2] | (1,) | (1, 2)[1] | [] | {} | table
list | words | text | text|trim | zh|length | zh[1] | zh[-1] | zh[::-1] | zh[1:3] | word[1:] | word[:-1] | word[::2] | word[-3:-1] | list[5]
list[::-1] | list[1:] | word[99:] | table.a | table['a'] | table.zz | table.zz is defined | nothing.x | none | table.get('q') | table.get('q', 3)
table.keys()|list | table.values()|list | table.items()|list | table|items|list | table|length | table|dictsort | table|tojson | table|tojson(indent=2)
table|tojson(ensure_ascii=true) | table|tojson(sort_keys=true) | table|tojson(separators=(',', ':')) | f|tojson | 1e20|tojson | zh|tojson(true) | [1, (2, 3)]|tojson
zz|upper|default('') | word|upper | word|capitalize | 'STONE'|lower | words|join(', ') | list|join | rows|map(attribute='k')|join(',') | words|map('upper')|list
rows|selectattr('k', 'equalto', 'x')|list|length | rows|rejectattr('v', 'defined')|list | rows|selectattr('v')|map(attribute='v')|list | list|select('odd')|list | list|reject('gt', 1)|list
list|sort | words|sort | words|sort(case_sensitive=true) | list|sort(reverse=true) | rows|sort(attribute='k')|map(attribute='k')|list | [1, 1, 2]|unique|list | ['a', 'A']|unique|list
list|min | list|max | list|sum | list|first | list|last | []|first | word|first | list|reverse|list | word|reverse | '42'|int + 1 | '4.7'|int | 'x'|int | 'x'|int(5) | '2.5'|float | 7|string ~ ''
zz|default('d') | empty|default('d') | empty|default('d', true) | nothing|default('d') | nothing|d('e', true) | 'a\nb\n\nc'|indent | 'a\nb'|indent(2, true) | 'a b'|replace(' ', '-') | word|list | 3.7|round | -3|abs | 2.5|round(method='floor')
text.strip() | text.lstrip() | text.rstrip('\n') | 'xxaxx'.strip('x') | 'a,b,,c'.split(',') | 'a,b,c'.split(',', 1) | ' a  b '.split() | 'a b c'.split(none, 1) | 'a.b.c'.rsplit('.', 1) | 'a\r\nb\nc'.splitlines()
word.startswith('st') | word.endswith(('x', 'ne')) | word.find('o') | word.find('z') | word.replace('s', 'S', 1) | 'abab'.count('ab') | '-'.join(words) | 'the end'.title() | 'ABC'.lower() | '12'.isdigit() | ''.isdigit() | 'a=b'.partition('=') | '{} and {}'.format(1, 'x') | '{0}{0}{k}'.format(2, k=3) | 'abc'.removeprefix('a')
word is string | n is number | n is integer | f is float | yes is boolean | yes is true | nothing is none | list is iterable | table is mapping | list is sequence | table is sequence | word is sequence | zz is defined | zz is undefined | n is odd | 4 is divisibleby 2 | n is sameas 7 | 'a' is in 'abc' | n is not none | zz is none | yes is number | word is callable | range is callable | 'a' is lower | 'A' is upper | n is ge(7) | n is eq 7
range(3)|list | range(1, 9, 3)|list | range(3, 0, -1)|list | range(5)[2] | dict(a=1).a | namespace(a=1).a | "q\"'" | 'tab\t\x41\u00e9\101' | ['it\'s', "\n\\", "\u200b", "\x7f"] | {1: 'a', 'k': (1, 2), none: 2.0} | 1_000 | {'a': 1}.a | (1 if yes) is defined | [1,] | zz ~ 'x' | zz == yy | 'x'|safe ~ '<' | '<'|safe + '<' | not zz | zz in list | n|string|length | -n | +n | 2 ** 3 | 2 ** -1 | 2.0 ** 0.5 | (-1) ** 5 | 0 ** 0 | -2.5 // 1 | '%' ~ n
""".strip("\n").replace("\n", " | ").split(" | ")
# Where a filter follows without spaces there is no " | " in it.
BLOCKS = [
    "a\n{% if yes %}\n  b\n  {% endif %}\nc\n", "a {%- if yes -%} \n b {%- endif %} c", "  {%+ if yes %}\nx{% endif +%}\ny",
    "{% for x in list %}\n{{ x }},\n{% endfor %}", "{# c #}\nx {#- y -#} z\n  {# w #}\n", "{% raw %} {{ x }} {% endraw %}\ny",
    "  {%- raw -%}  {% x %} {%- endraw -%}  z", "{{- word -}}  x", "x  {{- word }}", "\r\na\rb\r\n", "a\n\n", "{{ '{{' }}{{ \"%}\" }}{{ {'a': {'b': 1}}.a.b }}",
    "{% for x in list if x > 1 %}{{ loop.index }}{{ x }}{{ loop.last }} {% else %}none{% endfor %}", "{% for x in [] %}{{ x }}{% else %}none{% endfor %}",
    "{% for k, v in table.items() %}{{ k }}={{ v }};{% endfor %}", "{% for x in list %}{% if loop.first %}{% continue %}{% endif %}{{ x }}{% if x == 1 %}{% break %}{% endif %}{% endfor %}",
    "{% for x in list %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth }};{% endfor %}",
    "{% set a = 1 %}{% for x in list %}{{ a }}{% set a = x %}{{ a }} {% endfor %}{{ a }}", "{% set ns = namespace(a=0) %}{% for x in list %}{% set ns.a = ns.a + x %}{% endfor %}{{ ns.a }}{{ ns.b is defined }}",
    "{% set a, b = 1, 2 %}{{ a + b }}", "{% set a %}x{{ word }}{% endset %}{{ a|length }}", "{% set a | upper %}x{% endset %}{{ a }}", "{% filter upper %}a{{ word }}{% endfilter %}",
    "{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}{{ m(1, c=5) }}{{ m() }}", "{% macro m(x) %}{% if x %}{{ x }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(4) }}",
    "{% macro m() %}{{ z }}{% endmacro %}{% set z = 5 %}{{ m() }}", "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}", "{% if zz %}a{% elif n == 7 %}b{% else %}c{% endif %}",
    "{% if 1 %}{% set q = 3 %}{% endif %}{{ q }}", "{% for x in 'h\u00e9' %}[{{ x }}]{% endfor %}", "{% for x in table %}{{ x }}{% endfor %}", "{% for x in zz %}{% endfor %}ok", "{{ raise_exception('no ' ~ word) }}",
    "{{ zz.y }}", "{{ zz() }}", "{{ word.zz() }}", "{{ list.append(1) }}", "{{ 1 + 'a' }}", "{{ 1 / 0 }}", "{% for x in 5 %}{% endfor %}", "{{ table.zz.y }}", "{{ word | nosuch }}", "{{ word is nosuch }}", "{{ 'a' + none }}", "{{ strftime_now('%d %b %Y, %A %H:%M') }}",
    "{% if false %}{{ word | nosuch }}{% endif %}ok", "{% if yes", "{{ (1 }}", "{% endif %}", "{% nosuch %}", "{{ 'a }}", "{% for x in list %}", "{{ 1 2 }}", "{{ }}", "{{ a.b.c }}", "{{ namespace(_a=1) }}", "{% set word.x = 1 %}", "{{ [1]['a'] is defined }}",
    "x{% generation %}\n y{{ word }} {% endgeneration %}\nz", "{% for x in list %}{% generation %}{{ x }}{% set word = 1 %}{% endgeneration %}{{ word }}{% endfor %}",
    "{% set g = rows|selectattr('v') %}{{ g|list|length }}{{ g|list|length }}", "{% if rows|selectattr('zz') %}yes{% endif %}", "{{ range(1000000)|length }}", "{{ {'a': 1, 'a': 2} }}", "{{ [zz] }}",
]


def write(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def rendered(source, messages, **more):
    try:
        texts, spans = render(source, messages, **more)
        return {"text": texts[0], **({"spans": spans[0]} if spans else {})}
    except (jinja2.exceptions.TemplateError, TypeError, ValueError, AttributeError, KeyError, ArithmeticError) as error:
        return {"refused": f"{type(error).__name__}: {error}"}


def main():
    directory = pathlib.Path(sys.argv[1])
    cases = [{"name": name, "messages": messages, **more} for name, messages, more in CASES]
    (directory / "cases.json").write_text(json.dumps({"special": SPECIAL, "values": VALUES, "cases": cases}, indent=1) + "\n")
    write(directory / "rendered.jsonl",
          [{"template": path.name, "case": name, **rendered(path.read_text(), messages, **more)}
           for path in sorted(directory.glob("*.jinja")) for name, messages, more in CASES])
    snippets = ["{{ " + output + " }}" for output in OUTPUTS] + BLOCKS
    write(directory / "language.jsonl",
          [{"source": source, **rendered(source, [], variables=VALUES)} for source in snippets])


if __name__ == "__main__":
    main()
