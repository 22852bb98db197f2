#include "formats/chat_template.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "tiny_tokenizer.h"

namespace kd {
namespace {

using Json = nlohmann::ordered_json;

std::string render(const std::string& source, const Json& variables = Json::object()) {
    return ChatTemplate(source).render(variables);
}

/// What parsing or rendering says; empty if it succeeds.
std::string refusal(const std::string& source, const Json& variables = Json::object()) {
    try {
        render(source, variables);
    } catch (const Error& error) {
        return error.what();
    }
    return {};
}

void expect_has(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), text.npos) << "'" << part << "' is not in '" << text << "'";
}

std::string repeated(const std::string& text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += text;
    return out;
}

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
}

TEST(ChatTemplate, NamesItselfAndTheLine) {
    try {
        ChatTemplate("a\n{% macro f() %}{% endmacro %}", "my template");
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.code, ErrorCode::unsupported);
        EXPECT_STREQ(error.what(), "my template, line 2: the statement 'macro' is not supported");
    }
    expect_has(refusal("{{ 1 }}\n\n{%- if true %}\n{{ [\n1,\nx.y] }}{% endif %}"), "line 6:");
    expect_has(refusal("", Json::array()), "the variables must be an object");
}

TEST(ChatTemplate, RefusesWhatItDoesNotKnow) {
    for (const std::string source : {"{% call f() %}",
                                     "{% include 'x' %}",
                                     "{% import 'x' as x %}",
                                     "{% raw %}",
                                     "{% with %}",
                                     "{% extends 'x' %}",
                                     "{% block x %}",
                                     "{% filter upper %}",
                                     "{% do x %}",
                                     "{% for x in y recursive %}{% endfor %}",
                                     "{{ 2 ** 3 }}",
                                     "{{ f(*x) }}",
                                     "{{ '%s' % 1 }}",
                                     "{{ 0x10 }}",
                                     "{{ 99999999999999999999 }}",
                                     "{{ '\\N{DASH}' }}",
                                     "{{ {1: 2} }}",
                                     "{{ 'é'|upper }}",
                                     "{{ 'É'.lower() }}",
                                     "{{ 9223372036854775807 + 1 }}",
                                     "{{ -9223372036854775807 - 2 }}",
                                     "{{ 9223372036854775807 * 2 }}",
                                     "{{ {}.items }}",
                                     "{{ namespace() }}",
                                     "{{ range }}",
                                     "{% for x in [1] %}{{ loop }}{% endfor %}",
                                     "{% set n = namespace() %}{% set n.x = n %}",
                                     "{{ [namespace()] }}",
                                     "{% for x in [1] %}{{ {'a': loop} }}{% endfor %}",
                                     "{% set x | trim %}{% endset %}",
                                     "{{ 'a'.format(1) }}",
                                     "{{ [1]|map('string') }}"}) {
        expect_has(refusal(source), "is not supported");
    }
    expect_has(refusal("{{ x }}", {{"x", uint64_t{1} << 63}}), "9223372036854775808");
}

TEST(ChatTemplate, GenerationBlocksPrintTheirBody) {
    EXPECT_EQ(render("a{% generation %}{% set x = 1 %}b{% endgeneration %}{{ x }}"), "ab1");
}

TEST(ChatTemplate, IsBounded) {
    const std::string loops = "{% for a in range(9999) %}{% for b in range(9999) %}";
    expect_has(refusal(loops + "{% endfor %}{% endfor %}"), "steps");
    // Doubling: 2^60 bytes, elements and levels.
    const std::string doubling = "{% set n = namespace(x='ab') %}{% for i in range(60) %}";
    expect_has(refusal(doubling + "{% set n.x = n.x + n.x %}{% endfor %}"), "bytes of strings");
    expect_has(refusal(doubling + "{% set n.x = n.x ~ n.x %}{% endfor %}"), "bytes of strings");
    expect_has(refusal(doubling + "{% set n.x = n.x|replace('a', 'aa') %}{% endfor %}"),
               "bytes of strings");
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
         {"[x|string]", "[x|safe]", "d.keys()", "d.items()", "d|list", "[{x: 1}]"}) {
        expect_has(often("{% set n.x = n.x + " + copy + " %}"), "bytes of strings");
    }
    expect_has(often("{% if namespace(d) %}{% endif %}"), "bytes of strings");
    expect_has(refusal("{{ ('a,' * 9000000).split(',') }}"), "steps");
    expect_has(refusal("{{ ('a,' * 9000000).rsplit(',', 8000000) }}"), "steps");
    const std::string name(1 << 20, 'a');
    expect_has(refusal("{% set " + name + "b = 1 %}{% for i in range(9999) %}{% if " + name +
                       "c %}{% endif %}{% endfor %}"),
               "steps");
    EXPECT_LT(refusal("{{ d." + name + ".x }}", text).size(), 300u);
    EXPECT_LT(refusal("{{ d['" + name + "'].x }}", text).size(), 300u);
}

TEST(ChatTemplate, DeepSourcesAndValuesAreRefused) {
    constexpr int kDeep = 100000;
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
         {"+1", ".a", "[0]", "|trim", " and 1", " or 1", " is defined", " if 1", "~1", "()"}) {
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
