#include "formats/json_file.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "support/gguf_writer.h"

namespace kd {
namespace {

std::string refusal(std::string_view text) {
    try {
        parse_json(text, "a.json");
    } catch (const Error& error) {
        EXPECT_EQ(error.code, ErrorCode::corrupt);
        return error.what();
    }
    return {};
}

template <class Call>
std::string refusal_of(Call call) {
    try {
        call();
    } catch (const Error& error) {
        EXPECT_EQ(error.code, ErrorCode::corrupt);
        return error.what();
    }
    return {};
}

TEST(JsonFile, ReadsAllKindsInTheirOrder) {
    const std::string text = R"({"b":[1,-2,2.5,true,null,"\u00e9\ud83d\ude00"],"a":{},"c":[]})";
    EXPECT_EQ(parse_json(text, "a.json").dump(-1, ' ', true), text);
    EXPECT_EQ(parse_json(" 7 ", "a.json"), Json(7));
    EXPECT_EQ(parse_json("18446744073709551615", "a.json"), Json(~uint64_t{0}));
    EXPECT_EQ(parse_json(R"([{"a":1},{"a":2}])", "a.json").dump(), R"([{"a":1},{"a":2}])");
}

TEST(JsonFile, SaysWhereItIsNotJson) {
    EXPECT_EQ(refusal("{\n  \"a\": tru }"),
              "a.json: line 2, column 11: not JSON at the end of '\"a\": tru '");
    EXPECT_EQ(refusal("[1,]"), "a.json: line 1, column 4: not JSON at the end of '1,]'");
    EXPECT_EQ(refusal("[1] 2"), "a.json: line 1, column 5: not JSON at the end of '2'");
    for (const std::string_view text :
         {"", "{", "[1", "\"a", "{\"a\"}", "nan", "1e999", "'a'", "\"\xFF\"", "\"\xED\xA0\x80\"",
          "\"\\ud800\"", "\"\n\"", "[1]//", "01"}) {
        EXPECT_EQ(refusal(text).rfind("a.json: line ", 0), 0u) << text << " " << refusal(text);
        EXPECT_EQ(refusal(text).find('\n'), std::string::npos) << text;
    }
    EXPECT_LT(refusal("[\"" + std::string(100000, 'x') + "\n\"]").size(), 200u);
}

TEST(JsonFile, RefusesAKeyThatStandsThereTwice) {
    EXPECT_EQ(refusal(R"({"a":{"b":[0,{"x":1,"y":2,"x":3}]}})"),
              "a.json: a.b[1]: key 'x' stands there twice");
    EXPECT_EQ(refusal(R"({"x":1,"x":1})"), "a.json: key 'x' stands there twice");
    EXPECT_EQ(refusal(R"({"x":1,"y":{"x":1}})"), "");
}

TEST(JsonFile, LimitsTheDepth) {
    const std::string deep = std::string(kMaxJsonDepth, '[') + std::string(kMaxJsonDepth, ']');
    EXPECT_EQ(refusal(deep), "");
    EXPECT_NE(refusal("[" + deep + "]").find("nested deeper than 64"), std::string::npos);
    std::string objects;
    for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
    EXPECT_NE(refusal(objects).find("nested deeper than 64"), std::string::npos);
    EXPECT_LT(refusal(objects).size(), 400u);
}

TEST(JsonFile, ReadsALargeObjectInNearLinearTime) {
    std::string text = "{";
    for (int i = 0; i < 200000; ++i) text += (i > 0 ? ",\"k" : "\"k") + std::to_string(i) + "\":1";
    EXPECT_EQ(parse_json(text + "}", "a.json").size(), 200000u);  // quadratic: minutes
    EXPECT_EQ(refusal(text + ",\"k7\":1}"), "a.json: key 'k7' stands there twice");
}

TEST(JsonFile, LimitsTheBytes) {
    const std::string large(kMaxJsonBytes, ' ');
    EXPECT_EQ(refusal("1" + large), "a.json: 16777217 bytes (at most 16777216 are read)");
    const TempPath file;
    write_test_file(file.path(), "1" + large);
    EXPECT_EQ(refusal_of([&] { read_json_file(file.path()); }),
              file.path() + ": 16777217 bytes (at most 16777216 are read)");
    EXPECT_EQ(read_json_file(file.path(), kMaxLargeJsonBytes), 1);
    EXPECT_NE(refusal_of([&] { read_json_file(file.path(), 7); }), "");
}

TEST(JsonFile, ReadsFiles) {
    const TempPath file;
    write_test_file(file.path(), R"({"a": 1})");
    EXPECT_EQ(read_json_file(file.path()).at("a"), 1);
    write_test_file(file.path(), "{");
    EXPECT_EQ(refusal_of([&] { read_json_file(file.path()); }).rfind(file.path() + ": line 1", 0),
              0u);
    EXPECT_THROW(read_json_file(file.path() + ".none"), Error);
}

TEST(JsonNode, NamesTheWayToWhatIsWrong) {
    const Json json = parse_json(
        R"({"m": {"list": [1, {"t": "x\n"}], "n": null, "f": 1.5, "u": 18446744073709551615}})",
        "a");
    const JsonNode root(json, "a.json");
    const JsonNode model = root.at("m");
    EXPECT_EQ(model.at("list").at(1).at("t").string(), "x\n");
    EXPECT_EQ(model.at("list").count(), 2u);
    EXPECT_EQ(model.at("list").at(0).integer(0, 1), 1);
    EXPECT_EQ(model.at("f").number(1, 2), 1.5);
    EXPECT_FALSE(model.find("n"));
    EXPECT_FALSE(model.find("none"));
    const auto says = [](auto call, std::string_view message) {
        EXPECT_EQ(refusal_of(call), message);
    };
    says([&] { root.at("x"); }, "a.json: 'x' is missing");
    says([&] { model.at("n"); }, "a.json: m: 'n' is missing");
    says([&] { model.at("list").at(2); }, "a.json: m.list: 2 elements, there is no 2");
    says([&] { model.at("list").at(0).integer(2, 3); },
         "a.json: m.list[0]: 1, not an integer from 2 to 3");
    says([&] { model.at("list").at(1).at("t").boolean(); },
         "a.json: m.list[1].t: 'x\\x0a', not true or false");
    says([&] { model.at("f").integer(0, 9); }, "a.json: m.f: 1.5, not an integer from 0 to 9");
    says([&] { model.at("u").integer(-1, 9); },
         "a.json: m.u: 18446744073709551615, not an integer from -1 to 9");
    says([&] { model.at("f").number(2, 9); }, "a.json: m.f: 1.5, not a number from 2 to 9");
    says([&] { model.at("f").string(); }, "a.json: m.f: 1.5, not a string");
    says([&] { model.at("f").find("x"); }, "a.json: m.f: 1.5, not an object");
    says([&] { model.count(); }, "a.json: m: an object of 4, not an array");
    says([&] { model.at("list").string(); }, "a.json: m.list: an array of 2, not a string");
}

}  // namespace
}  // namespace kd
