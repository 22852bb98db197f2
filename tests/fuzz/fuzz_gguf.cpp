// Arbitrary bytes as a model file: the parser and its look-ups, the model's shape, the tokenizer. A
// file may be refused with kd::Error, in one line; nothing else may happen, and nothing may be
// allocated that the file's size does not justify (the memory limits that tools/fuzz.sh sets: an
// allocation beyond them is a finding). Where "GGUF" stands a second time, the bytes are also two
// parts of a model.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <span>

#include "base/check.h"
#include "base/error.h"
#include "formats/gguf.h"
#include "formats/model_config.h"
#include "formats/model_file.h"
#include "formats/tokenizer.h"
#include "fuzz/memory_file.h"

namespace kd {
namespace {

/// Calls it; a refusal has to be one line.
template <class Call>
void expect_refusal_or_none(const Call& call) {
    try {
        call();
    } catch (const Error& error) {
        const std::string_view message = error.what();
        KD_CHECK(!message.empty() && message.find('\n') == message.npos, "message: {}", message);
    }
}

void look_up_all(const GgufFile& gguf) {
    constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
    constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
    const auto keys = gguf.metadata();
    for (const auto& [key, value] : keys) {
        expect_refusal_or_none([&] { gguf.integer(key, kMin, kMax); });
        expect_refusal_or_none([&] { gguf.integer_or(key, 0, 0, 10); });
        expect_refusal_or_none([&] { gguf.number_or(key, 0, -1, 1); });
        expect_refusal_or_none([&] { gguf.boolean_or(key, false); });
        expect_refusal_or_none([&] { gguf.string_or(key, ""); });
        expect_refusal_or_none([&] { gguf.strings(key); });
        expect_refusal_or_none([&] { gguf.integers(key); });
        expect_refusal_or_none([&] { gguf.floats(key); });
    }
    for (const FileTensor& tensor : gguf.tensors()) {
        const MappedFile& file = *gguf.files()[static_cast<size_t>(tensor.part)];
        KD_CHECK(tensor.data == file.data() + tensor.file_offset, "data elsewhere");
        KD_CHECK(
            tensor.data >= file.data() && tensor.bytes <= file.data() + file.bytes() - tensor.data,
            "{} bytes outside the file", tensor.bytes);
        KD_CHECK(tensor.bytes == bytes_of(tensor.type, tensor.rows() * tensor.columns()),
                 "{} bytes for [{}, {}]", tensor.bytes, tensor.rows(), tensor.columns());
        KD_CHECK(gguf.find_tensor(tensor.name) == &tensor, "another tensor of that name");
        expect_refusal_or_none([&] { check_finite(tensor, gguf.path_of(tensor)); });
    }
}

/// Two files in memory under the names of parts.
class PartFiles {
  public:
    PartFiles() {
        std::string folder = "/tmp/kdtree-fuzz-XXXXXX";
        KD_CHECK(mkdtemp(folder.data()) != nullptr, "no folder");
        folder_ = folder;
        std::filesystem::create_symlink(first_.path(), path(1));
        std::filesystem::create_symlink(second_.path(), path(2));
    }
    ~PartFiles() { std::filesystem::remove_all(folder_); }

    std::string path(int part) const {
        return fmt::format("{}/m-{:05}-of-00002.gguf", folder_.string(), part);
    }
    void set(std::span<const uint8_t> first, std::span<const uint8_t> second) {
        first_.set(first);
        second_.set(second);
    }

  private:
    MemoryFile first_;
    MemoryFile second_;
    std::filesystem::path folder_;
};

void read_parts(std::span<const uint8_t> bytes) {
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const size_t cut = text.rfind("GGUF");
    if (cut == 0 || cut == text.npos) return;
    static PartFiles files;
    files.set(bytes.first(cut), bytes.subspan(cut));
    for (const int given : {1, 2}) {
        expect_refusal_or_none([&] {
            const GgufFile gguf(files.path(given), ForeignTensors::list);
            look_up_all(gguf);
        });
    }
}

void use_tokenizer(const GgufFile& gguf) {
    const Tokenizer tokenizer(gguf);
    tokenizer.encode("abab [x]<|im_end|> \xff 12", true);
    std::vector<int32_t> ids(static_cast<size_t>(std::min(tokenizer.vocabulary(), 64)));
    std::iota(ids.begin(), ids.end(), 0);
    tokenizer.decode(ids, true);
    for (const int32_t id : tokenizer.stop_ids()) tokenizer.bytes_of_token(id);
    tokenizer.token_text(tokenizer.bos());
}

void probe(const ModelFile& model_file) {
    std::vector<std::string> faults;
    const ModelConfig probed = probe_model_config(model_file, faults);
    for (const std::string& fault : faults) {
        KD_CHECK(!fault.empty() && fault.find('\n') == fault.npos, "fault: {}", fault);
    }
    try {
        read_model_config(model_file);
    } catch (const Error& error) {
        KD_CHECK(!faults.empty(), "the probe found nothing, reading said: {}", error.what());
        return;
    }
    KD_CHECK(faults.empty(), "only the probe found: {}", faults[0]);
    KD_CHECK(probed.vocabulary > 0, "{} tokens", probed.vocabulary);
}

}  // namespace
}  // namespace kd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
    using namespace kd;
    static MemoryFile file;
    file.set({data, bytes});
    read_parts({data, bytes});
    expect_refusal_or_none([] {
        const ModelFile model_file(file.path(), ForeignTensors::list);
        look_up_all(*model_file.gguf());
        probe(model_file);
    });
    expect_refusal_or_none([] {
        const ModelFile model_file(file.path());
        use_tokenizer(*model_file.gguf());
    });
    return 0;
}
