"""tools/check_includes.py on small trees with planted violations."""

import io
import sys
import tempfile
import unittest
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
sys.dont_write_bytecode = True
import check_includes  # noqa: E402

ALLOWED = {
    "src/base/log.cpp": '#include <spdlog/spdlog.h>\n#include <cstdio>\n#include "base/log.h"\n',
    "src/core/tree.cpp": '#include "core/tree.h"\n#include "base/views.h"\n#include <vector>\n',
    "src/kv/pool.cpp": '#include "base/check.h"\n#include <set>\n',
    "src/formats/gguf.cpp": "#include <sys/mman.h>\n#include <unistd.h>\n#include <pcre2.h>\n",
    "src/backends/stream.h": '#pragma once\n#include "backends/cpu/threads.h"\n',
    "src/backends/cuda/device.cpp": '#include <cuda_runtime.h>\n#include "backends/stream.h"\n',
    "src/kernels/linear/linear.cpp": '#include "hwy/highway.h"\n#include "core/tree.h"\n',
    "src/kernels/linear/cuda/linear.cu": "#include <cuda/std/span>\n#include <cub/cub.cuh>\n",
    "src/kernels/math_inl.h": "#if defined(KD_X) == defined(HWY_TARGET_TOGGLE)\n#endif\n",
    "src/engine/round.cpp": '#include "kv/pool.h"\n#include <nlohmann/json.hpp>\n#include <thread>\n',
    "src/app/run.cpp": '#include "engine/engine.h"\n#include <fmt/format.h>\n',
    "src/cli/main.cpp": '#include <CLI/CLI.hpp>\n#include "app/run.h"\n',
    "src/core/comment.cpp": '// #include "kv/pool.h"\n/*\n#include <thread>\n*/ const char* s = "/*";\n',
}

# (file, text, line, words of the rule)
REFUSED = [
    ("src/base/a.cpp", '#include "core/tree.h"\n', 1, "base may include base only"),
    ("src/base/a.cpp", "#include <unistd.h>\n", 1, "base uses no system headers"),
    ("src/base/a.cpp", "#include <fstream>\n", 1, "base knows no I/O"),
    ("src/base/a.cpp", "#include <cuda_runtime.h>\n", 1, "of CUDA"),
    ("src/core/a.cpp", '\n\n#include "kv/pool.h"\n', 3, "core may include base, core only"),
    ("src/core/a.cpp", "#include <thread>\n", 1, "core knows no I/O, threads or clocks"),
    ("src/core/a.cpp", "#include <chrono>\n", 1, "core knows no I/O"),
    ("src/core/a.cpp", "#include <immintrin.h>\n", 1, "no system headers"),
    ("src/core/a.cpp", "#include <cuda/std/span>\n", 1, "of CCCL"),
    ("src/kv/a.cpp", '#include "core/tree.h"\n', 1, "kv may include"),
    ("src/kv/a.cpp", "#include <sys/mman.h>\n", 1, "no system headers"),
    ("src/formats/a.cpp", '#include "core/tree.h"\n', 1, "formats may include"),
    ("src/formats/a.cpp", "#include <spdlog/spdlog.h>\n", 1, "of spdlog"),
    ("src/backends/cpu/a.cpp", '#include "kernels/weight.h"\n', 1, "backends may include"),
    ("src/backends/cpu/a.cpp", "#include <cuda_runtime.h>\n", 1, "of CUDA"),
    ("src/kernels/op/a.cpp", '#include "kv/pool.h"\n', 1, "kernels may include"),
    ("src/kernels/op/a.cu", "#include <torch/extension.h>\n", 1, "of torch"),
    ("src/kernels/op/a.cpp", '# include "models/model.h"\n', 1, "kernels may include"),
    ("src/models/a.cpp", '#include "core/tree.h"\n', 1, "models may include"),
    ("src/models/a.cpp", "#include <nlohmann/json.hpp>\n", 1, "of nlohmann-json"),
    ("src/engine/a.cpp", '#include "app/run.h"\n', 1, "engine may include"),
    ("src/engine/a.cpp", "#include <omp.h>\n", 1, "of OpenMP"),
    ("src/app/a.cpp", '#include "kernels/weight.h"\n', 1, "app may include"),
    ("src/server/a.cpp", '#include "engine/engine.h"\n', 1, "server may include"),
    ("src/cli/a.cpp", '#include "engine/engine.h"\n', 1, "cli may include"),
    ("src/app/a.cpp", "#include <iostream>\n", 1, "nobody uses it here"),
    ("src/app/a.cpp", "#include <boost/any.hpp>\n", 1, "does not know"),
    ("src/app/a.cpp", "#include <gtest/gtest.h>\n", 1, "of GoogleTest"),
    ("src/app/a.cpp", '#include "tests/support/toy.h"\n', 1, "no module of the table"),
    ("src/app/a.cpp", '#include "run.h"\n', 1, "no module of the table"),
    ("src/app/a.cpp", '#include "../engine/engine.h"\n', 1, "paths start at src/"),
    ("src/app/a.cpp", "#include <engine/engine.h>\n", 1, "in quotes"),
    ("src/core/a.cpp", '#include "kdtree_version.h"\n', 1, "the version is read by"),
    ("src/core/a.h", "#include <vector>\n", 1, "without #pragma once"),
    ("src/core/a.h", "// #pragma once\n", 1, "without #pragma once"),
    ("src/util/a.cpp", "\n", 1, "in no module of the table"),
    ("src/a.cpp", "\n", 1, "in no module of the table"),
    ("include/kdtree/kdtree.h", '#include "base/views.h"\n', 1, "api may include api only"),
]


class CheckIncludesTest(unittest.TestCase):
    def check(self, files):
        with tempfile.TemporaryDirectory() as root:
            for name, text in files.items():
                path = Path(root) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            out = io.StringIO()
            with redirect_stdout(out), redirect_stderr(out):
                status = check_includes.main([root])
        return status, out.getvalue()

    def test_allowed(self):
        status, out = self.check(ALLOWED)
        self.assertEqual(status, 0, out)
        self.assertIn(f"{len(ALLOWED)} files checked: 0 broken rules", out)

    def test_refused(self):
        for name, text, line, rule in REFUSED:
            with self.subTest(name=name, text=text):
                status, out = self.check({name: text})
                self.assertEqual(status, 1, out)
                self.assertTrue(out.startswith(f"{name}:{line}: "), out)
                self.assertIn(rule, out)
                self.assertIn("1 broken rules", out)

    def test_every_violation_is_reported(self):
        status, out = self.check({"src/core/a.cpp": '#include <thread>\n#include "kv/pool.h"\n'})
        self.assertEqual(status, 1)
        self.assertIn("src/core/a.cpp:1: ", out)
        self.assertIn("src/core/a.cpp:2: ", out)

    def test_an_empty_folder_is_no_success(self):
        self.assertEqual(self.check({})[0], 1)


if __name__ == "__main__":
    unittest.main()
