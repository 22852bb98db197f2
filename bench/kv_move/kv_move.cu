// Times kdt_kv_move, the commit of accepted rows in all layers, through include/kdtree/kernels.h;
// see --help.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "kdtree/kernels.h"

namespace {

constexpr const char* kHelp =
    "kv_move: microseconds and GB/s of kdt_kv_move, rows of many buffers moved in one launch\n"
    "\n"
    "    kv_move [--json FILE] [--replays N]\n"
    "\n"
    "  --json FILE   writes the table as JSON: {schema, commit, device, rows: [{op, buffers,\n"
    "                moves, row_bytes, launches, us, us_min, gb_s}]}\n"
    "  --replays N   replays of each graph, of which the median is taken (default 40)\n"
    "  --help        this text\n"
    "\n"
    "61 and 122 buffers (61 layers, with a latent row or with K and V), 1 to 1024 moves, rows of\n"
    "1152 and 1024 bytes in shuffled slots. A graph holds a chain of launches, each with slots of\n"
    "its own, in all at least four times the L2 cache (or 1024 launches), so a launch finds none "
    "of\n"
    "its rows in the cache. us is the graph's time by the launches, gap included; GB/s counts the\n"
    "bytes read and the bytes written.\n";

struct Options {
    std::string json;
    int32_t replays = 40;
    bool help = false;
};

struct Row {
    int32_t buffers;
    int32_t moves;
    int32_t row_bytes;
    int32_t launches = 0;
    double us = 0;
    double us_min = 0;

    double bytes() const { return 2.0 * buffers * moves * row_bytes; }
    double gb_s() const { return bytes() / us * 1e-3; }
};

void check(cudaError_t status, const char* what) {
    if (status == cudaSuccess) return;
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

void check(kdt_status status, const char* what) {
    if (status == KDT_OK) return;
    throw std::runtime_error(std::string(what) + ": " + kdt_last_error());
}

/// Device memory.
class Memory {
  public:
    explicit Memory(size_t bytes) { check(cudaMalloc(&data_, bytes), "cudaMalloc"); }
    ~Memory() { cudaFree(data_); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    template <class T>
    T* as() const {
        return static_cast<T*>(data_);
    }
    template <class T>
    void write(const std::vector<T>& values) const {
        check(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
              "cudaMemcpy");
    }

  private:
    void* data_ = nullptr;
};

/// Microseconds of each of `replays` replays of the graph that `stream` has captured.
std::vector<double> replay(cudaGraphExec_t exec, cudaStream_t stream, int32_t replays) {
    std::vector<double> times;
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    check(cudaEventCreate(&begin), "event");
    check(cudaEventCreate(&end), "event");
    for (int32_t i = -3; i < replays; ++i) {  // three to warm up
        check(cudaEventRecord(begin, stream), "event");
        check(cudaGraphLaunch(exec, stream), "graph");
        check(cudaEventRecord(end, stream), "event");
        check(cudaStreamSynchronize(stream), "waiting for the graph");
        float ms = 0;
        check(cudaEventElapsedTime(&ms, begin, end), "event");
        if (i >= 0) times.push_back(ms * 1e3);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    std::sort(times.begin(), times.end());
    return times;
}

void measure(Row& row, int32_t l2_bytes, int32_t replays, cudaStream_t stream) {
    row.launches = static_cast<int32_t>(std::clamp(4.0 * l2_bytes / row.bytes(), 4.0, 1024.0));
    const int32_t slots = 2 * row.launches * row.moves;
    const int64_t buffer_bytes = int64_t{slots} * row.row_bytes;
    const Memory pool(static_cast<size_t>(row.buffers * buffer_bytes));
    check(cudaMemset(pool.as<void>(), 1, static_cast<size_t>(row.buffers * buffer_bytes)),
          "cudaMemset");
    std::vector<void*> bases;
    for (int32_t b = 0; b < row.buffers; ++b) bases.push_back(pool.as<char>() + b * buffer_bytes);
    const Memory buffers(bases.size() * sizeof(void*));
    buffers.write(bases);
    // Launch i moves the slots at [2 i moves, (2 i + 1) moves) of this list to those behind them.
    std::vector<int32_t> order(static_cast<size_t>(slots));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(7));
    const Memory lists(order.size() * sizeof(int32_t));
    lists.write(order);

    kdt_kv_move_params params = {};
    params.struct_bytes = sizeof params;
    params.buffers = row.buffers;
    params.max_moves = row.moves;
    params.row_bytes = row.row_bytes;
    params.slot_stride_bytes = row.row_bytes;
    params.buffer = buffers.as<void*>();
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int32_t i = 0; i < row.launches; ++i) {
        params.from = lists.as<int32_t>() + int64_t{2} * i * row.moves;
        params.to = params.from + row.moves;
        check(kdt_kv_move(&params, stream), "kdt_kv_move");
    }
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    check(cudaStreamEndCapture(stream, &graph), "end of capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "graph instantiation");
    const std::vector<double> times = replay(exec, stream, replays);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    row.us = times[times.size() / 2] / row.launches;
    row.us_min = times.front() / row.launches;
}

/// "0.1.0 (commit)" -> "commit".
std::string commit_of(const std::string& version) {
    const size_t open = version.find('(');
    const size_t close = version.rfind(')');
    if (open == std::string::npos || close == std::string::npos) return version;
    return version.substr(open + 1, close - open - 1);
}

void write_json(const std::string& path, const char* device, const std::vector<Row>& rows) {
    FILE* file = fopen(path.c_str(), "w");
    if (file == nullptr) throw std::runtime_error("cannot write " + path);
    fprintf(file, "{\"schema\": 1, \"commit\": \"%s\", \"device\": \"%s\", \"rows\": [",
            commit_of(kdt_kernels_version()).c_str(), device);
    for (size_t i = 0; i < rows.size(); ++i) {
        const Row& row = rows[i];
        fprintf(file,
                "%s\n  {\"op\": \"kv_move\", \"buffers\": %d, \"moves\": %d, \"row_bytes\": %d, "
                "\"launches\": %d, \"us\": %.3f, \"us_min\": %.3f, \"gb_s\": %.1f}",
                i == 0 ? "" : ",", row.buffers, row.moves, row.row_bytes, row.launches, row.us,
                row.us_min, row.gb_s());
    }
    fprintf(file, "\n]}\n");
    if (fclose(file) != 0) throw std::runtime_error("cannot write " + path);
}

Options parse(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; ++i) {
        const std::string name = argv[i];
        if (name == "--help") {
            options.help = true;
            continue;
        }
        if (name != "--json" && name != "--replays") {
            throw std::runtime_error("unknown argument " + name + "; --help lists them");
        }
        if (i + 1 == argc) throw std::runtime_error(name + " needs a value");
        const std::string value = argv[++i];
        if (name == "--json") {
            options.json = value;
        } else {
            options.replays = std::atoi(value.c_str());
            if (options.replays < 1) throw std::runtime_error("--replays " + value);
        }
    }
    return options;
}

void run(const Options& options) {
    cudaDeviceProp device = {};
    int32_t current = 0;
    check(cudaGetDevice(&current), "device");
    check(cudaGetDeviceProperties(&device, current), "device");
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    printf("%s, %s\n%8s%8s%11s%10s%10s%10s%10s\n", device.name, kdt_kernels_version(), "buffers",
           "moves", "row bytes", "launches", "us", "us min", "GB/s");
    std::vector<Row> rows;
    for (const int32_t buffers : {61, 122}) {
        for (const int32_t row_bytes : {1152, 1024}) {
            for (const int32_t moves : {1, 4, 16, 64, 1024}) {
                Row row{.buffers = buffers, .moves = moves, .row_bytes = row_bytes};
                measure(row, device.l2CacheSize, options.replays, stream);
                printf("%8d%8d%11d%10d%10.2f%10.2f%10.0f\n", buffers, moves, row_bytes,
                       row.launches, row.us, row.us_min, row.gb_s());
                rows.push_back(row);
            }
        }
    }
    cudaStreamDestroy(stream);
    if (!options.json.empty()) write_json(options.json, device.name, rows);
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const Options options = parse(argc, argv);
        if (options.help) {
            printf("%s", kHelp);
            return 0;
        }
        run(options);
        return 0;
    } catch (const std::exception& error) {
        fprintf(stderr, "error: %s\n", error.what());
    }
    return 1;
}
