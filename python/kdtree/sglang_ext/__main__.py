"""python -m kdtree.sglang_ext"""

import sys

from kdtree.sglang_ext.doctor import NO_SGLANG, main

try:
    sys.exit(main(sys.argv[1:]))
except ImportError as error:
    print(f"PROBLEM    SGLang cannot be imported: {error}")
    sys.exit(NO_SGLANG)
