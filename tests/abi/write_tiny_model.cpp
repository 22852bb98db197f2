// write_tiny_model FILE.gguf: the tiny model of the tests, for programs that know only the library.
#include <cstdio>
#include <exception>

#include "support/tiny_model.h"

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fputs("usage: write_tiny_model FILE.gguf\n", stderr);
        return 2;
    }
    try {
        kd::write_tiny_model(argv[1]);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 1;
    }
    return 0;
}
