// GGUF files that lie: each is refused by name, none crashes, hangs or makes the reader allocate
// more than its own size justifies.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "base/error.h"
#include "base/rng.h"
#include "expect_refusal.h"
#include "formats/gguf.h"
#include "formats/model_config.h"
#include "formats/model_file.h"
#include "support/gguf_writer.h"
#include "support/tiny_model.h"

namespace {
std::atomic<size_t> allocated_bytes = 0;  // by operator new, since the start
}

// Counting replacements: malloc below them, so sanitizers still see every block. Not inlined: GCC
// would take the pair for a mismatch of new and free.
[[gnu::noinline]] void* operator new(size_t bytes) {
    allocated_bytes += bytes;
    void* block = std::malloc(bytes == 0 ? 1 : bytes);
    if (block == nullptr) throw std::bad_alloc();
    return block;
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
    allocated_bytes += bytes;
    return std::malloc(bytes == 0 ? 1 : bytes);
}
[[gnu::noinline]] void operator delete(void* block) noexcept {
    std::free(block);
}
[[gnu::noinline]] void operator delete(void* block, size_t) noexcept {
    std::free(block);
}

namespace kd {
namespace {

enum class Outcome { loaded, refused };

/// Loads the file and, if that works, reads all of it that a model load would.
Outcome load(const std::string& path) {
    try {
        const ModelFile file(path);
        for (const FileTensor& tensor : file.tensors()) {
            EXPECT_EQ(tensor.bytes, bytes_of(tensor.type, tensor.rows() * tensor.columns()));
            check_finite(tensor, path);
        }
        read_model_config(file);
    } catch (const Error& error) {
        const std::string_view message = error.what();
        EXPECT_EQ(message.find('\n'), std::string_view::npos) << message;
        EXPECT_TRUE(message.starts_with(path)) << message;
        return Outcome::refused;
    }
    return Outcome::loaded;
}

/// The same, and checks what it allocated in total against the file's size. The factor: a minimal
/// metadata entry has 14 bytes and costs a tree node of about 130 and two short strings.
Outcome load_metered(const std::string& path, size_t file_bytes) {
    const size_t before = allocated_bytes;
    const Outcome outcome = load(path);
    EXPECT_LE(allocated_bytes - before, 64 * file_bytes + 16384);
    return outcome;
}

/// Writes over the start of an existing file; without truncation, which is slow on some disks.
void overwrite(const std::string& path, std::string_view bytes) {
    std::FILE* file = std::fopen(path.c_str(), "r+b");
    ASSERT_NE(file, nullptr);
    EXPECT_EQ(std::fwrite(bytes.data(), 1, bytes.size(), file), bytes.size());
    EXPECT_EQ(std::fclose(file), 0);
}

/// A small model file: every kind of metadata that models have, quantised and float tensors.
GgufWriter small_file() {
    GgufWriter writer;
    writer.set_string("general.architecture", "llama");
    writer.set("general.alignment", 32u);
    writer.set("llama.block_count", 1u);
    writer.set("llama.context_length", 64u);
    writer.set("llama.embedding_length", 32u);
    writer.set("llama.feed_forward_length", 32u);
    writer.set("llama.attention.head_count", 2u);
    writer.set("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    writer.set("flag", true);
    writer.set_array<bool>("flags", {true, false});
    writer.set_array<int32_t>("tokenizer.ggml.token_type", {1, 3});
    writer.set_strings("tokenizer.ggml.tokens", {"a", "<s>"});
    const std::vector<float> weights(64, 0.5f);
    writer.add_tensor("token_embd.weight", DType::q8_0, 2, 32, weights);
    writer.add_tensor("norm", DType::f32, 0, 32, std::span(weights).first(32));
    writer.add_tensor("blk.0.w", DType::q4_1, 1, 32, std::span(weights).first(32));
    return writer;
}

void expect_refused(const std::string& path, ErrorCode code,
                    const std::vector<std::string>& parts) {
    expect_refusal([&] { const GgufFile file(path); }, path, code, parts);
}

void expect_corrupt(const GgufWriter& writer, const std::vector<std::string>& parts,
                    ErrorCode code = ErrorCode::corrupt) {
    const TempPath file;
    writer.write(file.path());
    expect_refused(file.path(), code, parts);
}

void expect_tensor_corrupt(GgufWriter::Tensor tensor, const std::vector<std::string>& parts,
                           ErrorCode code = ErrorCode::corrupt) {
    GgufWriter writer;
    writer.add_tensor(std::move(tensor));
    expect_corrupt(writer, parts, code);
}

TEST(HostileGguf, TheSmallFileItselfLoads) {
    const TempPath file;
    small_file().write(file.path());
    EXPECT_EQ(load_metered(file.path(), small_file().bytes().size()), Outcome::loaded);
}

TEST(HostileGguf, EveryTruncationIsRefused) {
    const TempPath file;
    const std::string bytes = small_file().bytes();
    write_test_file(file.path(), bytes);
    for (size_t length = bytes.size(); length-- > 0;) {
        ASSERT_EQ(::truncate(file.path().c_str(), static_cast<off_t>(length)), 0);
        ASSERT_EQ(load_metered(file.path(), length), Outcome::refused) << length << " bytes";
    }
}

TEST(HostileGguf, EveryBitFlipAndByteIsSurvived) {
    const TempPath file;
    const std::string bytes = small_file().bytes();
    const size_t header_bytes = small_file().header_bytes();
    write_test_file(file.path(), bytes);
    size_t refused = 0;
    size_t tried = 0;
    for (size_t place = 0; place < header_bytes; ++place) {
        for (const int change : {1, 2, 4, 8, 16, 32, 64, 128, 0xff}) {
            std::string changed = bytes;
            changed[place] = static_cast<char>(changed[place] ^ change);
            overwrite(file.path(), changed);
            refused += load_metered(file.path(), bytes.size()) == Outcome::refused ? 1 : 0;
            ++tried;
        }
    }
    EXPECT_GT(refused, tried / 2);
}

TEST(HostileGguf, RandomMutationsAreSurvived) {
    constexpr uint64_t kSeed = 20261129;
    RecordProperty("seed", std::to_string(kSeed));
    const TempPath file;
    const std::string bytes = small_file().bytes();
    const size_t header_bytes = small_file().header_bytes();
    write_test_file(file.path(), bytes);
    const std::string extremes[] = {
        raw_bytes(~uint64_t{0}),         raw_bytes(uint64_t{1} << 63), raw_bytes(uint64_t{1} << 32),
        raw_bytes(uint64_t{1} << 60),    raw_bytes(uint64_t{0}),       raw_bytes(~uint32_t{0}),
        raw_bytes(uint32_t{0x7fffffff}), raw_bytes(uint32_t{9}),       raw_bytes(uint16_t{0x7c00})};
    for (uint64_t round = 0; round < 4000; ++round) {
        uint32_t index = 0;
        const auto draw = [&](size_t below) {
            return static_cast<size_t>(uniform(kSeed, RngStream::test, round, index++) *
                                       static_cast<double>(below));
        };
        std::string changed = bytes;
        for (size_t changes = 1 + draw(4); changes > 0; --changes) {
            const std::string& extreme = extremes[draw(std::size(extremes))];
            changed.replace(draw(header_bytes), extreme.size(), extreme);
        }
        overwrite(file.path(), changed);
        load_metered(file.path(), changed.size());
    }
}

TEST(HostileGguf, NotAModelFile) {
    const TempPath file;
    write_test_file(file.path(), "");
    expect_refused(file.path(), ErrorCode::corrupt, {"is empty"});
    write_test_file(file.path(), "GG");
    expect_refused(file.path(), ErrorCode::corrupt, {"magic", "ends after 2"});
    write_test_file(file.path(),
                    "\x7f"
                    "ELF and so on, more than a header has");
    expect_refused(file.path(), ErrorCode::corrupt, {"magic", "\\x7fELF"});
    expect_refused(file.path() + ".absent", ErrorCode::not_found, {"no such file"});
    expect_refused(file.path() + "/below", ErrorCode::not_found, {"no such file"});
    expect_refused(testing::TempDir(), ErrorCode::invalid_argument, {"directory"});
    expect_refused("/dev/null", ErrorCode::invalid_argument, {"not a regular file"});
}

TEST(HostileGguf, FifoDoesNotHang) {
    const TempPath fifo(".fifo");
    ASSERT_EQ(::mkfifo(fifo.path().c_str(), 0600), 0);
    expect_refused(fifo.path(), ErrorCode::invalid_argument, {"not a regular file"});
}

TEST(HostileGguf, UnreadableFile) {
    if (::geteuid() == 0) GTEST_SKIP() << "root reads everything";
    const TempPath file;
    small_file().write(file.path());
    ASSERT_EQ(::chmod(file.path().c_str(), 0), 0);
    expect_refused(file.path(), ErrorCode::io, {"cannot be opened"});
}

TEST(HostileGguf, Versions) {
    for (const uint32_t version : {0u, 1u, 4u, 0x7fffffffu}) {
        GgufWriter writer = small_file();
        writer.version = version;
        expect_corrupt(writer, {"version", fmt::format("{}", version)}, ErrorCode::unsupported);
    }
    GgufWriter big_endian = small_file();
    big_endian.version = 0x03000000;
    expect_corrupt(big_endian, {"version", "big-endian"}, ErrorCode::unsupported);
}

TEST(HostileGguf, Counts) {
    for (const uint64_t count : {uint64_t{1} << 63, ~uint64_t{0}, uint64_t{1} << 32}) {
        GgufWriter writer = small_file();
        writer.metadata_count = count;
        expect_corrupt(writer, {"metadata count", fmt::format("{}", count)});
        writer = small_file();
        writer.tensor_count = count;
        expect_corrupt(writer, {"tensor count", fmt::format("{}", count)});
    }
    GgufWriter writer = small_file();
    writer.tensor_count = 5;
    expect_corrupt(writer, {"tensor 3"});
    // A count that the file could hold reads tensor entries as metadata: refused somewhere.
    writer = small_file();
    writer.metadata_count = 13;
    expect_corrupt(writer, {});
}

TEST(HostileGguf, Keys) {
    GgufWriter twice = small_file();
    twice.set("flag", false);
    expect_corrupt(twice, {"'flag'", "twice"});
    GgufWriter empty;
    empty.set("", 1u);
    expect_corrupt(empty, {"key of metadata 0", "0 bytes"});
    GgufWriter huge;
    huge.set(std::string(65536, 'k'), 1u);
    expect_corrupt(huge, {"key of metadata 0", "65536 bytes"});
    GgufWriter ugly;
    ugly.set("two\nlines \xff'", 1u);
    ugly.set("two\nlines \xff'", 2u);
    expect_corrupt(ugly, {"two\\x0alines \\xff", "twice"});
    GgufWriter wordy;
    wordy.set_raw(std::string(5000, 'k'), 99, "");
    expect_corrupt(wordy, {"kkk...", "99"});
}

TEST(HostileGguf, MetadataValues) {
    GgufWriter type;
    type.set_raw("k", 13, "xxxxxxxx");
    expect_corrupt(type, {"'k'", "value type 13"});
    GgufWriter flag;
    flag.set_raw("k", 7, "\x02");
    expect_corrupt(flag, {"'k'", "bool byte 2"});
    GgufWriter flags;
    flags.set_raw_array("k", 7, 3, std::string("\0\x01\xff", 3));
    expect_corrupt(flags, {"'k'", "bool byte 255"});
    GgufWriter nested;
    nested.set_raw_array("k", 9, 1, raw_bytes(4u) + raw_bytes(uint64_t{1}) + raw_bytes(7u));
    expect_corrupt(nested, {"'k'", "arrays of arrays"}, ErrorCode::unsupported);
    GgufWriter element;
    element.set_raw_array("k", 77, 1, "xxxxxxxx");
    expect_corrupt(element, {"'k'", "element type 77"});
    for (const uint64_t count : {uint64_t{1} << 63, ~uint64_t{0}, uint64_t{1} << 61, uint64_t{9}}) {
        for (const uint32_t code : {0u, 4u, 8u, 12u}) {
            GgufWriter array;
            array.set_raw_array("k", code, count, "12345678");
            expect_corrupt(array, {"'k'", fmt::format("{}", count)});
        }
    }
}

TEST(HostileGguf, Strings) {
    for (const uint64_t length : {uint64_t{1} << 63, ~uint64_t{0}, uint64_t{100}}) {
        GgufWriter value;
        value.set_raw("k", 8, raw_bytes(length) + "abc");
        expect_corrupt(value, {"'k'", fmt::format("{} bytes", length), "ends after 3"});
        GgufWriter inner;
        inner.set_raw_array("k", 8, 2, raw_string("fine") + raw_bytes(length));
        expect_corrupt(inner, {"'k'", fmt::format("{} bytes", length), "ends after 0"});
        const TempPath file;
        write_test_file(file.path(), "GGUF" + raw_bytes(3u) + raw_bytes(uint64_t{0}) +
                                         raw_bytes(uint64_t{1}) + raw_bytes(length) + "kkkkkkkk");
        expect_refused(file.path(), ErrorCode::corrupt,
                       {"key of metadata 0", fmt::format("{} bytes", length)});
    }
}

TEST(HostileGguf, Alignment) {
    for (const uint32_t alignment : {0u, 1u, 4u, 24u, 131072u, 0xffffffffu}) {
        GgufWriter writer;
        writer.set("general.alignment", alignment);
        expect_corrupt(writer, {"'general.alignment'", fmt::format("{}", alignment)});
    }
    GgufWriter kind;
    kind.set_string("general.alignment", "32");
    expect_corrupt(kind, {"'general.alignment'", "'32'", "integer"});
}

TEST(HostileGguf, TensorNames) {
    GgufWriter twice = small_file();
    twice.add_tensor("norm", DType::f32, 0, 32, std::vector<float>(32));
    expect_corrupt(twice, {"tensor 'norm'", "twice"});
    expect_tensor_corrupt({"", {32}, 0, std::string(128, '\0'), {}}, {"tensor 0", "empty"});
}

TEST(HostileGguf, TensorTypesAreRefusedByName) {
    const std::pair<uint32_t, std::string> types[] = {
        {9, "Q8_1"},   {10, "Q2_K"},    {11, "Q3_K"},
        {15, "Q8_K"},  {16, "IQ2_XXS"}, {23, "IQ4_XS"},
        {26, "I32"},   {27, "I64"},     {28, "F64"},
        {29, "IQ1_M"}, {4, "Q4_2"},     {31, "Q4_0_4_4"},
        {35, "TQ2_0"}, {39, "MXFP4"},   {40, "NVFP4"},
        {41, "Q1_0"},  {42, "type 42"}, {0xffffffffu, "type 4294967295"}};
    for (const auto& [code, name] : types) {
        expect_tensor_corrupt({"w", {256}, code, std::string(1024, '\0'), {}},
                              {"tensor 'w'", name + " is not supported"}, ErrorCode::unsupported);
    }
}

TEST(HostileGguf, Dimensions) {
    const std::string data(4096, '\0');
    expect_tensor_corrupt({"w", {}, 0, data, {}}, {"'w'", "0 dimensions"});
    expect_tensor_corrupt({"w", {2, 2, 2, 2, 2}, 0, data, {}}, {"'w'", "5 dimensions"});
    expect_tensor_corrupt({"w", {0}, 0, data, {}}, {"'w'", "dimension 0 is 0"});
    expect_tensor_corrupt({"w", {32, 0}, 0, data, {}}, {"'w'", "dimension 1 is 0"});
    expect_tensor_corrupt({"w", {uint64_t{1} << 63}, 0, data, {}}, {"'w'", "9223372036854775808"});
    expect_tensor_corrupt({"w", {~uint64_t{0}, 2}, 0, data, {}}, {"'w'", "18446744073709551615"});
    expect_tensor_corrupt({"w", {1u << 31, 1u << 31, 4}, 0, data, {}}, {"'w'", "dimension 2"});
    // 2^62 * 4 wraps to 0 in 64 bits: the elements fit, the bytes do not.
    expect_tensor_corrupt({"w", {uint64_t{1} << 62}, 0, data, {}}, {"'w'", "too many bytes"});
    expect_tensor_corrupt({"w", {uint64_t{1} << 40}, 0, data, {}}, {"'w'", "exceed the file's"});
    expect_tensor_corrupt({"w", {48, 2}, 3, data, {}}, {"'w'", "48 columns", "Q4_1"});
    expect_tensor_corrupt({"w", {16, 2}, 8, data, {}}, {"'w'", "16 columns", "Q8_0"});
    expect_tensor_corrupt({"w", {288, 8}, 12, data, {}}, {"'w'", "288 columns", "Q4_K", "256"});
    expect_tensor_corrupt({"w", {128, 2}, 14, data, {}}, {"'w'", "128 columns", "Q6_K", "256"});
    expect_tensor_corrupt({"w", {256, 29}, 12, data, {}}, {"'w'", "4176 bytes"});
    expect_tensor_corrupt({"w", {512, 10}, 14, data, {}}, {"'w'", "4200 bytes"});
}

TEST(HostileGguf, TensorPlaces) {
    const std::string data(128, '\0');
    expect_tensor_corrupt({"w", {32}, 0, data, 1}, {"'w'", "offset 1", "alignment 32"});
    expect_tensor_corrupt({"w", {32}, 0, data, 32}, {"'w'", "128 bytes", "offset 32"});
    expect_tensor_corrupt({"w", {33}, 0, data, {}}, {"'w'", "132 bytes", "exceed the file's"});
    for (const uint64_t offset : {uint64_t{1} << 63, ~uint64_t{31}, (uint64_t{1} << 63) - 32}) {
        expect_tensor_corrupt({"w", {32}, 0, data, offset}, {"'w'", fmt::format("{}", offset)});
    }
    GgufWriter overlapping;
    overlapping.add_tensor({"a", {32}, 0, data, 96});
    overlapping.add_tensor({"b", {32}, 0, data, 0});
    expect_corrupt(overlapping, {"'a'", "overlaps", "'b'"});
    GgufWriter same;
    same.add_tensor({"a", {32}, 0, data, 0});
    same.add_tensor({"b", {8}, 0, data, 0});
    expect_corrupt(same, {"'a'", "overlaps", "'b'"});
}

}  // namespace
}  // namespace kd
