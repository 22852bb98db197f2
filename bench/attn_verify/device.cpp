#include "attn_verify/device.h"

#include <algorithm>
#include <cmath>

namespace kd::bench {

Graph::Graph(const Stream& stream, const std::function<void()>& launch) : stream_(stream.get()) {
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
    try {
        launch();
    } catch (...) {  // the stream leaves capture whatever was wrong
        cudaStreamEndCapture(stream_, &graph);
        if (graph) cudaGraphDestroy(graph);
        throw;
    }
    check(cudaStreamEndCapture(stream_, &graph), "end of capture");
    const cudaError_t status = cudaGraphInstantiate(&exec_, graph, 0);
    cudaGraphDestroy(graph);
    check(status, "graph instantiation");
}

std::vector<double> Graph::time_us(int32_t warm_up, int32_t replays) const {
    std::vector<cudaEvent_t> events(2 * static_cast<size_t>(replays));
    for (cudaEvent_t& event : events) check(cudaEventCreate(&event), "event");
    for (int32_t i = 0; i < warm_up; ++i) check(cudaGraphLaunch(exec_, stream_), "graph");
    // All replays are queued at once, so that the host's launch time is hidden.
    for (size_t i = 0; i < events.size(); i += 2) {
        check(cudaEventRecord(events[i], stream_), "event");
        check(cudaGraphLaunch(exec_, stream_), "graph");
        check(cudaEventRecord(events[i + 1], stream_), "event");
    }
    check(cudaStreamSynchronize(stream_), "waiting for the replays");
    std::vector<double> times;
    for (size_t i = 0; i < events.size(); i += 2) {
        float ms = 0;
        check(cudaEventElapsedTime(&ms, events[i], events[i + 1]), "event");
        times.push_back(ms * 1e3);
    }
    for (const cudaEvent_t event : events) cudaEventDestroy(event);
    return times;
}

double quantile(std::vector<double> values, double share) {
    if (values.empty()) return NAN;
    std::ranges::sort(values);
    const double at = share * static_cast<double>(values.size() - 1);
    const size_t below = static_cast<size_t>(at);
    const size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (values[above] - values[below]) * (at - static_cast<double>(below));
}

}  // namespace kd::bench
