#include "kv_pool/trace.h"

#include <fmt/format.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/check.h"
#include "base/error.h"

namespace kd {

namespace {

using Json = nlohmann::json;

constexpr int64_t kMostTokens = 1 << 26;  // of a prompt or an output
constexpr double kMostRounds = 1e15;

/// A value as an error message quotes it.
std::string shown(const Json& value) {
    constexpr size_t kMost = 60;
    std::string text = value.dump();
    if (text.size() > kMost) text = text.substr(0, kMost) + "...";
    return text;
}

class TraceReader {
  public:
    TraceReader(std::string path, double rounds_per_t)
        : path_(std::move(path)), rounds_per_t_(rounds_per_t) {
        load_.name = path_;
    }

    Load read();

  private:
    template <class... Values>
    [[noreturn]] void refuse(fmt::format_string<Values...> format, Values&&... values) const {
        KD_THROW(corrupt, "{}:{}: {}", path_, line_,
                 fmt::format(format, std::forward<Values>(values)...));
    }
    const Json& field(const Json& object, const char* name) const;
    int32_t tokens(const Json& value, const char* name, int64_t least) const;
    std::string name_of(const Json& value, const char* field_name) const;
    int64_t round_of(const Json& value);
    void known_fields(const Json& object, std::initializer_list<std::string_view> names) const;
    void read_line(const std::string& line);
    void read_start(const Json& event, std::string id, int64_t round);
    void read_prompt(const Json& prompt, LoadSession& session);

    std::string path_;
    double rounds_per_t_;
    int32_t line_ = 0;
    int64_t last_round_ = 0;
    Load load_;
    std::unordered_map<std::string, int32_t> sessions_;  // by id
    std::unordered_map<std::string, int32_t> texts_;     // by name; ids of sessions included
    std::vector<bool> ended_;                            // [sessions] by an event
};

const Json& TraceReader::field(const Json& object, const char* name) const {
    const auto found = object.find(name);
    if (found == object.end()) refuse("no \"{}\"", name);
    return *found;
}

void TraceReader::known_fields(const Json& object,
                               std::initializer_list<std::string_view> names) const {
    for (const auto& [key, value] : object.items()) {
        bool known = false;
        for (const std::string_view name : names) known = known || key == name;
        if (!known) refuse("unknown field {}", shown(key));
    }
}

int32_t TraceReader::tokens(const Json& value, const char* name, int64_t least) const {
    // Unsigned numbers beyond int64_t come out negative.
    if (!value.is_number_integer() || value.get<int64_t>() < least ||
        value.get<int64_t>() > kMostTokens) {
        refuse("\"{}\" is {}, not a whole number from {} to {}", name, shown(value), least,
               kMostTokens);
    }
    return value.get<int32_t>();
}

std::string TraceReader::name_of(const Json& value, const char* field_name) const {
    if (value.is_string() && !value.get_ref<const std::string&>().empty()) {
        return value.get<std::string>();
    }
    if (value.is_number_integer()) return value.dump();
    refuse("\"{}\" has {}, not a name or a whole number", field_name, shown(value));
}

int64_t TraceReader::round_of(const Json& value) {
    const double rounds = value.is_number() ? value.get<double>() * rounds_per_t_ : -1;
    if (!(rounds >= 0 && rounds <= kMostRounds)) {
        refuse("\"t\" is {}, not a time from 0 to {:g}", shown(value), kMostRounds / rounds_per_t_);
    }
    const auto round = static_cast<int64_t>(rounds);
    if (round < last_round_) refuse("\"t\" is {}, earlier than the line before", shown(value));
    last_round_ = round;
    return round;
}

void TraceReader::read_prompt(const Json& prompt, LoadSession& session) {
    if (prompt.is_array()) {
        std::vector<int32_t> ids;
        ids.reserve(prompt.size());
        for (const Json& id : prompt) {
            const bool whole = id.is_number_unsigned();
            if (!whole || id.get<uint64_t>() > std::numeric_limits<int32_t>::max()) {
                refuse("\"prompt\" has {}, not a token id", shown(id));
            }
            ids.push_back(id.get<int32_t>());
        }
        if (ids.empty()) refuse("\"prompt\" is empty");
        session.prompt = static_cast<int32_t>(ids.size());
        session.text = add_text(load_, session.id, -1, 0);
        load_.texts.back().ids = std::move(ids);
        return;
    }
    if (!prompt.is_object()) {
        refuse("\"prompt\" is neither a list of ids nor {{\"shared\", \"tokens\"}}");
    }
    known_fields(prompt, {"shared", "tokens"});
    const auto shared = prompt.find("shared");
    int32_t parent = -1, shared_tokens = 0;
    if (shared != prompt.end()) {
        if (!shared->is_array() || shared->size() != 2) {
            refuse("\"shared\" is {}, not [name, tokens]", shown(*shared));
        }
        const std::string name = name_of((*shared)[0], "shared");
        shared_tokens = tokens((*shared)[1], "shared", 0);
        const auto known = texts_.find(name);
        parent = known != texts_.end() ? known->second : add_text(load_, name, -1, 0);
        texts_.emplace(name, parent);
    }
    const int64_t all = int64_t{shared_tokens} + tokens(field(prompt, "tokens"), "tokens", 0);
    if (all < 1 || all > kMostTokens) refuse("a prompt of {} tokens", all);
    session.prompt = static_cast<int32_t>(all);
    session.text = add_text(load_, session.id, parent, shared_tokens);
}

void TraceReader::read_start(const Json& event, std::string id, int64_t round) {
    known_fields(event, {"t", "id", "event", "prompt", "output"});
    const auto number = static_cast<int32_t>(load_.sessions.size());
    if (!sessions_.emplace(id, number).second) refuse("session {} has started already", shown(id));
    if (texts_.contains(id)) refuse("session {} starts behind a line that shares it", shown(id));
    LoadSession session = {.id = id, .line = line_};
    read_prompt(field(event, "prompt"), session);
    if (event.contains("output")) session.output = tokens(event["output"], "output", 1);
    texts_.insert_or_assign(std::move(id), session.text);
    load_.events.push_back({.round = round, .kind = EventKind::start, .session = number});
    load_.sessions.push_back(std::move(session));
    ended_.push_back(false);
}

void TraceReader::read_line(const std::string& line) {
    const Json event = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!event.is_object()) refuse("not a JSON object");
    const int64_t round = round_of(field(event, "t"));
    std::string id = name_of(field(event, "id"), "id");
    const Json& kind = field(event, "event");
    if (kind == "start") return read_start(event, std::move(id), round);
    if (kind != "finish" && kind != "cancel") {
        refuse("\"event\" is {}, not \"start\", \"finish\" or \"cancel\"", shown(kind));
    }
    known_fields(event, {"t", "id", "event"});
    const auto known = sessions_.find(id);
    if (known == sessions_.end()) refuse("session {} has not started", shown(id));
    if (ended_[static_cast<size_t>(known->second)]) {
        refuse("session {} has ended already", shown(id));
    }
    ended_[static_cast<size_t>(known->second)] = true;
    load_.events.push_back({.round = round,
                            .kind = kind == "finish" ? EventKind::finish : EventKind::cancel,
                            .session = known->second});
}

Load TraceReader::read() {
    std::ifstream file(path_);
    if (!file) KD_THROW(not_found, "cannot read {}", path_);
    for (std::string line; std::getline(file, line);) {
        ++line_;
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        read_line(line);
    }
    if (file.bad()) KD_THROW(io, "cannot read {}", path_);
    if (load_.sessions.empty()) KD_THROW(corrupt, "{}: no session starts", path_);
    return std::move(load_);
}

}  // namespace

Load read_trace(const std::string& path, double rounds_per_t) {
    return TraceReader(path, rounds_per_t).read();
}

void write_trace(const Load& load, const std::string& path) {
    std::ofstream file(path);
    for (const LoadEvent& event : load.events) {
        const LoadSession& session = load.sessions[static_cast<size_t>(event.session)];
        nlohmann::ordered_json line = {{"t", event.round}, {"id", session.id}};
        if (event.kind != EventKind::start) {
            line["event"] = event.kind == EventKind::finish ? "finish" : "cancel";
            file << line.dump() << "\n";
            continue;
        }
        line["event"] = "start";
        const Text& text = load.texts[static_cast<size_t>(session.text)];
        if (!text.ids.empty()) {
            line["prompt"] = text.ids;
        } else {
            if (text.parent >= 0) {
                line["prompt"]["shared"] = {load.text_names[static_cast<size_t>(text.parent)],
                                            text.shared};
            }
            line["prompt"]["tokens"] = session.prompt - text.shared;
        }
        if (session.output > 0) line["output"] = session.output;
        file << line.dump() << "\n";
    }
    if (!file.flush()) KD_THROW(io, "cannot write {}", path);
}

}  // namespace kd
