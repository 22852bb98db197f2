// Templates made to cost more than their steps, their bytes or their messages should allow.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <ctime>

#include "formats/utf8.h"
#include "template_support.h"

namespace kd {
namespace {

std::string times(int count, const std::string& statements) {
    return "{% for i in range(" + std::to_string(count) + ") %}" + statements + "{% endfor %}";
}

/// Of this process: the machine may be busy with others.
double seconds_of(const auto& work) {
    const std::clock_t begin = std::clock();
    work();
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

/// n.t: a tuple of 2 to the power `levels` ones, of which a few are there.
std::string shared_tuple(int levels, const std::string& name = "n") {
    return "{% set " + name + " = namespace(t=(1, 1)) %}" +
           times(levels, "{% set " + name + ".t = (" + name + ".t, " + name + ".t) %}");
}

TEST(HostileTemplate, SharedTuplesAreKeysAtOnce) {
    EXPECT_LT(seconds_of([] {
                  EXPECT_EQ(render(shared_tuple(30) + "{% set d = {n.t: 1} %}{{ d|length }}"), "1");
              }),
              2);
    expect_has(refusal("{% set d = {(1, ([],)): 1} %}"), "a tuple is no key");
    EXPECT_EQ(render("{{ {(1, (range(2), 'a')): 'b'}[(1, (range(2), 'a'))] }}"), "b");
}

TEST(HostileTemplate, WalksOfSharedTuplesAreBounded) {
    const std::string both = shared_tuple(60) + shared_tuple(60, "m");
    for (const std::string walk :
         {"n.t == m.t", "n.t < m.t", "n.t in [m.t]", "{n.t: 1}[m.t]", "n.t|tojson", "n.t|string",
          "[n.t, m.t]|sort", "[n.t, m.t]|unique", "[n.t, m.t]|max", "[n.t].index(m.t)"}) {
        SCOPED_TRACE(walk);
        expect_has(refusal(both + "{% set x = " + walk + " %}"), "more than");
    }
}

/// Each did what takes minutes, given the range that its steps allow.
TEST(HostileTemplate, WorkCostsSteps) {
    const std::string name(500'000, 'a');
    const std::string names = [] {
        std::string list;
        for (int i = 0; i < 1000; ++i) list.append("k").append(std::to_string(i)).append("=1, ");
        return list;
    }();
    const std::string parameters = [] {
        std::string list;
        for (int i = 0; i < 255; ++i) list.append("p").append(std::to_string(i)).append(", ");
        return list + "z=1";
    }();
    const std::string few = parameters.substr(parameters.find(' ') + 1);
    const Json text = {{"x", std::string(1 << 24, 'a')}, {"e", ""}};
    const struct {
        std::string source;
        Json variables;
    } cases[] = {
        {"{% set s = '{0}' * 100000 %}" + times(200, "{% set x = s.format('') %}"), {}},
        {"{% set s = '{z}' * 100000 %}" + times(200, "{% set x = s.format(z='') %}"), {}},
        {"{% set s = '{z}' * 9000 %}{% set x = s.format(" + names + "z='') %}" +
             times(9, "{% set x = s.format(" + names + "z='') %}"),
         {}},
        {times(100, "{% set y = x.format() %}"), {{"x", "{{" + std::string(1 << 20, 'a')}}},
        {times(100, "{% set y = x % {} %}"), {{"x", std::string(1 << 20, 'a')}}},
        {"{% set s = '%(z)s' * 100000 %}" + times(200, "{% set x = s % {'z': ''} %}"), {}},
        {"{% set s = '%%' * 100000 %}" + times(200, "{% set x = s % {} %}"), {}},
        {"{% macro f(" + few + ") %}{{ kwargs and '' }}{% endmacro %}" +
             times(300, "{% set x = f(" + names + "z=1) %}"),
         {}},
        {repeated("{% with %}", 150) + times(30000, "{% if e %}{% endif %}") +
             repeated("{% endwith %}", 150),
         text},
        {times(100, "{% if e.find(x) %}{% endif %}"), text},
        {times(100, "{% set y = e.strip(x[:4]) if e.count(x) else 1 %}"), text},
        {times(40, "{% set y = 1|tojson(separators=(x, x)) %}"), text},
        {"{% set t = ('b',) * 20000 %}" + times(300, "{% if x.startswith(t) %}{% endif %}"), text},
        {times(10, "{% set y = x.replace('a', '') %}"), {{"x", std::string(1 << 20, 'a')}}},
        {times(60, "{% set y = range(100)|map(attribute='" + repeated("a.", 1000) +
                       "a', default={}) %}"),
         {}},
        {"{% set m = x|safe %}" + times(10, "{% set y = m + e %}"), text},
        {times(2500, "{% set n = namespace() %}{% set n." + name + " = 1 %}"), {}},
        {"{% macro f() %}{{ kwargs and '' }}{% endmacro %}" +
             times(2500, "{% set x = f(" + name + "=1) %}"),
         {}},
        {"{% set d = dict(" + names + "z=1) %}" + times(4500, "{% set n = namespace(d) %}"), {}},
        {"{% set d = dict(" + names + "z=1) %}" +
             times(600, "{% set y = d|tojson(sort_keys=true) %}"),
         {}},
    };
    for (const auto& [source, variables] : cases) {
        SCOPED_TRACE(source.substr(0, 60) + " ... " +
                     source.substr(source.size() - std::min<size_t>(source.size(), 60)));
        expect_has(refusal(source, variables.is_null() ? Json::object() : variables), "more than");
    }
}

TEST(HostileTemplate, NamesOfTestsAreNotCopied) {
    const Json text = {{"x", std::string(1 << 24, 'a')}};
    EXPECT_LT(
        seconds_of([&] { EXPECT_EQ(render(times(8000, "{% set y = []|select(x) %}"), text), ""); }),
        2);
}

TEST(HostileTemplate, MacrosHaveAtMost255Parameters) {
    const auto macro = [](int count) {
        std::string list;
        for (int i = 0; i < count; ++i) list.append("p").append(std::to_string(i)).append("=1, ");
        return "\n{% macro f(" + list.substr(0, list.size() - 2) + ") %}{{ p0 }}{% endmacro %}";
    };
    EXPECT_EQ(render(macro(255) + "{{ f() }}"), "\n1");
    expect_has(refusal(macro(256)), "line 2: more than 255 parameters");
    expect_has(refusal("{% macro f() %}{% endmacro %}{% call(" + repeated("a, ", 9) +
                       "a) f() %}{% endcall %}"),
               "occurs twice");
}

TEST(HostileTemplate, RawBlocksAreReadOnce) {
    const std::string tags = repeated("{%", 40'000);
    EXPECT_LT(seconds_of([&] {
                  EXPECT_EQ(render("{% raw %}" + tags + "\n {% endraw %}"), tags + "\n");
                  expect_has(refusal("{% raw %}" + tags), "'endraw' is missing");
              }),
              2);
    // Lines, indents and signs around what only looks like the end.
    EXPECT_EQ(render("{% raw %}\n  {% endraw\n {%- endraw x %}  {%-\n endraw +%}\n{{ 1 }}"),
              "\n  {% endraw\n {%- endraw x %}\n1");
    expect_has(refusal("{% raw %}\n{%\n endraw %}\n{{ [ }}"), "line 4:");
}

TEST(HostileTemplate, SourcesHaveALargestSize) {
    std::string source(kMaxTemplateBytes, 'a');
    EXPECT_EQ(render(source), source);
    source += 'a';
    try {
        const ChatTemplate parsed(source, "t");
        FAIL() << "not refused";
    } catch (const Error& error) {
        EXPECT_EQ(error.code, ErrorCode::unsupported);
        EXPECT_STREQ(error.what(), "t: a template of 1048577 bytes, more than 1048576");
    }
}

TEST(HostileTemplate, TimesAreCountedBeforeTheyAreMade) {
    const auto most_kilobytes = [] {
        rusage usage{};
        getrusage(RUSAGE_SELF, &usage);
        return usage.ru_maxrss;
    };
    const auto before = most_kilobytes();
    expect_has(refusal("{{ strftime_now('x' * 2 ** 23) }}"), "bytes of strings");
    EXPECT_LT(most_kilobytes() - before, 256 << 10);
}

/// A terminal shows it on one line, from left to right.
bool is_one_line(std::string_view text) {
    while (!text.empty()) {
        const Utf8Unit unit = next_utf8(text);
        const char32_t c = unit.code_point;
        if (unit.kind != Utf8Kind::valid || c < 0x20 || (c >= 0x7F && c < 0xA0) ||
            (c >= 0x200B && c <= 0x200F) || (c >= 0x2028 && c <= 0x202E) ||
            (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF) {
            return false;
        }
        text.remove_prefix(unit.bytes);
    }
    return true;
}

TEST(HostileTemplate, RaisedMessagesAreOneReadableLine) {
    const auto raised = [](const std::string& message) {
        return refusal("{{ raise_exception(x) }}", {{"x", message}});
    };
    EXPECT_EQ(raised("Größe, 大きさ, 😀 'a' \"b\" \\"), "Größe, 大きさ, 😀 'a' \"b\" \\");
    EXPECT_EQ(raised("a\nb\r\tc\x1b[31m\x7f" + std::string(1, '\0')),
              "a\\nb\\r\\tc\\x1b[31m\\x7f\\x00");
    EXPECT_EQ(raised("\u0085\u009b\u2028\u202e\u2066\ufeff\U000e0041"),
              "\\x85\\x9b\\u2028\\u202e\\u2066\\ufeff\\U000e0041");
    EXPECT_EQ(raised("a\xFF\xE2\x82"), "a\uFFFD\uFFFD");
    EXPECT_EQ(raised(std::string(1000, 'x')), std::string(1000, 'x'));
    EXPECT_EQ(raised(std::string(1001, 'x')), std::string(1000, 'x') + "...");
    EXPECT_EQ(raised(std::string(1 << 20, '\n')), repeated("\\n", 500) + "...");
    const std::string letters = raised(std::string(999, 'x') + repeated("\u00e9", 9));
    EXPECT_EQ(letters, std::string(999, 'x') + "\u00e9...");
}

TEST(HostileTemplate, MessagesAreOneShortLine) {
    const std::string bad = "\n\x1b[2J\u009b\u202e\xFF";
    const std::string name(100'000, 'a');
    const std::string chain = repeated("|default", 150);
    const std::vector<std::string> sources = {
        "{{ 1 'x" + bad + "' }}",
        "{{ x '" + name + "' }}",
        "{{ \u202e }}",
        "{{ \u009b }}",
        "{{ \x1b }}",
        "{{ '\\x" + bad + "' }}",
        "{{ '\\U0001" + bad + "' }}",
        "{{ " + std::string(100'000, '9') + " }}",
        "{{ 0x" + std::string(100'000, 'f') + " }}",
        "{{ x " + name + " }}",
        "{% " + name + " %}",
        "{% end" + name + " %}",
        "{% macro f(" + name + ", " + name + ") %}",
        "{% macro f(a=1, " + name + ") %}",
        "{{ [1]|" + name + " }}",
        "{{ 1 is " + name + " }}",
        "{{ " + name + ".x }}",
        "{{ " + name + "() }}",
        "{{ 'a'|trim(" + name + "=1) }}",
        "{% set " + name + ".x = 1 %}",
        "{% set " + name + " = 1 %}{% set " + name + ".x = 1 %}",
        "{% macro " + name + "() %}{% endmacro %}{{ " + name + "(1) }}",
        "{% macro f(" + name + ") %}{{ " + name + ".x }}{% endmacro %}{{ f() }}",
        "{{ '{" + name + "}'.format() }}",
        "{{ '%(" + name + ")s' % {} }}",
        "{{ {}['" + bad + "'].x }}",
        "{{ [1]|map(attribute='" + bad + "')|join() + 1 }}",
        "{% set d = {} %}{{ d['" + bad + name + "'].x }}",
        "{{ [1] * 'a'" + chain + " }}",
        "{{ [1] * '" + bad + "' }}",
        "{{ '" + name + "'|int + '" + bad + "' }}"};
    for (const std::string& source : sources) {
        SCOPED_TRACE(source.substr(0, 40));
        const std::string message = refusal(source);
        EXPECT_TRUE(is_one_line(message)) << message;
        EXPECT_GT(message.size(), 20u);
        EXPECT_LT(message.size(), 400u) << message;
    }
    EXPECT_EQ(refusal("{{ 1 'a\nb' }}"), "chat template, line 1: unexpected 'a\\x0ab'");
    EXPECT_EQ(refusal("{{ \u201c }}"), "chat template, line 1: unexpected character '\u201c'");
    // The end of a long expression is what says where it failed.
    Json deep = 1;
    for (int i = 0; i < 60; ++i) deep = Json{{"step", std::move(deep)}};
    expect_has(refusal("{{ x" + repeated(".step", 59) + ".last.more }}", {{"x", deep}}),
               "step.last' is undefined");
    try {
        const ChatTemplate parsed("{{ 1 1 }}", bad + "a");
        FAIL() << "not refused";
    } catch (const Error& error) {
        EXPECT_TRUE(is_one_line(error.what())) << error.what();
    }
}

}  // namespace
}  // namespace kd
