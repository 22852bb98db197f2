#include "attn_verify/report.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <utility>

namespace kd::bench {

namespace {

__attribute__((format(printf, 1, 2))) std::string text(const char* format, ...) {
    char buffer[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(buffer, sizeof(buffer), format, arguments);
    va_end(arguments);
    return buffer;
}

std::string quoted(const std::string& plain) {
    std::string out = "\"";
    for (const char c : plain) {
        if (c == '"' || c == '\\') out += '\\';
        if (static_cast<unsigned char>(c) >= ' ') out += c;
    }
    return out + "\"";
}

/// JSON has no NaN.
std::string number(double value, int digits) {
    return std::isfinite(value) ? text("%.*g", digits, value) : "null";
}

/// "0.1.0 (commit)" -> "commit".
std::string commit_of(const std::string& version) {
    const size_t open = version.find('(');
    const size_t close = version.rfind(')');
    if (open == std::string::npos || close == std::string::npos) return version;
    return version.substr(open + 1, close - open - 1);
}

double tb_s(const Case& c, const Result& r) {
    return c.min_bytes() / r.us * 1e-6;
}
double tflop_s(const Case& c, const Result& r) {
    return c.flops() / r.us * 1e-6;
}

}  // namespace

double rel_l2_limit(kdt_kv_format format) {
    return format == KDT_KV_BF16 ? 3e-3 : 1e-2;
}

Report::Report(const Options& options, Ceilings ceilings)
    : options_(options), ceilings_(std::move(ceilings)) {
    int device = 0;
    cudaDeviceProp properties{};
    check(cudaGetDevice(&device), "device");
    check(cudaGetDeviceProperties(&properties, device), "device properties");
    device_ = properties.name;
    arch_ = text("sm_%d%da", properties.major, properties.minor);
    commit_ = commit_of(kdt_kernels_version());
    printf("%s (%s, %d multiprocessors, %.0f MiB L2), library %s\n", device_.c_str(), arch_.c_str(),
           properties.multiProcessorCount, properties.l2CacheSize / 1048576.0,
           kdt_kernels_version());
    printf(
        "ceilings: read %.2f TB/s, bf16 %.0f TFLOP/s (mma.sync %.0f%s), launch gap %.2f us "
        "(programmatic %.2f)\n\n",
        ceilings_.read_tb_s, ceilings_.bf16_tflop_s(), ceilings_.mma_sync_tflop_s,
        ceilings_.wgmma_tflop_s ? text(", wgmma %.0f", *ceilings_.wgmma_tflop_s).c_str() : "",
        ceilings_.launch_gap_us, ceilings_.launch_gap_pdl_us);
    printf("%-4s%10s%4s%8s %-11s%3s%9s%9s%7s%7s%8s%8s%8s%8s%9s\n", "op", "heads x T", "B",
           "context", "kv", "pg", "us", "min", "iqr", "TB/s", "TFLOP/s", "floor", "x floor",
           "splits", "rel L2");
    fflush(stdout);
}

double Report::floor_us(const Case& c) const {
    return std::max(c.min_bytes() / ceilings_.read_tb_s * 1e-6,
                    c.flops() / ceilings_.bf16_tflop_s() * 1e-6);
}

void Report::add(const Case& c, const Result& r) {
    const bool right = !r.rel_l2 || *r.rel_l2 <= rel_l2_limit(c.kv_format);  // NaN is wrong
    good_ = good_ && right;
    printf("%-4s%10s%4d%8d %-11s%3d%9.2f%9.2f%7.2f%7.2f%8.1f%8.2f%8.2f%8.1f%9s%s\n",
           c.kind == KDT_ATTN_MLA ? "mla" : "gqa", shape_name(c).c_str(), c.batch, c.context,
           format_name(c.kv_format), c.page_size, r.us, r.min_us, r.iqr_us, tb_s(c, r),
           tflop_s(c, r), floor_us(c), r.us / floor_us(c), r.splits,
           r.rel_l2 ? text("%.1e", *r.rel_l2).c_str() : "-", right ? "" : "  WRONG");
    fflush(stdout);
    rows_.push_back(row_json(c, r));
}

void Report::refused(const Case& c, const char* why) {
    good_ = false;
    printf("%-4s%10s%4d%8d %-11s%3d  refused: %s\n", c.kind == KDT_ATTN_MLA ? "mla" : "gqa",
           shape_name(c).c_str(), c.batch, c.context, format_name(c.kv_format), c.page_size, why);
    fflush(stdout);
}

std::string Report::row_json(const Case& c, const Result& r) const {
    std::string row = "{\"op\": " + quoted(op_name(c)) + ", \"arch\": " + quoted(arch_);
    row += text(", \"heads\": %d, \"nodes\": %d, \"context\": %d, \"page\": %d", c.heads, c.nodes,
                c.context, c.page_size);
    row += ", \"kv_dtype\": " + quoted(format_name(c.kv_format));
    row +=
        text(", \"batch\": %d, \"slots\": \"%s\"", c.batch, c.shuffled ? "shuffled" : "contiguous");
    row += ", \"us\": " + number(r.us, 5) + ", \"floor_us\": " + number(floor_us(c), 5);
    row += ", \"splits\": " + number(r.splits, 4);
    row += ", \"rel_l2\": " + (r.rel_l2 ? number(*r.rel_l2, 3) : "null");
    row += text(", \"kv_heads\": %d, \"head_dim\": %d, \"mask\": \"tree\"", c.kv_heads, c.head_dim);
    row += text(", \"mode\": \"%s\"",
                options_.mode == KDT_ATTN_DETERMINISTIC ? "deterministic" : "fast");
    row += ", \"path\": " + quoted(path_name(options_.path));
    row += text(", \"forced_splits\": %d", c.splits);
    row += ", \"min_us\": " + number(r.min_us, 5) + ", \"iqr_us\": " + number(r.iqr_us, 3);
    row += ", \"plan_us\": " + number(r.plan_us, 4);
    row += ", \"tb_s\": " + number(tb_s(c, r), 4) + ", \"tflop_s\": " + number(tflop_s(c, r), 4);
    row += text(", \"layers\": %d, \"pools\": %d, \"peer\": null}", r.layers, r.pools);
    return row;
}

void Report::write(const std::string& path) const {
    FILE* file = fopen(path.c_str(), "w");
    if (!file) throw std::runtime_error("cannot write " + path);
    fprintf(file, "{\n \"schema\": 1,\n \"commit\": %s,\n \"device\": %s,\n",
            quoted(commit_).c_str(), quoted(device_).c_str());
    fprintf(file,
            " \"ceilings\": {\"read_tb_s\": %s, \"bf16_tflop_s\": %s, \"launch_gap_us\": %s, "
            "\"mma_sync_tflop_s\": %s, \"wgmma_tflop_s\": %s, \"launch_gap_pdl_us\": %s},\n",
            number(ceilings_.read_tb_s, 4).c_str(), number(ceilings_.bf16_tflop_s(), 4).c_str(),
            number(ceilings_.launch_gap_us, 3).c_str(),
            number(ceilings_.mma_sync_tflop_s, 4).c_str(),
            ceilings_.wgmma_tflop_s ? number(*ceilings_.wgmma_tflop_s, 4).c_str() : "null",
            number(ceilings_.launch_gap_pdl_us, 3).c_str());
    fprintf(file, " \"rows\": [");
    for (size_t i = 0; i < rows_.size(); ++i) {
        fprintf(file, "%s\n  %s", i == 0 ? "" : ",", rows_[i].c_str());
    }
    fprintf(file, "\n ]\n}\n");
    const bool failed = ferror(file) != 0;
    if (fclose(file) != 0 || failed) throw std::runtime_error("cannot write " + path);
}

}  // namespace kd::bench
