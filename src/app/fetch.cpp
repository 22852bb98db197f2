#include "app/fetch.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/config.h"
#include "base/error.h"

namespace kd {

namespace {

namespace fs = std::filesystem;

constexpr const char* kScript = "fetch_model.py";

/// The script of the build tree or of the installation this program belongs to.
fs::path find_script() {
    std::error_code error;
    const fs::path program = fs::read_symlink("/proc/self/exe", error);
    if (error) KD_THROW(io, "cannot find this program's folder: {}", error.message());
    const fs::path beside = program.parent_path() / kScript;
    const fs::path shared = program.parent_path().parent_path() / "share" / "kdtree" / kScript;
    for (const fs::path& path : {beside, shared}) {
        if (fs::is_regular_file(path, error)) return path;
    }
    KD_THROW(not_found, "{} is neither at {} nor at {}: the installation is not complete", kScript,
             beside.string(), shared.string());
}

}  // namespace

void fetch(const std::string& name) {
    const std::string script = find_script();
    const std::string cache = read_environment().cache_folder;
    // A signal waits until the script is ready to clean up after itself, which unblocks them.
    sigset_t signals;
    sigset_t before;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, &before);
    execlp("python3", "python3", script.c_str(), "--cache", cache.c_str(), "--", name.c_str(),
           static_cast<char*>(nullptr));
    const int why = errno;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (why == ENOENT) {
        KD_THROW(not_found, "python3 is not installed (Debian package python3): fetch needs it");
    }
    KD_THROW(io, "cannot start python3: {}", std::strerror(why));
}

}  // namespace kd
