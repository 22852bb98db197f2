#include "formats/chat_template.h"

#include <gtest/gtest.h>

#include <fstream>

#include "template_support.h"
#include "tiny_tokenizer.h"

namespace kd {
namespace {

TEST(ChatTemplate, RendersAsJinja2Does) {
    std::ifstream file(std::string(KD_TEST_DATA) + "/formats/template_cases.json");
    const Json document = Json::parse(file);
    for (const Json& test : document["cases"]) {
        SCOPED_TRACE(test["name"].get<std::string>());
        const std::string source = test.value("template", document["smollm_template"]);
        const Json variables = test.value("variables", document["default_variables"]);
        if (test.contains("error")) {
            expect_has(refusal(source, variables), test["names"]);
            continue;
        }
        try {
            EXPECT_EQ(render(source, variables), test["output"].get<std::string>());
        } catch (const Error& error) {
            ADD_FAILURE() << error.what();
        }
    }
    EXPECT_GE(document["cases"].size(), 90u);
}

TEST(ChatTemplate, IsTheOneInTheModelFile) {
    const std::optional<std::string> path = smollm_path();
    if (!path) GTEST_SKIP() << "SmolLM2-135M-Instruct.Q4_1.gguf is not in the cache folder";
    std::ifstream file(std::string(KD_TEST_DATA) + "/formats/template_cases.json");
    EXPECT_EQ(Tokenizer(GgufFile(*path)).chat_template(),
              Json::parse(file)["smollm_template"].get<std::string>());
}

TEST(ChatTemplate, RendersAgainAndAgain) {
    ChatTemplate first("{% set x = x + 1 %}{{ x }}", "first");
    EXPECT_EQ(first.render({{"x", 1}}), "2");
    EXPECT_EQ(first.render({{"x", 1}}), "2");
    const ChatTemplate moved = std::move(first);
    EXPECT_EQ(moved.render({{"x", 2}}), "3");
    EXPECT_EQ(render(""), "");
}

TEST(ChatTemplate, RaisedMessagesComeThroughAlone) {
    EXPECT_EQ(refusal("{{ raise_exception('Only one system turn') }}"), "Only one system turn");
    EXPECT_EQ(refusal("{{ raise_exception('') }}"),
              "chat template, line 1: raise_exception without a message");
}

TEST(ChatTemplate, NamesItselfAndTheLine) {
    try {
        ChatTemplate("a\n{% include 'x' %}", "my template");
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.code, ErrorCode::unsupported);
        EXPECT_STREQ(error.what(), "my template, line 2: the statement 'include' is not supported");
    }
    expect_has(refusal("{{ 1 }}\n\n{%- if true %}\n{{ [\n1,\nx.y] }}{% endif %}"), "line 6:");
    expect_has(refusal("", Json::array()), "the variables must be an object");
}

TEST(ChatTemplate, RefusesWhatItDoesNotKnow) {
    for (const std::string source :
         {"{% include 'x' %}", "{% import 'x' as x %}", "{% from 'x' import y %}",
          "{% extends 'x' %}", "{% block x %}", "{% do x %}", "{% autoescape true %}",
          "{% for x in y recursive %}{% endfor %}", "{{ f(*x) }}", "{{ f(**x) }}",
          "{{ 99999999999999999999 }}", "{{ '\\N{DASH}' }}", "{{ 1|batch(2) }}",
          "{{ 1 is filter }}"}) {
        SCOPED_TRACE(source);
        // Before anything is rendered, with the line.
        try {
            ChatTemplate parsed("\n" + source, "t");
            ADD_FAILURE() << "not refused";
        } catch (const Error& error) {
            EXPECT_EQ(error.code, ErrorCode::unsupported);
            expect_has(error.what(), "t, line 2: ");
        }
    }
    for (const std::string source :
         {"{{ 9223372036854775807 + 1 }}",
          "{{ -9223372036854775807 - 2 }}",
          "{{ 9223372036854775807 * 2 }}",
          "{{ 2 ** 64 }}",
          "{{ (-8) ** 0.5 }}",
          "{{ '99999999999999999999'|int }}",
          "{{ 1e30|int }}",
          "{{ namespace() }}",
          "{{ range }}",
          "{{ range(3) }}",
          "{{ [1]|map('string') }}",
          "{{ 'a'.upper }}",
          "{{ 'a'.swapcase() }}",
          "{{ {}.fromkeys([]) }}",
          "{{ cycler('a') }}",
          "{{ joiner() }}",
          "{% set n = namespace() %}{% set n.x = n %}",
          "{{ [namespace()] }}",
          "{% for x in [1] %}{{ {'a': loop} }}{% endfor %}",
          "{{ '%c' % 1 }}",
          "{{ '%*d' % 1 }}",
          "{{ '{:{}}'.format(1, 2) }}",
          "{{ '{0.x}'.format(1) }}",
          "{{ '{:e}'.format(1.5) }}",
          "{{ ('a'|safe).join(['<']) }}",
          "{{ 1.5|round(-1) }}",
          "{{ '\u00b2'.isdigit() }}",
          "{{ [1]|sort(attribute='a,b') }}",
          "{{ 1 is sameas 1 }}",
          "{% set n = namespace() %}{% if 1 %}{% for x in [1] %}{% macro f() %}{% endmacro %}"
          "{% set n.f = f %}{% endfor %}{% endif %}{{ n.f() }}"}) {
        SCOPED_TRACE(source);
        expect_has(refusal(source), "is not supported");
    }
    expect_has(refusal("{{ x }}", {{"x", uint64_t{1} << 63}}), "9223372036854775808");
}

TEST(ChatTemplate, NamespacesTakeNoUnderscores) {
    expect_has(refusal("{% set n = namespace() %}{% set n._x = 1 %}"), "begins with '_'");
    expect_has(refusal("{{ namespace(_x=1) }}"), "begins with '_'");
}

TEST(ChatTemplate, GenerationBlocksPrintTheirBody) {
    EXPECT_EQ(render("a{% generation %}{% set x = 1 %}b{{ x }}{% endgeneration %}{{ x }}"), "ab1");
}

TEST(ChatTemplate, IsBounded) {
    const std::string loops = "{% for a in range(9999) %}{% for b in range(9999) %}";
    expect_has(refusal(loops + "{% endfor %}{% endfor %}"), "steps");
    // Doubling: 2^60 bytes, elements and levels.
    const std::string doubling = "{% set n = namespace(x='ab') %}{% for i in range(60) %}";
    expect_has(refusal(doubling + "{% set n.x = n.x + n.x %}{% endfor %}"), "bytes of strings");
    expect_has(refusal(doubling + "{% set n.x = n.x ~ n.x %}{% endfor %}"), "bytes of strings");
    expect_has(refusal(doubling + "{% set n.x = n.x|replace('a', 'aa') %}{% endfor %}"),
               "more than");
    expect_has(refusal("{{ 'abcdefgh' * 99999999999 }}"), "bytes of strings");
    expect_has(refusal("{% set n = namespace(x=[1]) %}{% for i in range(60) %}"
                       "{% set n.x = n.x + n.x %}{% endfor %}"),
               "steps");
    expect_has(refusal("{% set n = namespace(x=1) %}{% for i in range(999) %}"
                       "{% set n.x = [n.x] %}{% endfor %}{{ n.x }}"),
               "nested deeper than 128");
    expect_has(refusal("{% set n = namespace(x=[[1]]) %}{% for i in range(99) %}"
                       "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}"),
               "more than");
    expect_has(
        refusal("{% for i in range(40) %}{{ x }}{% endfor %}", {{"x", std::string(1 << 20, 'x')}}),
        "more than");
    const Json text = {{"x", std::string(1 << 22, 'a')}, {"y", std::string(1 << 20, 'a') + "b"}};
    expect_has(refusal("{{ y in x }}", text), "steps");
}

// jinja2 finds out where it runs: a branch that is not taken may name what does not exist.
TEST(ChatTemplate, UnknownFiltersInBranchesAreRefusedWhereTheyRun) {
    const std::string source = "a{% if x %}{{ 1|frobnicate }}{{ 1 is frobnicated }}{% endif %}";
    EXPECT_EQ(render(source), "a");
    expect_has(refusal(source, {{"x", 1}}), "'frobnicate' is not supported");
    EXPECT_THROW(ChatTemplate("{% if x %}{{ 1|batch(2) }}{% endif %}"), Error);
}

TEST(ChatTemplate, CallsAreBounded) {
    expect_has(refusal("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"), "nested deeper than");
    expect_has(
        refusal("{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}"
                "{{ f() }}"),
        "nested deeper than");
    expect_has(refusal("{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{{ caller }}"
                       "{% endmacro %}{{ f() }}"),
               "nested deeper than");
    expect_has(refusal("{% macro f(n) %}{% for i in range(9) %}{% if n %}{{ f(n - 1) }}{% endif %}"
                       "{% endfor %}{% endmacro %}{{ f(9) }}"),
               "steps");
    expect_has(refusal("{% macro f(n) %}x{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(40) }}"),
               "more than");
    // The deepest expressions in the deepest blocks of the deepest calls that are allowed.
    const std::string deep = repeated("(", 150) + "f(x)" + repeated(")", 150);
    expect_has(refusal("{% macro f(x) %}" + repeated("{% if 1 %}", 150) + "{{ " + deep + " }}" +
                       repeated("{% endif %}", 150) + "{% endmacro %}{{ f(1) }}"),
               "nested deeper than");
    EXPECT_EQ(render("{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}"
                     "{{ f(60) }}")
                  .substr(0, 6),
              "605958");
}

TEST(ChatTemplate, GrowthIsBounded) {
    expect_has(refusal("{{ [1] * 999999999999 }}"), "steps");
    expect_has(refusal("{{ 'a' * 10 ** 9 }}"), "bytes of strings");
    expect_has(refusal("{{ range(10 ** 12) }}"), "more than 100000");
    expect_has(refusal("{{ ('a' * 30000)|replace('', 'b' * 30000) }}"), "bytes of strings");
    expect_has(refusal("{{ 'a'.ljust(10 ** 12) }}"), "bytes of strings");
    expect_has(refusal("{{ 'a'|indent(10 ** 12) }}"), "bytes of strings");
    expect_has(refusal("{{ '%999999999d' % 1 }}"), "too large");
    expect_has(refusal("{{ '{:>33000000}'.format(1) * 2 }}"), "bytes of strings");
    expect_has(refusal("{{ ('\n' * 30000000)|indent(60) }}"), "more than");
    expect_has(refusal("{{ (('a\n' * 100000)|indent('x' * 10000)) }}"), "bytes of strings");
    expect_has(refusal("{{ range(90000)|list|unique|list }}"), "steps");
    expect_has(refusal("{% for i in range(999) %}{{ x|sort|length }}{% endfor %}",
                       {{"x", Json(std::vector<int>(999))}}),
               "steps");
    expect_has(refusal("{% set n = namespace(x={}) %}{% for i in range(200) %}"
                       "{% set n.x = {'k': n.x} %}{% endfor %}"),
               "nested deeper than 128");
    expect_has(refusal("{% set n = namespace(x=[]) %}{% for i in range(200) %}"
                       "{% set n.x = [n.x]|map('list') %}{% endfor %}"),
               "nested deeper than 128");
}

// Each of these took minutes or gigabytes within 4,000,000 steps.
TEST(ChatTemplate, LongTextsCostTheirLength) {
    const Json text = {{"x", std::string(1 << 24, 'a')}, {"d", {{"k", 1}}}};
    const auto often = [&](const std::string& statement) {
        return refusal("{% set n = namespace(x=[]) %}{% set d = {x: 1} %}{% for i in range(99) %}" +
                           statement + "{% endfor %}",
                       text);
    };
    for (const std::string test :
         {"x == x", "x < x", "x.startswith(x)", "x.endswith(x)", "d[x]", "d.get(x)", "x in d"}) {
        expect_has(often("{% if " + test + " %}{% endif %}"), "steps");
    }
    for (const std::string copy :
         {"[x|string]", "[x|upper]", "[x|trim]", "[x[1:]]", "x.split('b')"}) {
        expect_has(often("{% set n.x = n.x + " + copy + " %}"), "more than");
    }
    expect_has(often("{% if namespace(d) %}{% endif %}"), "bytes of strings");
    expect_has(refusal("{{ ('a,' * 9000000).split(',') }}"), "steps");
    expect_has(refusal("{{ ('a,' * 9000000).rsplit(',', 8000000) }}"), "steps");
    const std::string name(1 << 18, 'a');
    expect_has(refusal("{% set " + name + "b = 1 %}{% for i in range(9999) %}{% if " + name +
                       "c %}{% endif %}{% endfor %}"),
               "steps");
    EXPECT_LT(refusal("{{ d." + name + ".x }}", text).size(), 300u);
    EXPECT_LT(refusal("{{ d['" + name + "'].x }}", text).size(), 300u);
}

TEST(ChatTemplate, DeepSourcesAndValuesAreRefused) {
    constexpr int kDeep = 50000;
    for (const auto& [open, close] : {std::pair<std::string, std::string>{"(", ")"},
                                      {"[", "]"},
                                      {"{'a':", "}"},
                                      {"-", ""},
                                      {"not ", ""},
                                      {"x[", "]"},
                                      {"f(", ")"},
                                      {"1 if 1 else ", ""}}) {
        expect_has(refusal("{{ " + repeated(open, kDeep) + "1" + repeated(close, kDeep) + " }}"),
                   "nested deeper than 200");
    }
    for (const std::string link :
         {"+1", ".a", "[0]", "|trim", " and 1", " or 1", " is eq 1", " if 1", "~1", "()"}) {
        expect_has(refusal("{{ 1" + repeated(link, kDeep) + " }}"), "nested deeper than 200");
    }
    expect_has(refusal(repeated("{% if 1 %}", kDeep)), "nested deeper than 200");
    expect_has(refusal(repeated("{% for x in y %}", kDeep)), "nested deeper than 200");
    EXPECT_EQ(render("{{ 1" + repeated(" + 1", 150) + " }}"), "151");
    EXPECT_EQ(render("{% if x %}" + repeated("{% elif x %}", 1000) + "{% else %}a{% endif %}"),
              "a");
    Json deep = 1;
    for (int i = 0; i < 1000; ++i) deep = Json::array({std::move(deep)});
    expect_has(refusal("{{ x }}", {{"x", deep}}), "nested deeper than 128");
}

TEST(ChatTemplate, IllFormedTextStaysText) {
    const Json variables = {{"x", "a\xFF\xE2\x82"}};
    EXPECT_EQ(render("{{ x }}", variables), "a\xFF\xE2\x82");
    EXPECT_EQ(render("{{ x|length }}{{ x[0] }}{{ x|trim }}", variables), "3aa\xFF\xE2\x82");
    EXPECT_EQ(render("{{ x|tojson }}", variables), "\"a\uFFFD\uFFFD\"");
    EXPECT_EQ(render("\xFF{{ '\xFF' }}"), "\xFF\xFF");
    expect_has(refusal("{{ \xFF }}"), "unexpected character");
}

// Every prefix of a template and every template with one character gone ends in a text or an Error.
TEST(ChatTemplate, BrokenSourcesNeverCrash) {
    std::ifstream file(std::string(KD_TEST_DATA) + "/formats/template_cases.json");
    const Json document = Json::parse(file);
    const Json& variables = document["default_variables"];
    for (const Json& test : document["cases"]) {
        const std::string source = test.value("template", document["smollm_template"]);
        for (size_t i = 0; i < source.size(); i += 3) {
            refusal(source.substr(0, i), variables);
            refusal(source.substr(0, i) + source.substr(i + 1), variables);
        }
    }
}

}  // namespace
}  // namespace kd
