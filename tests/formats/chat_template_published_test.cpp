// Published chat templates and random ones against what transformers makes of them
// (tools/make_chat_fixtures.py).
#include <gtest/gtest.h>
#include <zlib.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>

#include "base/error.h"
#include "formats/chat_template.h"

namespace kd {
namespace {

using Json = nlohmann::ordered_json;

Json load(const std::string& name) {
    const std::string path = std::string(KD_TEST_DATA) + "/formats/" + name;
    gzFile file = gzopen(path.c_str(), "rb");
    if (file == nullptr) throw std::runtime_error("cannot open " + path);
    std::string text;
    char buffer[1 << 16];
    for (int bytes = 0; (bytes = gzread(file, buffer, sizeof buffer)) > 0;)
        text.append(buffer, bytes);
    gzclose(file);
    return Json::parse(text);
}

std::chrono::system_clock::time_point time_of(const Json& document) {
    return std::chrono::system_clock::time_point(
        std::chrono::microseconds(document.at("now_us").get<int64_t>()));
}

/// The times in the fixtures are UTC.
class ChatTemplateFixtures : public testing::Test {
  protected:
    void SetUp() override {
        if (const char* zone = std::getenv("TZ")) zone_ = zone;
        setenv("TZ", "UTC", 1);
        tzset();
    }
    void TearDown() override {
        if (zone_)
            setenv("TZ", zone_->c_str(), 1);
        else
            unsetenv("TZ");
        tzset();
    }

  private:
    std::optional<std::string> zone_;
};

/// A raised message as it is thrown: one line, a line end as repr writes it.
std::string one_line(const std::string& message) {
    std::string out;
    for (const char c : message) c == '\n' ? out.append("\\n") : out.append(1, c);
    return out;
}

/// jinja2 fails: so do we, with the template's own words if it raised them.
void expect_error(const Json& test, const std::string& source, const Json& variables,
                  std::chrono::system_clock::time_point now) {
    try {
        const std::string text = ChatTemplate(source).render(variables, now);
        ADD_FAILURE() << "no " << test["error"] << " but " << text;
    } catch (const Error& error) {
        if (test.contains("message")) {
            const std::string raised = one_line(test["message"]);
            if (!raised.empty()) {
                EXPECT_EQ(error.what(), raised);
            } else {  // a line of its own
                EXPECT_TRUE(std::string(error.what()).ends_with("without a message"));
            }
        } else {
            EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
        }
    }
}

TEST_F(ChatTemplateFixtures, PublishedTemplatesRenderAsTransformersDoes) {
    const Json document = load("template_chats.json.gz");
    std::map<std::string, ChatTemplate> parsed;
    for (const auto& [name, entry] : document["templates"].items()) {
        parsed.emplace(name, ChatTemplate(entry["source"].get<std::string>(), name));
    }
    EXPECT_GE(parsed.size(), 30u);
    size_t rendered = 0;
    for (const Json& test : document["cases"]) {
        const std::string name = test["template"];
        SCOPED_TRACE(name + ": " + test["chat"].get<std::string>());
        const Json& variables = document["chats"][test["chat"].get<std::string>()];
        if (test.contains("error")) {
            expect_error(test, document["templates"][name]["source"], variables, time_of(document));
            continue;
        }
        try {
            EXPECT_EQ(parsed.at(name).render(variables, time_of(document)),
                      test["output"].get<std::string>());
        } catch (const Error& error) {
            ADD_FAILURE() << error.what();
        }
        ++rendered;
    }
    EXPECT_GE(rendered, 700u);
}

TEST_F(ChatTemplateFixtures, RandomTemplatesRenderAsJinja2Does) {
    const Json document = load("template_random.json.gz");
    for (const Json& test : document["cases"]) {
        const std::string source = test["template"];
        SCOPED_TRACE(source);
        if (test.contains("error")) {
            expect_error(test, source, document["variables"], time_of(document));
            continue;
        }
        try {
            EXPECT_EQ(ChatTemplate(source).render(document["variables"], time_of(document)),
                      test["output"].get<std::string>());
        } catch (const Error& error) {
            ADD_FAILURE() << error.what();
        }
    }
    EXPECT_GE(document["cases"].size(), 600u);
}

TEST_F(ChatTemplateFixtures, TheTimeIsThatOfTheZone) {
    const std::chrono::system_clock::time_point now(
        std::chrono::microseconds(1'796'043'909'000'123));
    const ChatTemplate clock("{{ strftime_now('%Y-%m-%d %H:%M:%S.%f|%z%Z|%b %A|%%f') }}");
    EXPECT_EQ(clock.render(Json::object(), now), "2026-11-30 13:05:09.000123||Nov Monday|%f");
    setenv("TZ", "XYZ-5:30", 1);
    tzset();
    EXPECT_EQ(clock.render(Json::object(), now), "2026-11-30 18:35:09.000123||Nov Monday|%f");
    // Before 1970 the fraction still counts upwards.
    setenv("TZ", "UTC", 1);
    tzset();
    const std::chrono::system_clock::time_point before(std::chrono::microseconds(-1));
    EXPECT_EQ(clock.render(Json::object(), before), "1969-12-31 23:59:59.999999||Dec Wednesday|%f");
    const ChatTemplate year("{{ strftime_now('%Y') }}");
    EXPECT_GE(std::stoi(year.render(Json::object())), 2026);
    EXPECT_EQ(ChatTemplate("{{ strftime_now('') }}|").render(Json::object()), "|");
    EXPECT_THROW(ChatTemplate("{{ strftime_now('%999999999d') }}").render(Json::object()), Error);
    EXPECT_EQ(ChatTemplate("{{ strftime_now }}").render({{"strftime_now", "mine"}}), "mine");
}

}  // namespace
}  // namespace kd
